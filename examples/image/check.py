# SPDX-License-Identifier: Apache-2.0
"""check.py ANNULUS: completes a made-up picture, and compares attention and masses with the definition."""
import importlib.util
import pathlib
import sys
import tempfile

try:
    import numpy as np
except ImportError:
    print("skipped: no numpy")
    sys.exit(77)

import image

ROWS, COLUMNS, DILATION = 30, 32, 16


def made_up_picture():
    """Makes a picture of waves of random directions and colours, with a sharp edge."""
    numbers = np.random.default_rng(3)
    y, x = np.indices((ROWS * image.TILE, COLUMNS * image.TILE)) / image.TILE
    picture = np.full((*x.shape, 3), 0.5)
    for _ in range(12):
        angle, length, phase = numbers.uniform(0, 2 * np.pi), numbers.uniform(8, 30), numbers.uniform(0, 7)
        wave = np.sin((x * np.cos(angle) + y * np.sin(angle)) * 2 * np.pi / length + phase)
        picture += wave[..., None] * numbers.normal(0, 0.06, 3)
    picture[x > y + 12] *= 0.6
    return np.clip(picture, 0, 1)


def main():
    picture = made_up_picture()
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        results = image.run(picture, (DILATION,), sys.argv[1], directory)
        for mass in (results[DILATION, order][2] for order in image.ORDERS):
            assert abs(mass.sum() - ROWS * COLUMNS) < 0.01, "each query gives 1"
            assert (mass > 0).sum() <= ROWS * COLUMNS // DILATION, "only keys are looked at"
        row_masses = results[DILATION, "rows"][2]
        assert (row_masses[:, np.arange(COLUMNS) % DILATION != 0] == 0).all(), "the rows keep whole columns"
        assert results[DILATION, "hilbert"][0] > results[DILATION, "rows"][0], "spread keys lie nearer"

        left, right = image.halves_of(picture)
        image.write_arrays(left, right, DILATION, directory)
        q, k, v = (np.load(directory / f"{array}.npy").astype(np.float64) for array in "qkv")
        arguments = sys.argv[1], "attend", "rows", DILATION, COLUMNS, directory, "out.npy"
        out = image.run_program(*arguments, ("--v", directory / "v.npy"))
        keys = np.arange(0, ROWS * COLUMNS, DILATION)
        scores = np.einsum("nhd,mhd->nhm", q, k[keys])
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        wanted = np.einsum("nhm,mhd->nhd", weights / weights.sum(-1, keepdims=True), v[keys])
        assert np.abs(out - wanted).max() < 2e-3

        if importlib.util.find_spec("matplotlib"):
            drawing = directory / "orders.png"
            image.draw(picture, results, DILATION, drawing)
            assert drawing.read_bytes().startswith(b"\x89PNG")


if __name__ == "__main__":
    sys.exit(main())
