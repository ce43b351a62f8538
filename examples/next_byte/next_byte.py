# SPDX-License-Identifier: Apache-2.0
"""Predicts every next byte of a document by attention alone, with no training, for growing reach.

The query at position n is an embedding of the bytes that end at n. Key m is the embedding of the bytes that end at
m - 1, and value m is the byte at m. So if the text up to n is like the text up to m - 1, the query attends to the byte
that followed there. The output row is a distribution over the byte at n + 1. With the causal mask (m <= n) no query
attends to the byte that it predicts.

An embedding adds up one random sign vector for each context length, the last byte alone, the last two, and so on.
Vectors of different contexts are nearly orthogonal, so Q.K is about the sum of CONTEXT_WEIGHTS over the context
lengths at which the two places agree.

`annulus attend` computes the attention, once for each list of branches below. This script prepares its arrays,
measures bits per byte of its output, prints a table and draws it.
"""
import argparse
import lzma
import os
import pathlib
import subprocess
import sys
import time
import zlib

import numpy as np

SYMBOLS = 128  # head_dim: 127 symbols for the document's commonest bytes, one for all others
OTHER = SYMBOLS - 1
CONTEXT_WEIGHTS = (4.5, 2.5, 1.5, 1.0, 1.0, 1.0)  # in nats, for the last 1, 2, ... bytes; tried on C headers
FLOOR = 0.02  # the share of the prediction that is spread evenly over all symbols

# Growing reach in two ways, with the same number of keys for a query: one more, longer and sparser branch each time; or
# one segment, longer each time. In the sparse branches every query attends to the keys of its own residue.
FAR = [["2048:1", "16384:8,query=residue", "131072:64,query=residue"][:count] for count in (1, 2, 3)]
NEAR = [["2048:1"], ["4096:1"], ["6144:1"]]


def symbols_of(document):
    """Returns the document as symbols 0 ... 127, and how many byte values share the last symbol."""
    counts = np.bincount(document, minlength=256)
    commonest = np.argsort(-counts, kind="stable")[:OTHER]
    table = np.full(256, OTHER, np.uint8)
    table[commonest] = np.arange(OTHER)
    return table[document], 256 - OTHER


def context_hashes(document, length, bits):
    """Returns for each position a hash of the `length` bytes that end there."""
    state = np.zeros(len(document), np.uint64)
    for back in range(length):
        state[back:] += document[: len(document) - back].astype(np.uint64) + np.uint64(1)
        state *= np.uint64(0x9E3779B97F4A7C15)
        state ^= state >> np.uint64(29)
    return (state * np.uint64(0xBF58476D1CE4E5B9) >> np.uint64(64 - bits)).astype(np.int32)


def write_arrays(document, symbols, directory):
    """Writes q.npy, k.npy and v.npy, [N, 1, SYMBOLS] in float16, a chunk at a time."""
    count, bits, chunk = len(document), 14, 1 << 14
    hashes, vectors = [], []
    for length, weight in enumerate(CONTEXT_WEIGHTS, start=1):
        hashes.append(context_hashes(document, length, bits))
        signs = np.random.default_rng(length).integers(0, 2, (1 << bits, SYMBOLS), np.int8) * 2 - 1
        vectors.append(signs * np.float32(np.sqrt(weight / SYMBOLS)))
    q, k, v = (
        np.lib.format.open_memmap(directory / name, "w+", np.float16, (count, 1, SYMBOLS))
        for name in ("q.npy", "k.npy", "v.npy")
    )
    one_hot = np.eye(SYMBOLS, dtype=np.float16)
    for first in range(0, count, chunk):
        rows = slice(first, min(first + chunk, count))
        q[rows, 0] = sum(vector[hash_[rows]] for vector, hash_ in zip(vectors, hashes))
        v[rows, 0] = one_hot[symbols[rows]]
    k[0] = 0  # there is no text before the first byte
    k[1:] = q[:-1]


def anonymous_memory(pid):
    """Returns how many bytes of memory a process uses, without mapped files."""
    try:
        for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass  # the process has just ended
    return 0


def attend(program, branches, directory):
    """Runs `annulus attend`; returns the seconds it took and the memory it needed besides the arrays' files."""
    command = [program, "attend", "--causal", "--scale", "1"]
    for name in ("q", "k", "v", "out"):
        command += [f"--{name}", directory / f"{name}.npy"]
    for branch in branches:
        command += ["--branch", branch]
    start, peak = time.monotonic(), 0
    with subprocess.Popen(command) as process:
        while process.poll() is None:
            peak = max(peak, anonymous_memory(process.pid))
            time.sleep(0.01)
    if process.returncode != 0:
        raise SystemExit(process.returncode)
    return time.monotonic() - start, peak


def bits_per_byte(output, symbols, sharing):
    """Returns the mean of -log2 of the probability of each next byte."""
    following = symbols[1:]
    given = output[np.arange(len(following)), 0, following].astype(np.float64)
    probability = (1 - FLOOR) * given + FLOOR / SYMBOLS
    bits = -np.log2(probability) + np.where(following == OTHER, np.log2(sharing), 0)
    return bits.mean()


