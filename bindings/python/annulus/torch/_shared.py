# SPDX-License-Identifier: Apache-2.0
"""One slide shared by several ranks: each has a part of the rows while its encoder works."""

from __future__ import annotations

import contextlib
import weakref
from typing import Any, Dict, Iterator, List, Tuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from .._errors import ArgumentError
from ._encoder import map_rows, rows_of_input


class SharedForward:
    """The forward() of an encoder whose rows are shared out over the ranks of a process group.

    Every rank calls it with all rows and gets the results of all rows. The ranks have the same parameters and the same
    input, so all of the model but the encoder computes the same on each rank. Gradients of all parameters are those of
    one rank: the encoder's are summed over the ranks.
    """

    def __init__(self, encoder: nn.Module, group: Any) -> None:
        self.encoder = encoder
        self.group = group
        self.inner = encoder.__dict__.get("forward")
        self.calls = 0
        self._summed: Dict[int, Tuple[weakref.ref, Any]] = {}
        encoder.__dict__["forward"] = self

    def remove(self) -> None:
        """Gives the encoder back the forward() that it had."""
        if self.inner is None:
            del self.encoder.__dict__["forward"]
        else:
            self.encoder.__dict__["forward"] = self.inner
        for _, hook in self._summed.values():
            hook.remove()
        self._summed = {}

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        inner = self.inner or type(self.encoder).forward.__get__(self.encoder)
        rows = rows_of_input(arguments, keywords, self.encoder)
        batch, length = rows.shape[:2]
        parts = self._parts(rows)
        self._sum_gradients()
        arguments, keywords = map_rows(
            (arguments, keywords), (batch, length), lambda tensor: _Cut.apply(tensor, self.group, parts)
        )
        own = parts.own
        with self._own_random_numbers(rows.device):
            result = inner(*arguments, **keywords)
        return map_rows(result, (batch, own), lambda tensor: _Join.apply(tensor, self.group, parts))

    def _parts(self, rows: Tensor) -> _Parts:
        """Returns the ranks' parts of the rows. Refuses ranks that have different slides."""
        import torch.distributed as dist

        shape = torch.tensor(rows.shape, device=rows.device)
        shapes = [torch.empty_like(shape) for _ in range(dist.get_world_size(self.group))]
        dist.all_gather(shapes, shape, group=self.group)
        said = [tuple(one.tolist()) for one in shapes]
        for rank, theirs in enumerate(said):
            if theirs != said[0]:
                raise ArgumentError(
                    f"rank 0 calls the encoder with rows of shape {list(said[0])} and rank {rank} with {list(theirs)}; "
                    "all ranks must call the model with the same whole slide"
                )
        return _Parts(rows.shape[1], len(said), dist.get_rank(self.group))

    def _sum_gradients(self) -> None:
        """Has the gradients of the encoder's parameters summed, also of those that were added since the last call."""
        import torch.distributed as dist

        def summed(gradient: Tensor) -> Tensor:
            total = gradient.clone()
            dist.all_reduce(total, group=self.group)
            return total

        for parameter in self.encoder.parameters():
            known = self._summed.get(id(parameter))
            if parameter.requires_grad and (known is None or known[0]() is not parameter):
                self._summed[id(parameter)] = weakref.ref(parameter), parameter.register_hook(summed)

    @contextlib.contextmanager
    def _own_random_numbers(self, device: torch.device) -> Iterator[None]:
        """Draws other random numbers on each rank, for dropout. Afterwards all ranks go on with the same numbers."""
        import torch.distributed as dist

        if not self.encoder.training:
            yield
            return
        self.calls += 1
        seed = torch.initial_seed() + self.calls * 1000003 + dist.get_rank(self.group)
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.default_generator.manual_seed(seed % 2**63)
            if device.type == "cuda":
                torch.cuda.manual_seed(seed % 2**63)
            yield


class _Parts:
    """The rows that each rank has: consecutive ones, whose numbers differ by 1 at most."""

    def __init__(self, length: int, ranks: int, rank: int) -> None:
        self.counts = [length // ranks + (one < length % ranks) for one in range(ranks)]
        self.start = sum(self.counts[:rank])
        self.own = self.counts[rank]


def _cut(whole: Tensor, parts: _Parts) -> Tensor:
    return whole.narrow(1, parts.start, parts.own).contiguous()


def _join(own: Tensor, group: Any, parts: _Parts) -> Tensor:
    """Returns the rows [B, N, ...] of all ranks."""
    import torch.distributed as dist

    padded = own.new_zeros((own.shape[0], max(parts.counts), *own.shape[2:]))
    padded.narrow(1, 0, parts.own).copy_(own)
    found: List[Tensor] = [torch.empty_like(padded) for _ in parts.counts]
    # As bytes, since not every backend knows every dtype.
    dist.all_gather([one.view(torch.uint8) for one in found], padded.view(torch.uint8), group=group)
    return torch.cat([one.narrow(1, 0, count) for one, count in zip(found, parts.counts)], 1)


class _Cut(torch.autograd.Function):
    """Returns this rank's rows. Its gradient is that of all ranks' rows, so what comes before needs no sum."""

    @staticmethod
    def forward(ctx: Any, whole: Tensor, group: Any, parts: _Parts) -> Tensor:
        ctx.group, ctx.parts = group, parts
        return _cut(whole, parts)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tuple[Tensor, None, None]:
        return _join(gradient.contiguous(), ctx.group, ctx.parts), None, None


class _Join(torch.autograd.Function):
    """Returns the rows of all ranks. All ranks compute one loss of them, so the gradient is that of this rank's rows."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, group: Any, parts: _Parts) -> Tensor:
        ctx.parts = parts
        return _join(own.contiguous(), group, parts)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tuple[Tensor, None, None]:
        return _cut(gradient, ctx.parts), None, None
