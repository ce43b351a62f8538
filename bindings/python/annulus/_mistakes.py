# SPDX-License-Identifier: Apache-2.0
"""Warnings about calls that are legal but probably a mistake."""

from __future__ import annotations

import functools
import math
import sys
import warnings
from typing import TYPE_CHECKING, Any, Sequence, Tuple

if TYPE_CHECKING:
    from ._config import Branch


def warn(message: str, through: Tuple[str, ...] = ()) -> None:
    """Warns, and names the innermost line outside this package, and the packages `through`, as the place."""
    packages = (__name__.partition(".")[0], *through)
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in packages:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)


class Reach:
    """Which heads of a config's branches have keys."""

    def __init__(self, branches: Sequence[Branch], head_shard: Tuple[int, int] | None) -> None:
        self._branches: Tuple[Branch, ...] = tuple(branches)
        self._head_shard = head_shard
        # Longer sequences have no more residues and no more global positions that matter.
        self._enough = max(branch.dilation + branch.first_global for branch in branches)
        # In a sequence of this length or longer, every head has a key, by a branch that serves all heads.
        self._always_from = min((_length_for_all_heads(branch) for branch in branches), default=math.inf)
        self._count = functools.lru_cache(maxsize=64)(self._count_heads_without_keys)

    def heads_without_keys(self, heads: int, length: float) -> int:
        """Returns how many heads attend to no key, in any row of a sequence of `length` positions."""
        if length >= self._always_from:
            return 0
        return self._count(heads, min(length, self._enough))

    def _count_heads_without_keys(self, heads: int, length: float) -> int:
        first, total = self._head_shard or (0, heads)
        return sum(
            not any(_has_keys(branch, head, total, length) for branch in self._branches)
            for head in range(first, first + heads)
        )


def _length_for_all_heads(branch: Branch) -> float:
    """Returns the length of the sequence from which on the branch gives each head a key; infinity if there is none."""
    if branch.heads is not None or 0 < branch.segment_length < branch.dilation:
        return math.inf
    return branch.dilation + branch.first_global


def _has_keys(branch: Branch, head: int, heads: int, length: float) -> bool:
    """Returns whether a branch gives a head any key: whether a segment has a position of the head's residue."""
    first, count = branch.heads or (0, 0)
    count = count or heads - first
    place = head - first
    if not 0 <= place < count:
        return False
    if branch.kind == "global":
        return branch.first_global < length
    if branch.phase == "block":
        residue = place // -(-count // branch.dilation)
    else:
        residue = (place if branch.phase == "interleave" else int(branch.phase)) % branch.dilation
    return branch.query == "residue" or residue < min(branch.segment_length or length, length)


def warn_of_exchanged_numbers(branches: Sequence[Branch]) -> None:
    """Warns if no segment of any branch has two positions of one residue."""
    if all(0 < branch.segment_length < branch.dilation for branch in branches):
        pairs = [(branch.segment_length, branch.dilation) for branch in branches]
        warn(
            f"every branch (segment length, dilation) of {pairs} has a dilation above its segment length, so that no "
            "query attends to more than one key; were the two exchanged? Segment lengths come first here, in "
            "dilated_attention_pytorch's MultiheadDilatedAttention dilation rates do"
        )


def warn_of_call(reach: Reach, heads: int, rows: int, starts: Any, has_ranks: bool) -> None:
    """Warns if whole heads or rows of a call's result are zeros.

    rows: the number of rows of k, which with several ranks (has_ranks) is not that of the sequence. starts:
    sequence_starts, or None.
    """
    if empty := reach.heads_without_keys(heads, math.inf if has_ranks else rows):
        warn(
            f"{empty} of {heads} heads attend to no key in any row, and their out is 0: their residues lie beyond the "
            "segments of all branches that they have"
        )
    if starts is not None and not has_ranks and starts[-1] < rows:
        warn(
            f"sequence_starts ends with {starts[-1]} and k has {rows} rows: rows {starts[-1]} to {rows - 1} belong to no "
            "sequence, and their out is 0; its last number is where the last sequence ends"
        )
