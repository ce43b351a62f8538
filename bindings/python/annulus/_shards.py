# SPDX-License-Identifier: Apache-2.0
"""Which rank holds which part of a sequence; cutting arrays into these parts, and joining them."""

from __future__ import annotations

from typing import Any, Optional, Sequence, Tuple, Union

from . import _capi, _estimates
from ._arguments import host_integers, integer, integers
from ._arrays import CPU, library_of
from ._config import Config
from ._errors import ArgumentError
from ._handle import ContextHandle


class Shards:
    """A sequence cut into consecutive shards, each held by a rank.

    lengths: how many positions each shard has.
    owners: the rank of each shard; None: shard i is rank i's.

    A rank with several shards has their rows one behind the other in its arrays, in the order of their positions.
    balanced() finds shards that give every rank the same amount of work.
    """

    def __init__(self, lengths: Sequence[int], owners: Optional[Sequence[int]] = None) -> None:
        self.lengths: Tuple[int, ...] = tuple(integers("lengths", lengths))
        self.owners: Tuple[int, ...] = (
            tuple(range(len(self.lengths))) if owners is None else tuple(integers("owners", owners, 32))
        )
        if len(self.owners) != len(self.lengths):
            raise ArgumentError(f"owners has {len(self.owners)} ranks; there are {len(self.lengths)} lengths")
        for name, values in (("lengths", self.lengths), ("owners", self.owners)):
            for i, value in enumerate(values):
                if value < 0:
                    raise ArgumentError(f"{name}[{i}] is {value}; it must be at least 0")

    @classmethod
    def even(cls, length: int, ranks: int) -> Shards:
        """Makes one shard for each rank. Lengths differ by at most 1; the longer shards come first."""
        return cls(_even(*_checked(length, ranks)))

    @classmethod
    def zigzag(cls, length: int, ranks: int) -> Shards:
        """Makes two shards for each of the P ranks: rank p holds shards p and 2P - 1 - p of 2P even() shards."""
        length, ranks = _checked(length, ranks)
        lengths = _even(length, 2 * ranks)
        return cls(lengths, [min(i, len(lengths) - 1 - i) for i in range(len(lengths))])

    @classmethod
    def balanced(
        cls,
        config: Config,
        length: int,
        ranks: int,
        heads: int = 1,
        *,
        sequence_starts: Any = None,
        sequence_lengths: Any = None,
    ) -> Shards:
        """Finds shards with which the busiest rank has least to do. The ranks' numbers of rows differ by at most 1.

        Takes even() shards if no others are better, as without a causal mask; zigzag() shards, as under a causal mask
        over long segments; or, for packed sequences, shards that keep sequences whole and cut few of them. Counts the
        pairs of queries and keys that each rank computes, and the rows and messages that it receives.

        sequence_starts, sequence_lengths: the sequences that the rows consist of, as Context.forward() takes them.
        heads: the number of query heads, for configs whose branches differ by head.
        """
        config = config if isinstance(config, Config) else Config(config)
        handle = ContextHandle(config._handle, config._reach, CPU)
        if sequence_lengths is not None:
            sequence_lengths = host_integers("sequence_lengths", sequence_lengths)
        is_padded = sequence_starts is None and sequence_lengths is not None
        return cls(
            *_estimates.balance_shards(
                handle,
                length,
                heads,
                integer("ranks", ranks, 32),
                batch=len(sequence_lengths) if is_padded else 1,
                sequence_starts=sequence_starts,
                sequence_lengths=sequence_lengths,
            )
        )

    @property
    def length(self) -> int:
        """The number of positions in the sequence."""
        return sum(self.lengths)

    @property
    def is_contiguous(self) -> bool:
        """Whether shard i is rank i's, for every i."""
        return self.owners == tuple(range(len(self.owners)))

    def slices(self, rank: int) -> list[slice]:
        """Returns the positions of each of a rank's shards; an empty list for a rank without shards."""
        if integer("rank", rank, 32) < 0:
            raise ArgumentError(f"rank is {rank}; it must be at least 0")
        found, start = [], 0
        for length, owner in zip(self.lengths, self.owners):
            if owner == rank:
                found.append(slice(start, start + length))
            start += length
        return found

    def rows(self, rank: int) -> int:
        """Returns how many positions a rank holds."""
        return sum(part.stop - part.start for part in self.slices(rank))

    def cut(self, array: Any, rank: int, axis: int = 1) -> Any:
        """Returns a rank's rows of an array of the whole sequence. axis: the axis of positions (2 for LSE)."""
        if (rows := _rows_along("array", array, axis)) != self.length:
            raise ArgumentError(f"array has {rows} rows along axis {axis}; the shards have {self.length}")
        parts = [array[_along(array, axis, part)] for part in self.slices(rank)]
        if not parts:
            return array[_along(array, axis, slice(0, 0))]
        return parts[0] if len(parts) == 1 else _concatenate(parts, axis)

    def join(self, parts: Sequence[Any], axis: int = 1) -> Any:
        """Joins the arrays of all ranks, in the order of the ranks, to one of the whole sequence: undoes cut()."""
        for rank, part in enumerate(parts):
            if (rows := _rows_along(f"parts[{rank}]", part, axis)) != self.rows(rank):
                raise ArgumentError(
                    f"parts[{rank}] has {rows} rows along axis {axis}; rank {rank} holds {self.rows(rank)}"
                )
        if self.owners and max(self.owners) >= len(parts):
            raise ArgumentError(f"parts has {len(parts)} arrays; there is a shard of rank {max(self.owners)}")
        next_row = [0] * len(parts)
        pieces = []
        for length, owner in zip(self.lengths, self.owners):
            start = next_row[owner]
            next_row[owner] += length
            pieces.append(parts[owner][_along(parts[owner], axis, slice(start, start + length))])
        return _concatenate(pieces, axis)

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, Shards) and (self.lengths, self.owners) == (other.lengths, other.owners)

    def __hash__(self) -> int:
        return hash((self.lengths, self.owners))

    def __repr__(self) -> str:
        owners = "" if self.is_contiguous else f", owners={list(self.owners)}"
        return f"annulus.Shards({list(self.lengths)}{owners})"

    def _struct(self, ranks: int) -> Any:
        """Makes the C API's annulus_shards."""
        if self.is_contiguous and len(self.lengths) != ranks:
            raise ArgumentError(f"shards has {len(self.lengths)} lengths; there are {ranks} ranks")
        owners = None if self.is_contiguous else list(self.owners)
        return _capi.annulus_shards(ranks, len(self.lengths), list(self.lengths), owners)


