# SPDX-License-Identifier: Apache-2.0
"""Pictures of patterns."""

from __future__ import annotations

from typing import Any, List, Tuple

import numpy as np

from . import _capi
from ._arguments import integer
from ._config import Branch, Config
from ._context import Context
from ._errors import ArgumentError, check

# More positions than a picture has room for.
_MOST_POSITIONS = 2048
_WIDEST_HEAD = 256


def counts(config: Config, length: int, heads: int) -> np.ndarray:
    """How often each query counts each key: uint16 [heads, queries, keys].

    Asked of the library: with all scores 0 and values 1 for one key and 0 for the others, O * exp(LSE) is the number of
    times that the key counts.
    """
    context = Context(config.replace(engine="cpu"))
    dim = min(_WIDEST_HEAD, -(-length // 8) * 8)
    q, k = np.zeros((length, heads, dim)), np.zeros((length, 1, dim))
    found = np.empty((heads, length, length), np.uint16)
    for first in range(0, length, dim):
        values = np.zeros((length, 1, dim))
        last = min(first + dim, length)
        values[np.arange(first, last), 0, np.arange(last - first)] = 1
        out, lse = context.forward(q, k, values)
        times = out.transpose(1, 0, 2) * np.exp(lse)[:, :, None]
        found[:, :, first:last] = np.rint(times)[:, :, : last - first]
    return found


def _curve(length: int, width: int) -> Tuple[np.ndarray, np.ndarray]:
    """The columns and rows of the grid's cells in the order of the Hilbert curve."""
    positions = np.empty(length, np.int64)
    check(_capi.annulus_hilbert_curve(positions.__array_interface__["data"][0], length, width))
    if width == 0:
        width = next(w for w in range(1, length + 1) if length % w == 0 and w * w >= length)
    return positions % width, positions // width


def _groups(patterns: np.ndarray) -> List[List[int]]:
    """Heads, [heads, ...], with equal patterns together."""
    groups: dict[bytes, List[int]] = {}
    for head, pattern in enumerate(patterns):
        groups.setdefault(pattern.tobytes(), []).append(head)
    return list(groups.values())


def _title(branch: Branch) -> str:
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
    """See Config.plot()."""
    length, heads = integer("length", length, 32), integer("heads", heads, 32)
    if not 1 <= length <= _MOST_POSITIONS:
        raise ArgumentError(f"length is {length}; it must be from 1 to {_MOST_POSITIONS}, what a picture has room for")
    if heads < 1:
        raise ArgumentError(f"heads is {heads}; it must be at least 1")
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError(f"Config.plot() needs matplotlib (pip install matplotlib): {error}") from error

    branches = config.branches
    columns = [counts(config.replace(branches=[branch]), length, heads) for branch in branches]
    titles = [_title(branch) for branch in branches]
    if len(branches) > 1:
        columns.append(counts(config, length, heads))
        titles.append("all" if config.key_rule == "each_branch" else "all, each key once")
    groups = _groups(np.stack(columns, axis=1))
    curves = [i for i, branch in enumerate(branches) if branch.order == "hilbert"]

    rows = len(groups) + bool(curves)
    figure, axes = pyplot.subplots(
        rows, len(columns), squeeze=False, figsize=(3 * len(columns), 3 * rows + 0.4), layout="constrained"
    )
    for row, group in zip(axes, groups):
        for axis, column, title in zip(row, columns, titles):
            most = max(int(column.max()), 1)
            image = axis.imshow(column[group[0]], cmap="Greys", vmin=0, vmax=most, interpolation="nearest")
            axis.set_title(title)
            axis.set_xlabel("key")
            if most > 1:
                figure.colorbar(image, ax=axis, label="times", ticks=range(most + 1), shrink=0.7)
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
