# SPDX-License-Identifier: Apache-2.0
"""One slide shared by several ranks: each has a part of the rows while its encoder works."""

from __future__ import annotations

import contextlib
import weakref
from typing import Any, Dict, Iterator, Tuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from .._errors import ArgumentError
from .._shards import Shards
from ._encoder import map_rows, rows_of_input
from ._gathered import gather_rows


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
        import torch.distributed as dist

        inner = self.inner or type(self.encoder).forward.__get__(self.encoder)
        rows = rows_of_input(arguments, keywords, self.encoder)
        batch, length = rows.shape[:2]
        shards = self._shards(rows)
        self._sum_gradients()
        arguments, keywords = map_rows(
            (arguments, keywords), (batch, length), lambda tensor: _Cut.apply(tensor, self.group, shards)
        )
        with self._own_random_numbers(rows.device):
            result = inner(*arguments, **keywords)
        own_rows = shards.rows(dist.get_rank(self.group))
        return map_rows(result, (batch, own_rows), lambda tensor: _Join.apply(tensor, self.group, shards))

    def _shards(self, rows: Tensor) -> Shards:
        """Returns the shards of the rows. Refuses ranks that have different slides."""
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
        return Shards.even(rows.shape[1], len(said))

    def _sum_gradients(self) -> None:
        """Sums the gradients of the encoder's parameters over the ranks. New parameters since the last call are included."""
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


def _cut(whole: Tensor, group: Any, shards: Shards) -> Tensor:
    """Returns this rank's rows of a tensor [B, N, ...]."""
    import torch.distributed as dist

    return shards.cut(whole, dist.get_rank(group)).contiguous()


class _Cut(torch.autograd.Function):
    """Returns this rank's rows. The gradient has the rows of all ranks, so what comes before the encoder needs no sum."""

    @staticmethod
    def forward(ctx: Any, whole: Tensor, group: Any, shards: Shards) -> Tensor:
        ctx.group, ctx.shards = group, shards
        return _cut(whole, group, shards)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tuple[Tensor, None, None]:
        return gather_rows(gradient, ctx.group, ctx.shards, 1), None, None


class _Join(torch.autograd.Function):
    """Returns the rows of all ranks. All ranks compute one loss from them, so the gradient has only this rank's rows."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, group: Any, shards: Shards) -> Tensor:
        ctx.group, ctx.shards = group, shards
        return gather_rows(own, group, shards, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tuple[Tensor, None, None]:
        return _cut(gradient, ctx.group, ctx.shards), None, None
