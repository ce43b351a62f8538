# SPDX-License-Identifier: Apache-2.0
"""Sequence parallelism: communicators of torch.distributed's process groups, and the contexts that use them.

Operators of PyTorch take numbers and strings only. So they get a number for a communicator with its shards; 0 is none.
"""

from __future__ import annotations

import functools
import itertools
import os
import weakref
from typing import Any, List, Optional, Sequence, Tuple, Union

import torch

from .._arguments import flag
from .._cache import cached_context
from .._comm import Comm
from .._config import from_text
from .._context import Context
from .._errors import ArgumentError, UnsupportedError
from .._shards import Shards, shards_of


class Ranks:
    """A communicator, the shards of its ranks, and a context for each config."""

    def __init__(self, comm: Comm, shards: Optional[Shards]) -> None:
        self.comm = comm
        self.shards = shards
        self.contexts: dict = {}
        self.number = next(_numbers)

    def context(self, text: str, device: torch.device) -> Context:
        key = text, device, _threads(device)
        if key not in self.contexts:
            self.contexts[key] = Context(
                from_text(text), device, threads=key[2], comm=self.comm, shards=self.shards
            )
        return self.contexts[key]


def _threads(device: torch.device) -> int:
    """Returns how many CPU threads a call may use: PyTorch's number; 0, the library's default, if the environment says
    how many."""
    return 0 if device.type != "cpu" or "ANNULUS_NUM_THREADS" in os.environ else min(torch.get_num_threads(), 1024)


_numbers = itertools.count(1)
_by_number: weakref.WeakValueDictionary = weakref.WeakValueDictionary()
_by_group: dict = {}
_only_nccl: set = set()  # the groups that reconnect() was told so of


def is_group(group: Any) -> bool:
    """Returns whether `group` is a process group of torch.distributed."""
    if group is None or isinstance(group, Comm):
        return False
    import torch.distributed as dist

    return dist.is_available() and isinstance(group, dist.ProcessGroup)


def _comm_of_group(group: Any, device: torch.device) -> Comm:
    """Returns the NCCL communicator over a process group's ranks. Makes it at the first call for a device, and again
    after reconnect(); that is collective."""
    import torch.distributed as dist

    if not is_group(group):
        raise ArgumentError(
            f"process_group is {group!r}; it must be a group of torch.distributed with this rank in it, or an "
            "annulus.Comm"
        )
    key = group, device
    if key not in _by_group:
        # The group only sends an id of 128 bytes, so its backend may be gloo or NCCL.
        message: list = [Comm.nccl_id() if dist.get_rank(group) == 0 else None]
        first = dist.get_global_rank(group, 0) if hasattr(dist, "get_global_rank") else 0
        dist.broadcast_object_list(message, src=first, group=group)
        _by_group[key] = Comm.from_nccl_id(
            message[0],
            dist.get_world_size(group),
            dist.get_rank(group),
            device.index,
            only_nccl=group in _only_nccl,
        )
    return _by_group[key]


def reconnect(process_group: Any, *, only_nccl: Optional[bool] = None) -> None:
    """Drops the communicators that annulus has made for a process group; the next call makes a new one.

    After a CommError of any rank, every rank of the group calls it before the next dilated attention over the group.
    That call is collective and connects the ranks again. reconnect() itself waits for no rank. It breaks the old
    communicator, so that no rank waits in it, and earlier outputs lose their gradients. After any other error it is not
    needed, but does no harm: DeclinedError and ArgumentError leave the communicator usable.

    only_nccl: whether the group's communicators from now on use NCCL alone, as annulus.Comm takes it; None: as before,
    at first not. So it may be called before the first dilated attention over the group, too.
    """
    import torch.distributed as dist

    if not isinstance(process_group, dist.ProcessGroup):
        raise ArgumentError(f"process_group is {process_group!r}; it must be a group of torch.distributed")
    if only_nccl is not None and flag("only_nccl", only_nccl):
        _only_nccl.add(process_group)
    elif only_nccl is not None:
        _only_nccl.discard(process_group)
    for key in [key for key in _by_group if key[0] == process_group]:
        comm = _by_group.pop(key)
        comm.abort()
        # The communicator and its contexts keep one another alive.
        for ranks in comm.__dict__.pop("_ranks", {}).values():
            ranks.contexts.clear()


