# SPDX-License-Identifier: Apache-2.0
"""Draws doc/slide_map.png: the map of a made-up slide, in which queries look at the tiles of a round region.

Usage: python3 doc/slide_map.py FILE    needs the package with matplotlib and SciPy
"""

import sys

import numpy as np

SIZE = 256  # pixels of a tile
INK = "#767b82"  # can be read on light pages and on dark ones
PARTS = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")


def tissue(step, places=80, offset=(0, 0)):
    """Returns coordinates [tiles, 2] of two pieces of tissue, row by row, the second piece `offset` off the grid of the
    first. float64, multiples of step."""
    row, column = np.mgrid[:places, :places] / places
    pieces = []
    for x, y, width, height, shift in ((0.35, 0.5, 0.27, 0.42, (0, 0)), (0.8, 0.38, 0.16, 0.25, offset)):
        inside = ((column - x) / width) ** 2 + ((row - y) / height) ** 2 < 1
        pieces.append(np.stack([column[inside], row[inside]], 1) * places * step + shift)
    return np.concatenate(pieces)


def made_up_slide():
    """Returns coordinates [tiles, 2], which tiles lie in the region, and q and k [tiles + 1, 16, 48] with a class token.

    All queries point one way, with noise. Keys are noise; those of the region also point that way, so that scores are
    2 * 3 / sqrt(48) higher there and each query looks at them exp() of that times, 2.4 times, as much.
    """
    random = np.random.default_rng(4)
    coordinates = tissue(SIZE, offset=(97, 131))
    in_region = np.hypot(*(coordinates / SIZE - (28, 50)).T) < 7
    way = random.standard_normal((16, 48))
    way /= np.linalg.norm(way, axis=1, keepdims=True)
    q, k = (0.3 * random.standard_normal((len(coordinates) + 1, 16, 48)) for _ in range(2))
    q += 3 * way
    k[1:][in_region] += 2 * way
    return coordinates, in_region, q.astype(np.float32), k.astype(np.float32)


def draw(path):
    import annulus
    import matplotlib
    from annulus.slides import Tiles, attention_map

    coordinates, _, q, k = made_up_slide()
    with matplotlib.rc_context(dict.fromkeys(PARTS, INK)):
        figure = attention_map(q, k, Tiles(coordinates), annulus.Config.gigapath()).figure()
        figure.savefig(path, transparent=True)


if __name__ == "__main__":
    draw(sys.argv[1])
