# SPDX-License-Identifier: Apache-2.0
"""The merge of results over different keys as a differentiable function of JAX."""

from __future__ import annotations

from typing import Any, Iterable, Tuple

import jax
import jax.numpy as jnp

from .._arrays import check_dtype, lse_dtype
from .._errors import ArgumentError
from .._passes import pairs_of
from . import _calls
from ._attention import check_array, with_batch


def _as_row_factor(statistic: Any) -> Any:
    """Returns a statistic [B, H, N] as [B, N, H, 1], a factor on rows [B, N, H, D]."""
    return statistic.swapaxes(-1, -2)[..., None]


def _sum_of_rows(rows: Any) -> Any:
    """Sums rows [B, N, H, D] over D. Returns [B, H, N]."""
    return rows.sum(-1).swapaxes(-1, -2)


@jax.custom_vjp
def _merge(outs: Any, lses: Any) -> Any:
    return _calls.merge(*outs, *lses, call=_calls.MERGE_CALL)


def _save(outs: Any, lses: Any) -> Any:
    merged = _merge(outs, lses)
    return merged, (outs, lses, merged)


def _gradients(saved: Any, d_merged: Any) -> Any:
    """Returns the gradients of the parts. With w_i = exp(lse_i - lse), which depends on the inputs,

    d_out_i = w_i d_out        d_lse_i = w_i (out_i . d_out - out . d_out + d_lse)
    """
    outs, lses, (out, lse) = saved
    d_out, d_lse = d_merged[0].astype(lse.dtype), d_merged[1]
    d_sum = d_lse - _sum_of_rows(out.astype(lse.dtype) * d_out)
    d_outs, d_lses = [], []
    for part, part_lse in zip(outs, lses):
        # Where a part counts for nothing, its out may be NaN, and part_lse - lse would be NaN.
        counts = part_lse > -jnp.inf
        rows = jnp.where(_as_row_factor(counts), part.astype(lse.dtype), 0)
        weight = jnp.where(counts, jnp.exp(jnp.where(counts, part_lse, 0) - jnp.where(counts, lse, 0)), 0)
        d_outs.append((_as_row_factor(weight) * d_out).astype(part.dtype))
        d_lses.append(weight * (_sum_of_rows(rows * d_out) + jnp.where(counts, d_sum, 0)))
    return tuple(d_outs), tuple(d_lses)


_merge.defvjp(_save, _gradients)


def _check_part(i: int, out: Any, lse: Any, first: Any) -> None:
    check_dtype(f"out of parts[{i}]", out.dtype.name)
    if (out.shape, out.dtype) != (first.shape, first.dtype):
        raise ArgumentError(
            f"out of parts[{i}] has shape {list(out.shape)} and dtype {out.dtype.name}; it must have "
            f"{list(first.shape)} and {first.dtype.name}, as out of parts[0]"
        )
    *batch, rows, heads, _ = first.shape
    wanted = (*batch, heads, rows)
    if (lse.shape, lse.dtype.name) != (wanted, lse_dtype(first.dtype.name)):
        raise ArgumentError(
            f"lse of parts[{i}] has shape {list(lse.shape)} and dtype {lse.dtype.name}; it must have {list(wanted)} and "
            f"{lse_dtype(first.dtype.name)}"
        )


def merge(parts: Iterable[Tuple[Any, Any]]) -> Tuple[Any, Any]:
    """Merges results over different keys, for the same queries, into the result of one softmax over all the keys.

        near = attention(q, k, v, [(2048, 1)], return_lse=True)
        far = attention(q, other_k, other_v, [(0, 8)], return_lse=True)
        out, lse = merge([near, far])

    parts: pairs (out [B, Nq, H, D], lse [B, H, Nq]), at most 48. LSE is of natural logarithms, in float32 (float64 for
        float64). If a row's LSE is -inf, the part counts for nothing in that row, whatever its out holds.

    Returns (out, lse). Differentiable in reverse mode with respect to all parts. Gradients reach q, k and v of each part
    through attention() with return_lse.
    """
    pairs = pairs_of(parts)
    for i, (out, lse) in enumerate(pairs):
        check_array(f"out of parts[{i}]", out)
        check_array(f"lse of parts[{i}]", lse, 3)
    pairs = [(jnp.asarray(out), jnp.asarray(lse)) for out, lse in pairs]
    for i, (out, lse) in enumerate(pairs):
        _check_part(i, out, lse, pairs[0][0])
    arrays = [with_batch(out, 4) for out, _ in pairs] + [with_batch(lse, 3) for _, lse in pairs]
    arrays = _calls.placed_alike(arrays)
    out, lse = _merge(tuple(arrays[: len(pairs)]), tuple(arrays[len(pairs) :]))
    return (out[0], lse[0]) if pairs[0][0].ndim == 3 else (out, lse)
