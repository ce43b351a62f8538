# SPDX-License-Identifier: Apache-2.0
"""Dilated attention with a gradient for JAX."""

from __future__ import annotations

import functools
from typing import Any, Iterable, Literal, NoReturn, Tuple, Union, overload

import jax
import numpy as np

from .._arguments import host_integers, integer
from .._arrays import check_dtype, check_ndim
from .._cache import cached_config, given
from .._call_options import call_options, check_layout, check_rows
from .._config import BranchLike, Config
from .._errors import ArgumentError, UnsupportedError
from .._mistakes import warn_of_call
from .._unknown import refuse
from ..types import Engine, KeyRule, Layout, Padding
from . import _calls
from ._calls import Call


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _attention(q: Any, k: Any, v: Any, call: Call) -> Any:
    return _calls.forward(q, k, v, call=call)


def _save(q: Any, k: Any, v: Any, call: Call) -> Any:
    out, lse = _attention(q, k, v, call)
    return (out, lse), (q, k, v, out, lse)


def _gradients(call: Call, saved: Any, d_results: Any) -> Any:
    return _calls.backward(*saved, *d_results, call=call)


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


def check_array(name: str, array: Any, ndim: int = 4) -> None:
    """Refuses what is no array of JAX, or has another number of axes. ndim: the axes with B, which may be left out."""
    if not isinstance(array, (jax.Array, np.ndarray)):
        raise TypeError(f"{name} is a {type(array).__name__}; it must be an array of JAX")
    check_ndim(name, array.ndim, ndim)


def checked_rows(arrays: dict[str, Any]) -> list[Any]:
    """Returns rows by name, the first of them q, as arrays of JAX with the axis B."""
    checked: list[Any] = []
    q = arrays["q"]
    for name, array in arrays.items():
        check_array(name, array)
        check_dtype(name, array.dtype.name)
        if array.dtype != q.dtype:
            raise ArgumentError(f"{name} has dtype {array.dtype.name}; it must be {q.dtype.name}, as q's")
        if array.ndim != q.ndim:
            raise ArgumentError(f"{name} has {array.ndim} dimensions; it must have {q.ndim}, as q has")
        if (array.shape[:-3], array.shape[-1]) != (q.shape[:-3], q.shape[-1]):
            raise ArgumentError(f"{name} has shape {list(array.shape)} and q {list(q.shape)}; B and D must be the same")
        checked.append(jax.numpy.asarray(array))
    if "v" in arrays and arrays["v"].shape != arrays["k"].shape:
        raise ArgumentError(f"v has shape {list(arrays['v'].shape)}; it must have {list(arrays['k'].shape)}, as k has")
    return [with_batch(array, 4) for array in checked]


def with_batch(array: Any, ndim: int) -> Any:
    """Returns the array with an axis B in front if it has less than ndim axes."""
    return array if array.ndim == ndim else array[None]


def call_of(
    q: Any,
    k: Any,
    branches: Union[Config, Iterable[BranchLike]],
    options: dict[str, Any],
    query_start: Any,
    sequence_starts: Any,
    sequence_lengths: Any,
    layout: Any,
) -> Call:
    """Checks what a caller gave beside arrays, and returns the call. options: Config's, where they are not None."""
    check_layout(layout, k)
    _refuse_traced("query_start", query_start)
    rows = -2 if layout == "bhnd" else -3
    check_rows(query_start, q.shape[rows], k.shape[rows])
    config = cached_config(branches, options)
    call = Call(
        config._text,
        None if query_start is None else integer("query_start", query_start),
        _numbers("sequence_starts", sequence_starts),
        _numbers("sequence_lengths", sequence_lengths),
        "bnhd" if layout is None else layout,
    )
    call_options(call.query_start, call.sequence_starts, call.sequence_lengths)  # checks the numbers
    heads = q.shape[-3 if layout == "bhnd" else -2]
    warn_of_call(config._reach, heads, k.shape[rows], call.sequence_starts, False)
    return call


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
    call for all entries. Inside jax.shard_map each device computes with the rows, and the sequences, that it has.

    A compiled program has the workspace of a call among its own buffers, as large as this machine's GPUs, or the CPU
    threads of the compiling process, need. jax.export wants its custom calls, annulus_cpu_forward and alike, named as
    DisabledSafetyCheck.custom_call(name). A process that runs the exported program imports annulus.jax first.
    """
    if unknown:
        refuse("annulus.jax.attention()", unknown)
    arrays = checked_rows({"q": q, "k": k, "v": v})
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
    call = call_of(q, k, branches, options, query_start, sequence_starts, sequence_lengths, layout)
    out, lse = _attention(*_calls.placed_alike(arrays), call)
    if q.ndim == 3:
        out, lse = out[0], lse[0]
    return (out, lse) if return_lse else out
