# SPDX-License-Identifier: Apache-2.0
"""Dilated attention for JAX: a function that works under jax.grad, jax.jit and jax.vmap.

    from annulus.jax import attention

    loss = lambda q, k, v: attention(q, k, v, [(2048, 1), (8192, 4)], causal=True).sum()
    d_q, d_k, d_v = jax.jit(jax.grad(loss, (0, 1, 2)))(q, k, v)

The function is a callback of JAX: it computes on the host's CPU, and JAX copies arrays on a GPU there and back.
annulus.attention() takes concrete arrays of JAX and computes on their device, without a gradient. Needs JAX 0.4.34 or
newer.
"""

from __future__ import annotations

import functools
from typing import Any, Iterable, Literal, NamedTuple, NoReturn, Tuple, Union, overload

import jax
import numpy as np

from ._arguments import host_integers, integer
from ._arrays import CPU, check_dtype, check_ndim, exchanged, lse_dtype
from ._cache import cached_config, cached_context, given
from ._call_options import check_layout, check_rows
from ._config import BranchLike, Config, from_text
from ._errors import ArgumentError, UnsupportedError
from ._unknown import refuse
from .types import Engine, KeyRule, Layout, Padding

__all__ = ["attention"]


class _Call(NamedTuple):
    """The arguments of a call beside its arrays: constants of the function that JAX compiles."""

    config: str
    query_start: int | None
    sequence_starts: Tuple[int, ...] | None
    sequence_lengths: Tuple[int, ...] | None
    layout: Layout

    def options(self, batch: int) -> dict[str, Any]:
        """Returns the options of Context's calls for `batch` batch entries, which jax.vmap multiplies."""
        lengths = self.sequence_lengths
        if lengths and self.sequence_starts is None:
            lengths *= batch // len(lengths)
        return dict(
            query_start=self.query_start,
            sequence_starts=self.sequence_starts,
            sequence_lengths=lengths,
            layout=self.layout,
        )


def _folded(array: Any, axes: int) -> np.ndarray:
    """Returns the array with all axes before the last `axes` folded into one, B. jax.vmap adds such axes."""
    array = np.asarray(array)
    return array.reshape(-1, *array.shape[array.ndim - axes :])


def _forward_on_host(call: _Call, q: Any, k: Any, v: Any) -> Tuple[np.ndarray, np.ndarray]:
    rows = [_folded(array, 3) for array in (q, k, v)]
    out, lse = cached_context(from_text(call.config), CPU).forward(*rows, **call.options(len(rows[0])))
    return out.reshape(q.shape), lse.reshape(*q.shape[:-3], *lse.shape[1:])


def _backward_on_host(
    call: _Call, q: Any, k: Any, v: Any, out: Any, lse: Any, d_out: Any, d_lse: Any
) -> Tuple[np.ndarray, ...]:
    q_rows, k_rows, v_rows, out_rows, d_out_rows = (_folded(array, 3) for array in (q, k, v, out, d_out))
    statistics, d_statistics = _folded(lse, 2), _folded(d_lse, 2)
    gradients = cached_context(from_text(call.config), CPU).backward(
        q_rows, k_rows, v_rows, out_rows, statistics, d_out_rows, d_lse=d_statistics, **call.options(len(q_rows))
    )
    return tuple(gradient.reshape(array.shape) for gradient, array in zip(gradients, (q, k, v)))


