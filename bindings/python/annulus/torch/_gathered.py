# SPDX-License-Identifier: Apache-2.0
"""Ranks of a torch.distributed group whose tensors are on CPUs: every rank gathers the keys and values of all ranks.

This is for trying a program of several ranks without GPUs. Results and gradients are those of one rank, but every rank
receives and holds all keys and values. An annulus.Comm over MPI sends only the rows that are attended to.
"""

from typing import Any, Callable, Dict, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .._errors import ArgumentError
from .._shards import Shards, shards_of
from ._ranks import Sequences, check_word, shards_of_word


def gather_rows(own: Tensor, group: Any, shards: Shards, axis: int) -> Tensor:
    """Returns the rows of all ranks along `axis`, in the order of their positions. own: this rank's rows."""
    import torch.distributed as dist

    rows = [shards.rows(rank) for rank in range(dist.get_world_size(group))]
    shape = [*own.shape]
    shape[axis] = max(rows)
    padded = own.new_zeros(shape)
    padded.narrow(axis, 0, own.shape[axis]).copy_(own)
    parts = [torch.empty_like(padded) for _ in rows]
    # As bytes, since not every backend knows every dtype.
    dist.all_gather([part.view(torch.uint8) for part in parts], padded.view(torch.uint8), group=group)
    return shards.join([part.narrow(axis, 0, count) for part, count in zip(parts, rows)], axis)


class _Gather(torch.autograd.Function):
    """Gathers the rows [..., N, heads, D] of all ranks. The gradient is that of the sum of all ranks' losses."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, group: Any, shards: Shards) -> Tensor:
        ctx.group, ctx.shards = group, shards
        return gather_rows(own, group, shards, -3)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_all: Tensor) -> Tuple[Tensor, None, None]:
        import torch.distributed as dist

        total = d_all.to(torch.float64 if d_all.dtype == torch.float64 else torch.float32).contiguous().clone()
        dist.all_reduce(total, group=ctx.group)
        return ctx.shards.cut(total, dist.get_rank(ctx.group), axis=-3).to(d_all.dtype), None, None


def _agreed_shards(tensors: Dict[str, Tensor], group: Any, shards: Any, text: str, sequences: Sequences) -> Shards:
    """Returns the shards of the ranks. The ranks exchange their arguments, so that all raise if one rank's are wrong.

    tensors: q, and then tensors that must have the same number of rows: [..., N, heads, D], or lse [..., heads, N].
    """
    import torch.distributed as dist

    word = shards if isinstance(shards, str) else "gather"
    check_word(word)
    given = None if isinstance(shards, str) else shards_of(shards)
    shapes = [(name, [*tensor.shape], -1 if name == "lse" else -3) for name, tensor in tensors.items()]
    rows = [shape.pop(axis) for _, shape, axis in shapes]
    rest = tuple((name, *shape) for name, shape, _ in shapes)
    dtypes = tuple(str(tensor.dtype) for tensor in tensors.values())
    said: list = [None] * dist.get_world_size(group)
    dist.all_gather_object(said, (rows, (rest, dtypes, repr(given), word, text, *sequences)), group=group)
    for rank, ((q_rows, *other_rows), theirs) in enumerate(said):
        for one, other in zip(said[0][1], theirs):
            if one != other:
                raise ArgumentError(f"rank 0 has {one} where rank {rank} has {other}; they must be the same")
        if any(count != q_rows for count in other_rows):
            names = " and ".join([*tensors][1:])
            raise ArgumentError(
                f"rank {rank} has {q_rows} rows of q and {other_rows} of {names}; they must be equally many"
            )
    lengths = [q_rows for (q_rows, *_), _ in said]
    found = shards_of_word(word, lengths, text, tensors["q"].shape[-2], sequences) if given is None else given
    found._struct(len(said))  # refuses shards for another number of ranks
    for rank, ((q_rows, *_), _) in enumerate(said):
        if q_rows != found.rows(rank):
            raise ArgumentError(f"rank {rank} has {q_rows} rows; its shards have {found.rows(rank)}")
    return found


def attend_gathered(
    attend: Any,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    config: str,
    group: Any,
    shards: Union[Shards, Sequence[int], str, None],
    sequence_starts: Optional[Sequence[int]],
    sequence_lengths: Optional[Sequence[int]],
) -> Tuple[Tensor, Tensor]:
    """Computes (out, lse) for this rank's rows. attend: computes them on one rank. Collective, also its backward."""
    import torch.distributed as dist

    tensors = {"q": q, "k": k, "v": v}
    agreed = _agreed_shards(tensors, group, shards, config, (sequence_starts, sequence_lengths))
    all_k, all_v = _Gather.apply(k, group, agreed), _Gather.apply(v, group, agreed)
    outs, lses, row = [], [], 0
    for window in agreed.slices(dist.get_rank(group)):
        count = window.stop - window.start
        if count == 0:
            continue
        out, lse = attend(
            q.narrow(-3, row, count),
            all_k,
            all_v,
            config,
            window.start,
            sequence_starts=sequence_starts,
            sequence_lengths=sequence_lengths,
        )
        outs.append(out)
        lses.append(lse)
        row += count
    if not outs:  # this rank has no rows, but takes part in the backward of all ranks
        out = q + 0 * (all_k.sum() + all_v.sum())
        lse_dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
        return out, out.sum(-1, dtype=lse_dtype).transpose(-1, -2)
    return torch.cat(outs, -3), torch.cat(lses, -1)


def mass_gathered(
    compute_mass: Callable[..., Tensor],
    q: Tensor,
    k: Tensor,
    config: str,
    lse: Optional[Tensor],
    group: Any,
    shards: Union[Shards, Sequence[int], str, None],
    sequence_starts: Optional[Sequence[int]],
    sequence_lengths: Optional[Sequence[int]],
) -> Tensor:
    """Computes the mass of this rank's keys, over the queries of all ranks. Collective.

    compute_mass: computes the mass on one rank.
    """
    import torch.distributed as dist

    tensors = {"q": q, "k": k} if lse is None else {"q": q, "k": k, "lse": lse}
    agreed = _agreed_shards(tensors, group, shards, config, (sequence_starts, sequence_lengths))
    all_k = _Gather.apply(k, group, agreed)
    sum_dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    total = q.new_zeros((*q.shape[:-3], q.shape[-2], agreed.length), dtype=sum_dtype)
    row, rank = 0, dist.get_rank(group)
    for window in agreed.slices(rank):
        count = window.stop - window.start
        if count:
            part = None if lse is None else lse.narrow(-1, row, count)
            total += compute_mass(
                q.narrow(-3, row, count), all_k, config, part, window.start, sequence_starts, sequence_lengths
            )
        row += count
    dist.all_reduce(total, group=group)
    return agreed.cut(total, rank, axis=-1)
