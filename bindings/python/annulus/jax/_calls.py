# SPDX-License-Identifier: Apache-2.0
"""The passes as primitives of JAX.

A primitive's arrays have all their axes, B among them. It becomes a custom call of XLA on a CPU or a CUDA device
(bindings/python/xla/handlers.cpp), with a last result that is its workspace; on any other platform, or where the
custom calls are missing, it becomes a callback on the host.
"""

from __future__ import annotations

import functools
import math
from typing import Any, Callable, NamedTuple, Sequence, Tuple

import jax
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.sharding import NamedSharding, PartitionSpec

from .. import _capi
from .._arrays import CPU, Place, exchanged, lse_dtype
from .._cache import cached_config, cached_context
from .._choices import ENGINES, KEY_RULES, KINDS, ORDERS, PADDINGS, PHASES, QUERIES
from .._config import Branch, Config, from_text
from .._errors import UnsupportedError
from ..types import Layout, Pass
from . import _extension

# XLA's buffers, and so their rows, begin at multiples of this number of bytes.
_ROW_ALIGNMENT = 16


class Call(NamedTuple):
    """The arguments of a call beside its arrays: constants of the program that JAX compiles."""

    config: str
    query_start: int | None = None
    sequence_starts: Tuple[int, ...] | None = None
    sequence_lengths: Tuple[int, ...] | None = None
    layout: Layout = "bnhd"

    def repeated(self, count: int) -> Call:
        """Returns the call for `count` times as many batch entries."""
        if self.sequence_lengths is None or self.sequence_starts is not None:
            return self
        return self._replace(sequence_lengths=self.sequence_lengths * count)

    def options(self) -> dict[str, Any]:
        """Returns the options of Context's calls."""
        return dict(
            query_start=self.query_start,
            sequence_starts=self.sequence_starts,
            sequence_lengths=self.sequence_lengths,
        )

    def axes(self, shape: Tuple[int, ...]) -> Tuple[int, ...]:
        """Returns (B, N, heads, D) of rows of this shape."""
        return exchanged(shape) if self.layout == "bhnd" else tuple(shape)


class _Result(NamedTuple):
    shape: Tuple[int, ...]
    dtype: Any


# A function that returns the results' shapes and dtypes for the arrays' ones.
_Results = Callable[[Sequence[Any], Call], Tuple[_Result, ...]]


def _like(array: Any) -> _Result:
    return _Result(array.shape, array.dtype)


def _statistic(q: Any, row_count: int, call: Call) -> _Result:
    """Returns what LSE and mass are for q: [B, H, row_count]."""
    batch, _, heads, _ = call.axes(q.shape)
    return _Result((batch, heads, row_count), np.dtype(lse_dtype(q.dtype.name)))


def _branch_numbers(branch: Branch) -> Tuple[int, ...]:
    first_head, head_count = branch.heads or (0, 0)
    fixed = not isinstance(branch.phase, str)
    return (
        branch.segment_length,
        branch.dilation,
        int(branch.phase) if fixed else 0,
        branch.grid_width,
        first_head,
        head_count,
        _capi.ANNULUS_PHASE_FIXED if fixed else PHASES[str(branch.phase)],
        QUERIES[branch.query],
        ORDERS[branch.order],
        KINDS[branch.kind],
        branch.left,
        branch.right,
        branch.first_global,
        branch.global_count,
        int(branch.global_queries),
    )


def _config_numbers(config: Config) -> np.ndarray:
    """Writes a config, without its scale, as the numbers of the C API. Compiled programs have them as an attribute;
    set_config() in bindings/python/xla/contexts.cpp reads them."""
    numbers = [
        int(config.causal),
        KEY_RULES[config.key_rule],
        PADDINGS[config.padding],
        *(config.head_shard or (0, 0)),
        ENGINES[config.engine],
        int(config.allow_tf32),
        config.workspace_limit,
    ]
    for branch in config.branches:
        numbers += _branch_numbers(branch)
    return np.array(numbers, np.int64)


def _places(platform: str) -> list[Place]:
    """Returns a device of each kind that JAX has of the platform, since workspaces depend on the kind."""
    if platform == "cpu":
        return [CPU]
    try:
        kinds = {device.device_kind: device.local_hardware_id for device in jax.local_devices(backend="cuda")}
    except RuntimeError as error:
        raise UnsupportedError(
            f"annulus.jax is lowered for CUDA where JAX has no CUDA device ({error}); the workspace depends on the GPU: "
            "lower, compile and export where such a GPU is"
        ) from None
    return [("cuda", number) for number in kinds.values()]