def shards_of(value: Union[Shards, Sequence[int], None]) -> Optional[Shards]:
    """Returns Shards of a caller's argument: Shards, the length of each rank's shard, or None."""
    return value if value is None or isinstance(value, Shards) else Shards(integers("shards", value))


def _checked(length: int, ranks: int) -> Tuple[int, int]:
    length, ranks = integer("length", length), integer("ranks", ranks, 32)
    if length < 0 or ranks < 1:
        raise ArgumentError(f"length is {length} and ranks {ranks}; they must be at least 0 and 1")
    return length, ranks


def _even(length: int, ranks: int) -> list[int]:
    return [length // ranks + (i < length % ranks) for i in range(ranks)]


def _rows_along(name: str, array: Any, axis: int) -> int:
    dims = len(array.shape)
    if not -dims <= integer("axis", axis) < dims:
        raise ArgumentError(f"axis is {axis}; {name} has {dims} dimensions")
    return array.shape[axis]


def _along(array: Any, axis: int, part: slice) -> Tuple[slice, ...]:
    return (slice(None),) * (axis % len(array.shape)) + (part,)


def _concatenate(arrays: Sequence[Any], axis: int) -> Any:
    """Joins arrays by a function of their own library."""
    library = library_of(arrays[0])
    return library.cat(list(arrays), axis) if library.__name__ == "torch" else library.concatenate(arrays, axis)
