# SPDX-License-Identifier: Apache-2.0
"""Forward, backward, attention mass and merge on a context's handle, after Context has checked the other arguments.

Each pass is written once. Its arrays are read by PlainArrays if they are plain and the call is short, by ViewedArrays
otherwise.
"""

from __future__ import annotations

from typing import Any, Callable, Iterable, Tuple, TypeVar, Union

from . import _arrays, _capi
from ._arrays import CPU, Place, View
from ._call_options import CallOptions
from ._errors import ArgumentError
from ._handle import ContextHandle
from ._mistakes import warn_of_call
from ._plain import NotPlain, PlainArrays, is_plain, plain_arrays
from ._views import ViewedArrays, as_view
from .types import Layout

Results = TypeVar("Results")
Arrays = Union[PlainArrays, ViewedArrays]


def located(q: Any) -> Tuple[Any, Place]:
    """Returns q and its device. A q that is not plain is returned as a view, so that it is viewed once."""
    if is_plain(q):
        return q, CPU
    view = _arrays.view("q", q)
    return view, view.device


def _with_arrays(
    handle: ContextHandle,
    required: Tuple[Any, ...],
    optional: Tuple[Any, ...],
    compute: Callable[[Any], Results],
) -> Results:
    """Runs `compute` with a PlainArrays, and again with a ViewedArrays if that is impossible."""
    plain = plain_arrays(required, optional) if handle.reads_plain_arrays else None
    if plain is not None:
        try:
            return compute(plain)
        except NotPlain:
            pass
    return compute(ViewedArrays(handle))


def _statistic_shape(shape: _arrays.Shape, row_count: int | None = None) -> _arrays.Shape:
    """Returns [B, heads, N] for q's shape [B, Nq, heads, D]; row_count: N, or None for Nq.

    A shape with too few axes is refused later, by name.
    """
    if len(shape) < 3:
        return (0, 0)
    return (*shape[:-3], shape[-2], shape[-3] if row_count is None else row_count)


def forward(
    handle: ContextHandle,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
    with_lse: bool,
    options: CallOptions,
    layout: Layout | None,
) -> Tuple[Any, Any]:
    """Computes Context.forward(). Returns (out, lse), where lse is None without with_lse. q may be a view."""

    def compute(arrays: Arrays) -> Tuple[Any, Any]:
        q_rows = arrays.rows("q", q, layout)
        k_rows = arrays.rows("k", k, layout)
        v_rows = arrays.rows("v", v, layout)
        new_out, out_rows = arrays.result_rows("out", out, q_rows, q_rows.shape, layout)
        new_lse = lse_rows = None
        if with_lse:
            new_lse, lse_rows = arrays.result_statistic("lse", lse, q_rows, _statistic_shape(q_rows.shape))
        arrays.call(handle, "forward", [q_rows, k_rows, v_rows, out_rows, lse_rows], options)
        heads, length = q_rows.shape[-2], k_rows.shape[-3]
        warn_of_call(handle.reach, heads, length, options.sequence_starts, handle.comm is not None)
        return new_out, new_lse

    return _with_arrays(handle, (q, k, v), (out, lse), compute)