def mean_keys(branches, count):
    """Returns how many keys a query has on average."""
    total = 0
    for branch in branches:
        length, dilation = (int(number) for number in branch.split(",")[0].split(":"))
        place = np.arange(count) % length
        total += (place // dilation + 1).mean()
    return total


def reach(branches):
    return max(int(branch.split(":")[0]) for branch in branches)


def label(branches):
    return " + ".join(branch.split(",")[0] for branch in branches)


def draw(results, compressors, path):
    """Draws bits per byte against keys a query, for the far and the near experiments, each point with its reach."""
    from matplotlib.figure import Figure

    # Colours that can be read on light and on dark pages; the background is transparent.
    ink, blue, orange = "#767b82", "#2a7fd6", "#cf6a12"
    figure = Figure(figsize=(7, 4.6), layout="constrained")
    axes = figure.subplots()
    axes.tick_params(colors=ink)
    axes.spines[:].set_color(ink)
    for experiments, name, style, color, side in (
            (NEAR, "one segment, longer each time", "s--", blue, 8),
            (FAR, "one more, longer and sparser branch each time", "o-", orange, -16)):
        points = [results[label(branches)] for branches in experiments]
        axes.plot([p["keys"] for p in points], [p["bits"] for p in points], style, color=color, label=name)
        for point in points:
            axes.annotate(f"reach {point['reach']:,}", (point["keys"], point["bits"]), (0, side),
                          textcoords="offset points", ha="center", fontsize=8, color=ink)
    for (name, bits), style in zip(compressors, (":", "-.")):
        axes.axhline(bits, color=ink, linestyle=style, label=name)
    axes.set_xlabel("keys a query, on average", color=ink)
    axes.set_ylabel("bits per byte", color=ink)
    axes.margins(x=0.1, y=0.1)
    # Above the axes, where it hides no point.
    axes.legend(fontsize=8, loc="lower left", bbox_to_anchor=(0, 1), ncol=2, frameon=False, labelcolor=ink)
    figure.suptitle("Next-byte prediction by attention alone", color=ink)
    figure.savefig(path, metadata={"Date": None}, transparent=True)


def run(document, program, directory):
    """Does the whole job on a document (bytes); returns the results by the branches' label."""
    directory.mkdir(parents=True, exist_ok=True)
    data = np.frombuffer(document, np.uint8)
    symbols, sharing = symbols_of(data)
    start = time.monotonic()
    write_arrays(data, symbols, directory)
    print(f"{len(data):,} bytes of text; q, k, v of [{len(data)}, 1, {SYMBOLS}] float16 made in "
          f"{time.monotonic() - start:.1f} s\n")
    print(f"{'branches (segment : dilation)':<34} {'reach':>6} {'keys a query':>12} {'bits/byte':>9} "
          f"{'seconds':>8} {'tokens/s':>10} {'memory':>8}")
    results = {}
    for branches in FAR + NEAR[1:]:
        seconds, memory = attend(program, branches, directory)
        output = np.load(directory / "out.npy", mmap_mode="r")
        result = {"reach": reach(branches), "keys": mean_keys(branches, len(data)),
                  "bits": bits_per_byte(output, symbols, sharing), "seconds": seconds, "memory": memory}
        results[label(branches)] = result
        print(f"{label(branches):<34} {result['reach']:>6} {result['keys']:>12.0f} {result['bits']:>9.3f} "
              f"{seconds:>8.1f} {len(data) / seconds:>10,.0f} {memory / 2**20:>5.0f} MB", flush=True)
    return results


def main():
    parser = argparse.ArgumentParser(description="Next-byte prediction by attention alone, for growing reach.")
    parser.add_argument("document", type=pathlib.Path)
    parser.add_argument("--annulus", required=True, help="the annulus program")
    parser.add_argument("--out", required=True, type=pathlib.Path, help="directory for the arrays and the picture")
    parser.add_argument("--bytes", type=int, default=1 << 20, help="read at most so many bytes (default: %(default)s)")
    options = parser.parse_args()
    try:
        with options.document.open("rb") as file:
            document = file.read(options.bytes)
    except OSError as error:
        parser.error(str(error))
    if len(document) < 2:
        parser.error(f"{options.document}: too short to predict anything")

    results = run(document, options.annulus, options.out)
    share = np.bincount(np.frombuffer(document, np.uint8)) / len(document)
    frequencies = -sum(p * np.log2(p) for p in share if p > 0)
    compressors = [("gzip -9", 8 * len(zlib.compress(document, 9)) / len(document)),
                   ("xz -9", 8 * len(lzma.compress(document, preset=9)) / len(document))]
    print("\nThe same text otherwise: " + ", ".join(
        f"{name} {bits:.3f}" for name, bits in [("byte frequencies alone", frequencies)] + compressors) + " bits/byte.")
    picture = options.out / "bits_per_byte.svg"
    draw(results, compressors, picture)
    for name in ("q.npy", "k.npy", "v.npy", "out.npy"):
        os.remove(options.out / name)
    print(f"Picture: {picture}")


if __name__ == "__main__":
    sys.exit(main())