def _problem(q: Any, k: Any, call: Call) -> dict[str, Any]:
    """Returns the sizes of a call as arguments of Context.workspace_size()."""
    batch, query_length, heads, head_dim = call.axes(q.shape)
    _, length, kv_heads, _ = call.axes(k.shape)
    window = {} if call.query_start is None else {"query_length": query_length}
    return dict(
        length=length,
        heads=heads,
        head_dim=head_dim,
        kv_heads=kv_heads,
        batch=batch,
        dtype=q.dtype.name,
        row_alignment=_ROW_ALIGNMENT,
        **window,
        **call.options(),
    )


def _attributes(platform: str, pass_: Pass, q: Any, k: Any, call: Call) -> Tuple[dict[str, Any], int]:
    """Returns the attributes of a pass's custom call, and the bytes of its workspace."""
    config = from_text(call.config)
    contexts = [cached_context(config, place) for place in _places(platform)]
    attributes = dict(
        config=_config_numbers(config),
        scale=np.float64(math.nan if config.scale is None else config.scale),
        has_query_window=call.query_start is not None,
        query_start=np.int64(call.query_start or 0),
        sequence_starts=np.array(call.sequence_starts or (), np.int64),
        sequence_lengths=np.array(call.sequence_lengths or (), np.int64),
        is_bhnd=call.layout == "bhnd",
        threads=np.int32(contexts[0].threads),
    )
    problem = _problem(q, k, call)
    return attributes, max(context.workspace_size(pass_=pass_, **problem) for context in contexts)


def _lower_to_custom_call(platform: str, pass_: str, ctx: Any, *arrays: Any, call: Call) -> Sequence[Any]:
    lower = jax.ffi.ffi_lowering(_extension.target_name(platform, pass_))
    if pass_ == "merge":
        return lower(ctx, *arrays)
    q, k = ctx.avals_in[:2]
    attributes, workspace_bytes = _attributes(platform, pass_, q, k, call)  # type: ignore[arg-type]
    workspace = jax.core.ShapedArray((workspace_bytes,), np.dtype(np.uint8))
    return lower(ctx.replace(avals_out=[*ctx.avals_out, workspace]), *arrays, **attributes)[:-1]


def _define(pass_: str, results_of: _Results, on_host: Callable[..., Any]) -> Callable[..., Any]:
    """Defines a primitive. Returns the function that computes with it: (*arrays, call=Call) -> tuple of results.

    on_host(call, *arrays): computes the results with NumPy.
    """
    primitive = Primitive(f"annulus_{pass_}")
    primitive.multiple_results = True

    def evaluate(*avals: Any, call: Call) -> list[Any]:
        # Arrays of a call vary over the same axes of jax.shard_map's mesh (placed_alike()), and so do its results.
        first = avals[0]
        return [
            first.update(
                shape=result.shape,
                dtype=result.dtype,
                weak_type=False,
                sharding=NamedSharding(first.sharding.mesh, PartitionSpec(*[None] * len(result.shape))),
            )
            for result in results_of(avals, call)
        ]

    def call_back(*arrays: Any, call: Call) -> Any:
        results = [jax.ShapeDtypeStruct(*result) for result in results_of(arrays, call)]
        return jax.pure_callback(functools.partial(on_host, call), results, *arrays)

    lower_to_callback = mlir.lower_fun(call_back, multiple_results=True)

    def lower(platform: str, ctx: Any, *arrays: Any, call: Call) -> Sequence[Any]:
        reason = _extension.why_not(platform)
        if reason is None:
            return _lower_to_custom_call(platform, pass_, ctx, *arrays, call=call)
        _extension.warn_of_callbacks(reason)
        if pass_ != "merge":
            # Refuses wrong sizes before the callback runs.
            q, k = ctx.avals_in[:2]
            _attributes("cpu", pass_, q, k, call)  # type: ignore[arg-type]
        return lower_to_callback(ctx, *arrays, call=call)

    def lower_elsewhere(ctx: Any, *arrays: Any, call: Call) -> Sequence[Any]:
        return lower(ctx.module_context.platforms[0], ctx, *arrays, call=call)

    def batch(arrays: Sequence[Any], axes: Sequence[Any], *, call: Call) -> Any:
        """Makes one call for all entries of jax.vmap: their axis and B are folded into one."""
        count = next(array.shape[axis] for array, axis in zip(arrays, axes) if axis is not None)
        folded = []
        for array, axis in zip(arrays, axes):
            if axis is None:
                array = jax.numpy.broadcast_to(array, (count, *array.shape))
            else:
                array = jax.numpy.moveaxis(array, axis, 0)
            entries = array.shape[:2]
            folded.append(array.reshape(math.prod(entries), *array.shape[2:]))
        results = primitive.bind(*folded, call=call.repeated(count))
        return [result.reshape(*entries, *result.shape[1:]) for result in results], [0] * len(results)

    def refuse_derivative(*_: Any, **__: Any) -> Any:
        raise UnsupportedError("annulus.jax has gradients once and in reverse mode, as of jax.grad and jax.vjp")

    primitive.def_impl(jax.jit(primitive.bind, static_argnames="call"))
    primitive.def_abstract_eval(evaluate)
    # Not by assignments, which what stands for JAX while the pages are made refuses.
    batching.primitive_batchers.__setitem__(primitive, batch)
    ad.primitive_jvps.__setitem__(primitive, refuse_derivative)
    for platform in ("cpu", "cuda"):
        mlir.register_lowering(primitive, functools.partial(lower, platform), platform=platform)
    mlir.register_lowering(primitive, lower_elsewhere)
    return lambda *arrays, call: tuple(primitive.bind(*arrays, call=call))


