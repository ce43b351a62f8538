# SPDX-License-Identifier: Apache-2.0
"""What a call is given beside its arrays, and checks that need no array's address."""

from __future__ import annotations

from typing import Any, Iterable, NamedTuple, Tuple

from . import _capi
from ._arguments import host_integers, integer, pick
from ._errors import ArgumentError
from ._mistakes import warn

_ADD_FLAGS = {
    "d_q": _capi.ANNULUS_CALL_ADD_D_Q,
    "d_k": _capi.ANNULUS_CALL_ADD_D_K,
    "d_v": _capi.ANNULUS_CALL_ADD_D_V,
}


class CallOptions(NamedTuple):
    """The options of one call. add: the names of the gradients that are added to."""

    query_start: int | None = None
    sequence_starts: list[int] | None = None
    sequence_lengths: list[int] | None = None
    add: Iterable[str] = ()

    def struct(self) -> Any:
        """Makes the C API's annulus_call_options."""
        options = _capi.annulus_call_options()
        for name in self.add:
            options.flags |= pick("a name in add", name, _ADD_FLAGS)
        if self.query_start is not None:
            options.flags |= _capi.ANNULUS_CALL_QUERY_WINDOW
            options.query_start = integer("query_start", self.query_start)
        if self.sequence_lengths is not None:
            options.sequence_lengths = self.sequence_lengths
            options.sequence_count = len(self.sequence_lengths)
        if self.sequence_starts is not None:
            options.sequence_starts = self.sequence_starts
            options.sequence_count = len(self.sequence_starts) - 1
        return options


# The options of most calls, made once.
NO_OPTIONS = CallOptions()


def call_options(
    query_start: Any, sequence_starts: Any, sequence_lengths: Any, add: Iterable[Any] = ()
) -> CallOptions:
    """Makes CallOptions of a caller's arguments. Returns NO_OPTIONS where none is given."""
    if query_start is None and sequence_starts is None and sequence_lengths is None and not add:
        return NO_OPTIONS
    starts = lengths = None
    if sequence_lengths is not None:
        lengths = host_integers("sequence_lengths", sequence_lengths)
        if len(lengths) == 0:
            raise ArgumentError("sequence_lengths is empty; it must have the length of each sequence")
    if sequence_starts is not None:
        starts = host_integers("sequence_starts", sequence_starts)
        if len(starts) < 2:
            raise ArgumentError(
                f"the length of sequence_starts is {len(starts)}; it must have the start of each sequence, and where "
                "the last one ends"
            )
        if lengths is not None and len(starts) != len(lengths) + 1:
            raise ArgumentError(
                f"sequence_starts has {len(starts)} numbers and sequence_lengths {len(lengths)}; it must have one more, "
                "where the last sequence ends"
            )
    return CallOptions(query_start, starts, lengths, add)


def check_rows(query_start: Any, q_rows: int, k_rows: int) -> None:
    """Refuses another number of rows in q than in k, unless query_start says where q begins."""
    if query_start is None and q_rows != k_rows:
        raise ArgumentError(
            f"q has {q_rows} rows and k has {k_rows}; they must have equally many, or q fewer and query_start say "
            "where among k's its first row stands (arrays of [B, heads, N, D] need layout='bhnd')"
        )


_LAYOUTS = {"bnhd": "bnhd", "bhnd": "bhnd"}
# More heads than any model has. A larger number on the axis of heads is probably the number of positions.
_MANY_HEADS = 128


def check_layout(layout: Any, k: Any) -> None:
    """Refuses unknown layouts. Without a layout, warns if the shape of k looks like [B, heads, N, D]."""
    if layout is not None:
        pick("layout", layout, _LAYOUTS)
        return
    shape: Tuple[int, ...] = tuple(getattr(k, "shape", ()))
    if len(shape) in (3, 4) and shape[-2] > _MANY_HEADS and shape[-2] > shape[-3]:
        warn(
            f"k of shape {list(shape)} is taken for {shape[-3]} positions with {shape[-2]} heads; where it is [B, "
            "heads, N, D], as scaled_dot_product_attention() has it, say layout='bhnd', else layout='bnhd'"
        )