def _like(array: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(array.shape, array.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _attention(q: Any, k: Any, v: Any, call: _Call) -> Any:
    shape = exchanged(q.shape) if call.layout == "bnhd" else q.shape
    results = _like(q), jax.ShapeDtypeStruct(shape[:-1], lse_dtype(q.dtype.name))
    return jax.pure_callback(functools.partial(_forward_on_host, call), results, q, k, v, vmap_method="broadcast_all")


def _save(q: Any, k: Any, v: Any, call: _Call) -> Any:
    out, lse = _attention(q, k, v, call)
    return (out, lse), (q, k, v, out, lse)


def _gradients(call: _Call, saved: Any, d_results: Any) -> Any:
    results = tuple(_like(array) for array in saved[:3])
    return jax.pure_callback(
        functools.partial(_backward_on_host, call), results, *saved, *d_results, vmap_method="broadcast_all"
    )


_attention.defvjp(_save, _gradients)


def _refuse_traced(name: str, values: Any) -> None:
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree_util.tree_leaves(values)):
        raise UnsupportedError(
            f"{name} is traced by jax.jit, jax.grad or jax.vmap; it must be known when JAX compiles: a list or a NumPy "
            "array that is no argument of the function, or one of its static_argnums, as a tuple"
        )


def _numbers(name: str, values: Any) -> Tuple[int, ...] | None:
    _refuse_traced(name, values)
    return None if values is None else tuple(host_integers(name, values))


@overload
def attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    branches: Union[Config, Iterable[BranchLike]],
    *,
    causal: bool | None = None,
    padding: Padding | None = None,
    key_rule: KeyRule | None = None,
    head_shard: Tuple[int, int] | None = None,
    scale: float | None = None,
    engine: Engine | None = None,
    allow_tf32: bool | None = None,
    workspace_limit: int | None = None,
    return_lse: Literal[False] = False,
    query_start: int | None = None,
    sequence_starts: Any = None,
    sequence_lengths: Any = None,
    layout: Layout | None = None,
) -> jax.Array: ...


@overload
def attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    branches: Union[Config, Iterable[BranchLike]],
    *,
    causal: bool | None = None,
    padding: Padding | None = None,
    key_rule: KeyRule | None = None,
    head_shard: Tuple[int, int] | None = None,
    scale: float | None = None,
    engine: Engine | None = None,
    allow_tf32: bool | None = None,
    workspace_limit: int | None = None,
    return_lse: Literal[True],
    query_start: int | None = None,
    sequence_starts: Any = None,
    sequence_lengths: Any = None,
    layout: Layout | None = None,
) -> Tuple[jax.Array, jax.Array]: ...


def attention(
    q: Any,
    k: Any,
    v: Any,
    branches: Union[Config, Iterable[BranchLike]],
    *,
    causal: bool | None = None,
    padding: Padding | None = None,
    key_rule: KeyRule | None = None,
    head_shard: Tuple[int, int] | None = None,
    scale: float | None = None,
    engine: Engine | None = None,
    allow_tf32: bool | None = None,
    workspace_limit: int | None = None,
    return_lse: bool = False,
    query_start: int | None = None,
    sequence_starts: Any = None,
    sequence_lengths: Any = None,
    layout: Layout | None = None,
    **unknown: NoReturn,
) -> Any:
    """Dilated attention of q [B, Nq, H, D] over k and v [B, N, G, D], where G divides H; differentiable.

    The arguments are those of annulus.attention(); all but q, k and v are constants under jax.jit. q, k and v are
    float64, float32, bfloat16 or float16, all of one dtype.

    Returns out [B, Nq, H, D] in q's dtype, with return_lse (out, lse), lse [B, H, Nq] in float32 (float64 for float64),
    whose gradient counts. The gradient is the true derivative; it exists once and in reverse mode. jax.vmap makes one
    call for all entries. Some wrong shapes are found only when the computation runs, as an error of JAX.
    """
    if unknown:
        refuse("annulus.jax.attention()", unknown)
    arrays = []
    for name, array in (("q", q), ("k", k), ("v", v)):
        if not isinstance(array, (jax.Array, np.ndarray)):
            raise TypeError(f"{name} is a {type(array).__name__}; it must be an array of JAX")
        check_ndim(name, array.ndim)
        check_dtype(name, array.dtype.name)
        if array.dtype != q.dtype:
            raise ArgumentError(f"{name} has dtype {array.dtype.name}; it must be {q.dtype.name}, as q's")
        arrays.append(jax.numpy.asarray(array))
    check_layout(layout, k)
    _refuse_traced("query_start", query_start)
    rows = -2 if layout == "bhnd" else -3
    check_rows(query_start, q.shape[rows], k.shape[rows])
    options = given(
        causal=causal,
        padding=padding,
        key_rule=key_rule,
        head_shard=head_shard,
        scale=scale,
        engine=engine,
        allow_tf32=allow_tf32,
        workspace_limit=workspace_limit,
    )
    call = _Call(
        cached_config(branches, options)._text,
        None if query_start is None else integer("query_start", query_start),
        _numbers("sequence_starts", sequence_starts),
        _numbers("sequence_lengths", sequence_lengths),
        "bnhd" if layout is None else layout,
    )
    out, lse = _attention(*arrays, call)
    return (out, lse) if return_lse else out


def __dir__() -> list[str]:
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])