def _varying(array: Any) -> frozenset:
    """Returns the axes of jax.shard_map's mesh over which an array varies. JAX 0.10 has renamed its attribute."""
    kind = jax.typeof(array)
    kind = getattr(kind, "manual_axis_type", kind)
    return getattr(kind, "varying", getattr(kind, "vma", frozenset()))


def _gathered(array: Any) -> Any:
    """Gathers an array on each device if its type says how it is sharded, as with meshes of explicit axes."""
    sharding = jax.typeof(array).sharding
    if all(axes is None for axes in sharding.spec) or not hasattr(jax.sharding, "reshard"):
        return array
    return jax.sharding.reshard(array, NamedSharding(sharding.mesh, PartitionSpec(*[None] * array.ndim)))


def placed_alike(arrays: Sequence[Any]) -> list[Any]:
    """Gives arrays the types that the primitives take: gathered on each device, and inside jax.shard_map varying over
    each axis of the mesh over which one of them varies.

    The derivative shards the gradients anew, and adds up those of an array that is the same on all devices.
    """
    arrays = [_gathered(array) for array in arrays]
    axes = frozenset().union(*map(_varying, arrays))
    marked = []
    for array in arrays:
        missing = tuple(sorted(axes - _varying(array), key=str))
        if missing and hasattr(jax.lax, "pcast"):
            array = jax.lax.pcast(array, missing, to="varying")
        elif missing:
            array = jax.lax.pvary(array, missing)
        marked.append(array)
    return marked


def _context(call: Call) -> Any:
    return cached_context(from_text(call.config), CPU)


def _forward_on_host(call: Call, q: Any, k: Any, v: Any) -> Any:
    arrays = [np.asarray(array) for array in (q, k, v)]
    return _context(call).forward(*arrays, layout=call.layout, **call.options())


def _backward_on_host(call: Call, *given: Any) -> Any:
    *arrays, d_lse = [np.asarray(array) for array in given]
    return _context(call).backward(*arrays, d_lse=d_lse, layout=call.layout, **call.options())


def _mass_on_host(call: Call, q: Any, k: Any, lse: Any) -> Any:
    q, k, lse = [np.asarray(array) for array in (q, k, lse)]
    return [_context(call).attention_mass(q, k, lse=lse, layout=call.layout, **call.options())]


def _merge_on_host(call: Call, *arrays: Any) -> Any:
    parts = [np.asarray(array) for array in arrays]
    count = len(parts) // 2
    return _context(call).merge(list(zip(parts[:count], parts[count:])))


# (q, k, v) -> (out, lse)
forward = _define(
    "forward",
    lambda arrays, call: (_like(arrays[0]), _statistic(arrays[0], call.axes(arrays[0].shape)[1], call)),
    _forward_on_host,
)
# (q, k, v, out, lse, d_out, d_lse) -> (d_q, d_k, d_v)
backward = _define("backward", lambda arrays, call: tuple(map(_like, arrays[:3])), _backward_on_host)
# (q, k, lse) -> (mass,)
mass = _define(
    "mass",
    lambda arrays, call: (_statistic(arrays[0], call.axes(arrays[1].shape)[1], call),),
    _mass_on_host,
)
# (*outs, *lses) -> (out, lse)
merge = _define("merge", lambda arrays, call: (_like(arrays[0]), _like(arrays[len(arrays) // 2])), _merge_on_host)
# Merging does not read the config.
MERGE_CALL = Call(cached_config([(0, 1)], {})._text)
