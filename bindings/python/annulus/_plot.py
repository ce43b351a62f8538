# SPDX-License-Identifier: Apache-2.0
"""Pictures of patterns."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any, List, Tuple

import numpy as np

from . import _capi, _passes
from ._arguments import integer
from ._arrays import CPU
from ._call_options import NO_OPTIONS
from ._errors import ArgumentError, check
from ._handle import ContextHandle

if TYPE_CHECKING:
    from ._config import Branch, Config

# Limits: positions that are computed in a few seconds, and cells on a side of a picture.
_MOST_POSITIONS = 2048
_FEWEST_CELLS, _MOST_CELLS = 32, 128


def cell_size(config: Config, length: int) -> int:
    """Returns how many positions a cell of the picture stands for; 1 if the sequence fits the picture.

    The number is a multiple of all dilations if that leaves enough cells. Then every cell has the same number of
    positions of each residue. Otherwise the means would alternate, and show a lattice that the pattern does not have.
    """
    size = -(-length // _MOST_CELLS)
    dilation = functools.reduce(lambda a, b: a * b // math.gcd(a, b), (branch.dilation for branch in config.branches))
    whole = -(-size // dilation) * dilation
    return whole if size > 1 and whole * _FEWEST_CELLS <= length else size


def counts(config: Config, length: int, heads: int, size: int) -> np.ndarray:
    """Returns how often a query counts a key, as means over cells of `size` queries and `size` keys.

    Returns float64 [heads, cells of queries, cells of keys]. The library computes it: with all scores 0, and with V = 1
    in the column of the key's cell and 0 elsewhere, O * exp(LSE) is how often the keys of each cell count.
    """
    on_cpu = config.replace(engine="cpu")
    cells = -(-length // size)
    dim = -(-cells // 8) * 8
    q, k, values = np.zeros((length, heads, dim)), np.zeros((length, 1, dim)), np.zeros((length, 1, dim))
    values[np.arange(length), 0, np.arange(length) // size] = 1
    handle = ContextHandle(on_cpu._handle, on_cpu._reach, CPU)
    out, lse = _passes.forward(handle, q, k, values, None, None, True, NO_OPTIONS, None)
    times = np.rint(out.transpose(1, 0, 2) * np.exp(lse)[:, :, None])[:, :, :cells]
    firsts = np.arange(0, length, size)
    positions = np.diff(firsts, append=length)  # in each cell; the last cell may have fewer
    return np.add.reduceat(times, firsts, axis=1) / positions[:, None] / positions


def _curve(length: int, width: int) -> Tuple[np.ndarray, np.ndarray]:
    """Returns the columns and the rows of the grid's cells in the order of the Hilbert curve."""
    positions = np.empty(length, np.int64)
    check(_capi.annulus_hilbert_curve(length, width, positions.__array_interface__["data"][0]))
    if width == 0:
        width = next(w for w in range(1, length + 1) if length % w == 0 and w * w >= length)
    return positions % width, positions // width


def _groups(patterns: np.ndarray) -> List[List[int]]:
    """Returns lists of the heads with equal patterns. patterns: [heads, ...]."""
    groups: dict[bytes, List[int]] = {}
    for head, pattern in enumerate(patterns):
        groups.setdefault(pattern.tobytes(), []).append(head)
    return list(groups.values())


def _title(branch: Branch) -> str:
    if branch.kind == "global":
        queries = ", queries" if branch.global_queries else ""
        return f"global {branch.first_global} to {branch.first_global + branch.global_count - 1}{queries}"
    if branch.kind == "window":
        sides = [str(steps) if steps >= 0 else "all" for steps in (branch.left, branch.right)]
        phases = ", dilated" if branch.query == "dilated" else ""
        return f"window {sides[0]}, {sides[1]}:{branch.dilation}{phases}"
    details: List[str] = [] if branch.query == "dilated" else [branch.query]
    details += [] if branch.order == "linear" else [branch.order]
    return f"{branch.segment_length or 'all'}:{branch.dilation}" + "".join(f", {detail}" for detail in details)


def _heads(group: List[int], heads: int) -> str:
    if heads == 1:
        return "query"
    if len(group) == heads:
        return "query of any head"
    numbers = f"{group[0]}–{group[-1]}" if len(group) > 2 and group[-1] - group[0] == len(group) - 1 else None
    return f"query of head {numbers or ', '.join(map(str, group))}"


def plot(config: Config, length: int, heads: int) -> Any:
    """Draws the figure of Config.plot()."""
    length, heads = integer("length", length, 32), integer("heads", heads, 32)
    if not 1 <= length <= _MOST_POSITIONS:
        raise ArgumentError(f"length is {length}; it must be from 1 to {_MOST_POSITIONS}, what a picture has room for")
    if heads < 1:
        raise ArgumentError(f"heads is {heads}; it must be at least 1")
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError(f"Config.plot() needs matplotlib (pip install matplotlib): {error}") from error

    size = cell_size(config, length)
    branches = config.branches
    columns = [counts(config.replace(branches=[branch]), length, heads, size) for branch in branches]
    titles = [_title(branch) for branch in branches]
    if len(branches) > 1:
        columns.append(counts(config, length, heads, size))
        titles.append("all" if config.key_rule == "each_branch" else "all, each key once")
    groups = _groups(np.stack(columns, axis=1))
    curves = [i for i, branch in enumerate(branches) if branch.order == "hilbert"]

    rows = len(groups) + bool(curves)
    width = 3 if size == 1 else 3.8  # inches; with a colour bar beside each picture
    figure, axes = pyplot.subplots(
        rows, len(columns), squeeze=False, figsize=(width * len(columns), 3 * rows + 0.4), layout="constrained"
    )
    for row, group in zip(axes, groups):
        for axis, column, title in zip(row, columns, titles):
            cells = column[group[0]]
            end = len(cells) * size - 0.5
            most = column.max() or 1
            image = axis.imshow(cells, cmap="Greys", vmin=0, vmax=most, extent=(-0.5, end, end, -0.5))
            axis.set_title(title)
            axis.set_xlabel("key")
            if size > 1:
                figure.colorbar(image, ax=axis, label=f"times, mean of {size} x {size}", shrink=0.7)
            elif most > 1:
                figure.colorbar(image, ax=axis, label="times", ticks=range(int(most) + 1), shrink=0.7)
        row[0].set_ylabel(_heads(group, heads))
    if curves:
        for axis in axes[-1]:
            axis.set_visible(False)
        for i in curves:
            axis, branch = axes[-1][i], branches[i]
            segment = min(branch.segment_length or length, length)
            axis.plot(*_curve(segment, branch.grid_width), color="black", linewidth=1)
            axis.set_title("order in a segment's grid")
            axis.set_aspect("equal")
            axis.invert_yaxis()
            axis.set_visible(True)
    return figure