def backward(
    handle: ContextHandle,
    given: Tuple[Any, ...],
    d_lse: Any,
    gradients: Tuple[Any, ...],
    options: CallOptions,
    layout: Layout | None,
) -> Tuple[Any, Any, Any]:
    """Computes Context.backward(). Returns (d_q, d_k, d_v).

    given: q, k, v, out, lse, d_out. d_lse: an array or None. gradients: d_q, d_k, d_v, each an array or None.
    """
    q, k, v, out, lse, d_out = given

    def compute(arrays: Arrays) -> Tuple[Any, Any, Any]:
        q_rows = arrays.rows("q", q, layout)
        k_rows = arrays.rows("k", k, layout)
        v_rows = arrays.rows("v", v, layout)
        out_rows = arrays.rows("out", out, layout)
        lse_rows = arrays.statistic("lse", lse)
        d_out_rows = arrays.rows("d_out", d_out, layout)
        d_lse_rows = None if d_lse is None else arrays.statistic("d_lse", d_lse)
        d_q, d_q_rows = arrays.result_rows("d_q", gradients[0], q_rows, q_rows.shape, layout)
        d_k, d_k_rows = arrays.result_rows("d_k", gradients[1], q_rows, k_rows.shape, layout)
        d_v, d_v_rows = arrays.result_rows("d_v", gradients[2], q_rows, v_rows.shape, layout)
        inputs = [q_rows, k_rows, v_rows, out_rows, lse_rows, d_out_rows, d_lse_rows]
        arrays.call(handle, "backward", [*inputs, d_q_rows, d_k_rows, d_v_rows], options)
        return d_q, d_k, d_v

    return _with_arrays(handle, given, (d_lse, *gradients), compute)


def attention_mass(
    handle: ContextHandle, q: Any, k: Any, lse: Any, mass: Any, options: CallOptions, layout: Layout | None
) -> Any:
    """Computes Context.attention_mass(). q may be a view."""
    q = as_view("q", q)
    if lse is None:
        _, lse = forward(handle, q, k, k, None, None, True, options, layout)
    arrays = ViewedArrays(handle)
    q_rows, k_rows, lse_rows = arrays.rows("q", q, layout), arrays.rows("k", k, layout), arrays.statistic("lse", lse)
    key_count = k_rows.shape[-3] if len(k_rows.shape) >= 3 else 0
    mass, mass_rows = arrays.result_statistic("mass", mass, q_rows, _statistic_shape(q_rows.shape, key_count))
    arrays.call(handle, "mass", [q_rows, k_rows, lse_rows, mass_rows], options)
    return mass


def pairs_of(parts: Iterable[Tuple[Any, Any]]) -> list[Tuple[Any, Any]]:
    """Returns the argument of merge() as a list of pairs (out, lse)."""
    pairs = list(parts)
    for i, part in enumerate(pairs):
        if not isinstance(part, (tuple, list)) or len(part) != 2:
            raise ArgumentError(f"parts[{i}] is a {type(part).__name__}; it must be a pair, (out, lse)")
    if not 1 <= len(pairs) <= _capi.ANNULUS_MAX_MERGE_PARTS:
        raise ArgumentError(
            f"parts has {len(pairs)} pairs, (out, lse); it must have from 1 to {_capi.ANNULUS_MAX_MERGE_PARTS}"
        )
    return pairs


def views_of_parts(parts: Iterable[Tuple[Any, Any]]) -> list[Tuple[View, View]]:
    """Returns the argument of merge() as pairs of views."""
    return [
        (_arrays.view(f"out of parts[{i}]", out), _arrays.view(f"lse of parts[{i}]", lse))
        for i, (out, lse) in enumerate(pairs_of(parts))
    ]


def merge(handle: ContextHandle, parts: list[Tuple[View, View]], out: Any, lse: Any) -> Tuple[Any, Any]:
    """Computes Context.merge() on views of the parts. Returns (out, lse)."""
    for part in parts:
        for view in part:
            handle.check_place(view)
    first = parts[0][0]
    arrays = ViewedArrays(handle)
    out, out_view = arrays.result_rows("out", out, first, first.shape, None)
    lse, lse_view = arrays.result_statistic("lse", lse, first, _statistic_shape(first.shape))
    views = [*(view for part in parts for view in part), out_view, lse_view]
    outs = [_arrays.tensor(part[0], 4) for part in parts]
    lses = [_arrays.tensor(part[1], 3) for part in parts]
    results = _arrays.tensor(out_view, 4), _arrays.tensor(lse_view, 3)
    pointer = handle.pointer
    handle.run(first, views, lambda: _capi.annulus_merge(pointer, len(outs), outs, lses, *results, None))
    return out, lse
