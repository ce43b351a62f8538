# SPDX-License-Identifier: Apache-2.0
"""check.py ANNULUS DOCUMENT...: runs the next-byte job on 20,000 bytes, compares its attention with the definition."""
import importlib.util
import pathlib
import sys
import tempfile

try:
    import numpy as np
except ImportError:
    print("skipped: no numpy")
    sys.exit(77)

import next_byte


def expected_row(q, k, v, n, branches):
    """Computes the output row of query n by the definition: one softmax over the union of the branches' keys."""
    keys = []
    for branch in branches:
        length, dilation = (int(number) for number in branch.split(",")[0].split(":"))
        start = n - n % length
        keys.append(np.arange(start + (n - start) % dilation, n + 1, dilation))
    keys = np.concatenate(keys)
    scores = k[keys] @ q[n]
    weights = np.exp(scores - scores.max())
    return weights @ v[keys] / weights.sum()


def main():
    program, *documents = sys.argv[1:]
    document = b"".join(pathlib.Path(name).read_bytes() for name in documents)[:20000]
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        results = next_byte.run(document, program, directory)
        assert results["2048:1"]["bits"] > results["2048:1 + 16384:8"]["bits"], "far context did not help"

        next_byte.attend(program, next_byte.FAR[-1], directory)
        q, k, v, out = (
            np.load(directory / f"{array}.npy")[:, 0].astype(np.float64) for array in ("q", "k", "v", "out")
        )
        for n in np.random.default_rng(0).integers(0, len(document), 300):
            error = np.abs(out[n] - expected_row(q, k, v, n, next_byte.FAR[-1])).max()
            assert error < 2e-3, f"row {n} is wrong by {error}"  # float16 keeps 11 bits

        if importlib.util.find_spec("matplotlib"):
            picture = directory / "picture.svg"
            next_byte.draw(results, [("gzip -9", 2.0), ("xz -9", 1.5)], picture)
            text = picture.read_text(encoding="utf-8")
            assert "</svg>" in text and "#ffffff" not in text, "the picture has a ground of its own"


if __name__ == "__main__":
    sys.exit(main())