def _gathered_lengths(group: Any, length: int) -> Tuple[int, ...]:
    """Gathers the number of rows of each rank of a group. Collective."""
    import torch.distributed as dist

    if isinstance(group, Comm):
        raise ArgumentError("a word for shards needs a process group; with annulus.Comm give annulus.Shards or lengths")
    lengths: list = [None] * dist.get_world_size(group)
    dist.all_gather_object(lengths, length, group=group)
    return tuple(lengths)


# sequence_starts and sequence_lengths of a call.
Sequences = Tuple[Optional[Sequence[int]], Optional[Sequence[int]]]

# How many shards are remembered, the last ones used. With packed sequences each step of a training may have others.
_MAX_SHARDS = 256


@functools.lru_cache(maxsize=_MAX_SHARDS)
def _balanced(text: str, length: int, ranks: int, heads: int, sequences: Sequences) -> Shards:
    starts, lengths = sequences
    return Shards.balanced(from_text(text), length, ranks, heads, sequence_starts=starts, sequence_lengths=lengths)


def check_word(shards: str) -> None:
    """Refuses words that shards_of_word() does not know."""
    if shards not in ("balanced", "gather"):
        raise ArgumentError(
            f"shards is {shards!r}; it must be None, 'balanced', 'gather', annulus.Shards or the ranks' lengths"
        )


def shards_of_word(word: str, lengths: Sequence[int], text: str, heads: int, sequences: Sequences) -> Shards:
    """Returns the shards for a word: "gather", one for each rank; "balanced", those of annulus.Shards.balanced().

    lengths: the number of rows of each rank. text: the config's. sequences: the call's, which "balanced" goes by.
    """
    if word == "gather":
        return Shards(lengths)
    starts, counts = (None if numbers is None else tuple(numbers) for numbers in sequences)
    found = _balanced(text, sum(lengths), len(lengths), heads, (starts, counts))
    for rank, rows in enumerate(lengths):
        if rows != found.rows(rank):
            raise ArgumentError(
                f"rank {rank} has {rows} of {sum(lengths)} rows; with shards='balanced' it must have the "
                f"{found.rows(rank)} that annulus.Shards.balanced() gives it"
            )
    return found


def number_of(
    group: Any, shards: Union[Shards, Sequence[int], str, None], q: torch.Tensor, text: str, sequences: Sequences
) -> int:
    """Returns the number that operators get for the ranks of a process group or an annulus.Comm. text: the config's.

    The number is valid until the communicator is gone, or has had _MAX_SHARDS other shards since.
    """
    if isinstance(shards, str):
        check_word(shards)
    comm = group if isinstance(group, Comm) else _comm_of_group(group, q.device)
    if isinstance(shards, str):
        lengths = _gathered_lengths(group, q.shape[-3])
        agreed: Optional[Shards] = shards_of_word(shards, lengths, text, q.shape[-2], sequences)
    else:
        agreed = shards_of(shards)
    # A communicator keeps its Ranks alive, one for each of the last shards. The last one used stands last.
    known = comm.__dict__.setdefault("_ranks", {})
    ranks = known.pop(agreed) if agreed in known else Ranks(comm, agreed)
    known[agreed] = _by_number[ranks.number] = ranks
    if len(known) > _MAX_SHARDS:
        del known[next(iter(known))]
    return ranks.number


def rows_of(ranks: int) -> Tuple[int, List[slice]]:
    """Returns the length of the sequence and this rank's positions. ranks: a number of number_of()."""
    found = _by_number[ranks]
    if found.shards is None:
        raise UnsupportedError(
            "the FLOPs of a rank are not known without shards: say shards=annulus.Shards(...), the ranks' lengths, "
            "'balanced' or 'gather' beside process_group"
        )
    return found.shards.length, found.shards.slices(found.comm.rank)


def context_of(text: str, device: torch.device, ranks: int) -> Context:
    """Returns the context for a config's text and a device. ranks: a number of number_of(), or 0."""
    if ranks == 0:
        place = ("cpu", 0) if device.type == "cpu" else ("cuda", device.index)
        return cached_context(from_text(text), place, _threads(device))
    try:
        return _by_number[ranks].context(text, device)
    except KeyError:
        raise ArgumentError("the communicator of this computation is gone; keep it until backward is done") from None
