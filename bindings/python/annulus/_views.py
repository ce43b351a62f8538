# SPDX-License-Identifier: Apache-2.0
"""The arrays of a call as views: any library's arrays, on any device, with a message for whatever is wrong with one."""

from __future__ import annotations

from typing import Any, Sequence, Tuple

from . import _arrays, _capi
from ._arrays import View
from ._call_options import CallOptions, check_rows
from ._handle import ContextHandle
from .types import Layout, Pass

_FUNCTIONS = {
    "forward": _capi.annulus_forward,
    "backward": _capi.annulus_backward,
    "mass": _capi.annulus_attention_mass,
}
_STATISTICS = ("lse", "d_lse", "mass")


def as_view(name: str, array: Any) -> View:
    """Returns the view of an array, or the array itself if it is a view."""
    return array if isinstance(array, View) else _arrays.view(name, array)


class ViewedArrays:
    """Reads, makes and passes on the arrays of a call as views. _plain.PlainArrays does the same without views."""

    def __init__(self, handle: ContextHandle) -> None:
        self._handle = handle

    def rows(self, name: str, array: Any, layout: Layout | None) -> View:
        """Returns an array of rows in this layout as [B, N, heads, D]."""
        view = as_view(name, array).laid_out(layout)
        self._handle.check_place(view)
        return view

    def statistic(self, name: str, array: Any) -> View:
        """Returns an array [B, heads, N]."""
        return self.rows(name, array, None)

    def result_rows(
        self, name: str, array: Any, q: View, shape: Sequence[int], layout: Layout | None
    ) -> Tuple[Any, View]:
        """Returns the caller's array for a result, or a new one of q's dtype, and its view as [B, N, heads, D].

        shape: [B, N, heads, D], whatever the layout.
        """
        return self._result(name, array, q, shape, q.dtype, layout)

    def result_statistic(self, name: str, array: Any, q: View, shape: Sequence[int]) -> Tuple[Any, View]:
        """Returns the caller's array for a result [B, heads, N], or a new one of the LSE's dtype, and its view."""
        return self._result(name, array, q, shape, _arrays.lse_dtype(q.dtype), None)

    def _result(
        self, name: str, array: Any, q: View, shape: Sequence[int], dtype: str, layout: Layout | None
    ) -> Tuple[Any, View]:
        if array is None:
            is_exchanged = layout == "bhnd" and len(shape) >= 3
            array = q.library.empty(_arrays.exchanged(shape) if is_exchanged else tuple(shape), dtype, q)
            return array, _arrays.view(name, array).laid_out(layout)
        view = _arrays.writable(_arrays.view(name, array)).laid_out(layout)
        self._handle.check_place(view)
        return array, view

    def call(self, handle: ContextHandle, pass_: Pass, views: list, options: CallOptions) -> None:
        """Calls the C function of a pass on views in the order of its arguments, q and k first; None is NULL."""
        q, k = views[:2]
        tensors = [view and _arrays.tensor(view, 3 if view.name in _STATISTICS else 4) for view in views]
        struct = options.struct()
        check_rows(options.query_start, q.shape[-3], k.shape[-3])
        handle.run(q, views, lambda: _FUNCTIONS[pass_](handle.pointer, *tensors, struct))
