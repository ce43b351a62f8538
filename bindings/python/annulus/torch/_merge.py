# SPDX-License-Identifier: Apache-2.0
"""The merge of results over different keys as a differentiable function of PyTorch."""

from typing import Any, Iterable, List, Tuple

import torch
from torch import Tensor

from .._config import Config
from .._passes import pairs_of
from . import _ranks
from ._functional import _rows, _untraced, check_tensor

_ANY_CONFIG = Config([(0, 1)])  # merging does not look at it


def _as_row_factor(statistic: Tensor) -> Tensor:
    """Returns a statistic [B, H, N] as [B, N, H, 1], a factor on rows [B, N, H, D]."""
    return statistic.transpose(-1, -2).unsqueeze(-1)


def _sum_of_rows(rows: Tensor) -> Tensor:
    """Sums rows [B, N, H, D] over D. Returns [B, H, N]."""
    return rows.sum(-1).transpose(-1, -2)


class _Merge(torch.autograd.Function):
    """The library's merge, with its derivative. With w_i = exp(lse_i - lse), which depends on the inputs,

    d_out_i = w_i d_out        d_lse_i = w_i (out_i . d_out - out . d_out + d_lse)
    """

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: Tensor) -> Tuple[Tensor, Tensor]:
        parts = [(_rows(out), lse) for out, lse in zip(tensors[:count], tensors[count:])]
        with torch.no_grad():
            out, lse = _ranks.context_of(_ANY_CONFIG._text, tensors[0].device, 0).merge(parts)
        ctx.count = count
        ctx.save_for_backward(out, lse, *tensors)
        return out, lse

    @staticmethod
    def backward(ctx: Any, d_out: Tensor, d_lse: Tensor) -> Tuple:
        out, lse, *tensors = ctx.saved_tensors
        d_out = d_out.to(lse.dtype)
        d_sum = d_lse - _sum_of_rows(out.to(lse.dtype) * d_out)
        d_outs: List[Tensor] = []
        d_lses: List[Tensor] = []
        for part, part_lse in zip(tensors[: ctx.count], tensors[ctx.count :]):
            # Where a part counts for nothing, its out may be NaN, and part_lse - lse would be NaN.
            counts = part_lse > -torch.inf
            rows = torch.where(_as_row_factor(counts), part.to(lse.dtype), part.new_zeros((), dtype=lse.dtype))
            difference = torch.where(counts, part_lse, torch.zeros_like(lse)) - torch.where(
                counts, lse, torch.zeros_like(lse)
            )
            weight = torch.where(counts, difference.exp(), torch.zeros_like(lse))
            d_outs.append((_as_row_factor(weight) * d_out).to(part.dtype))
            d_lses.append(weight * (_sum_of_rows(rows * d_out) + torch.where(counts, d_sum, torch.zeros_like(lse))))
        return (None, *d_outs, *d_lses)


_apply = _untraced(_Merge.apply)


def merge(parts: Iterable[Tuple[Tensor, Tensor]]) -> Tuple[Tensor, Tensor]:
    """Merges results over different keys, for the same queries, into the result of one softmax over all the keys.

        near = dilated_attention(q, k, v, [(2048, 1)], return_lse=True)
        far = dilated_attention(q, other_k, other_v, [(0, 8)], return_lse=True)
        out, lse = merge([near, far])

    parts: pairs (out [B, Nq, H, D], lse [B, H, Nq]), at most 48. LSE is of natural logarithms, in float32 (float64 for
        float64). If a row's LSE is -inf, the part counts for nothing in that row, whatever its out holds.

    Returns (out, lse). Differentiable in reverse mode, any number of times, with respect to all parts. Gradients reach
    q, k and v of each part through dilated_attention() with return_lse.
    """
    pairs = pairs_of(parts)
    for i, pair in enumerate(pairs):
        for name, tensor in zip(("out", "lse"), pair):
            check_tensor(f"{name} of parts[{i}]", tensor)
    outs, lses = zip(*pairs)
    return _apply(len(pairs), *outs, *lses)
