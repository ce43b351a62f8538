# SPDX-License-Identifier: Apache-2.0
"""The arrays of a short call, read by the extension module (arrays.c): NumPy's, and PyTorch's on the CPU.

A short call takes less time than views of its arrays would. _views.py reads all other arrays, and has the messages for
whatever is wrong with one.
"""

from __future__ import annotations

import sys
from typing import Any, Callable, Dict, Optional, Tuple

import numpy as np

from . import _capi
from ._arrays import DTYPES, Shape, exchanged
from ._call_options import NO_OPTIONS, CallOptions
from ._errors import check
from ._handle import SHORT_CALL, ContextHandle
from .types import Layout, Pass


class NotPlain(Exception):
    """The extension module cannot read an array, or the library refuses it. Nothing was written."""


_FUNCTIONS = {"forward": _capi.forward_of_arrays, "backward": _capi.backward_of_arrays}


class PlainArrays:
    """Reads, makes and passes on plain arrays of one library as they are, for short calls.

    The methods are those of _views.ViewedArrays. They raise NotPlain where ViewedArrays has to look.
    """

    def __init__(
        self,
        is_short: Callable[[Any], bool],
        empty: Callable[[Any, Shape], Any],
        empty_lse: Callable[[Any, Shape], Any],
        want_gradient: Callable[[Tuple[Any, ...]], bool],
    ) -> None:
        """is_short(q): whether q is in host memory and has few elements. empty(q, shape): an array of q's dtype.

        empty_lse(q, shape): an array of the LSE's dtype. want_gradient(arrays): whether a result needs a gradient.
        """
        self.is_short = is_short
        self.empty = empty
        self.empty_lse = empty_lse
        self.want_gradient = want_gradient

    def rows(self, name: str, array: Any, layout: Layout | None) -> Any:
        if not 3 <= len(array.shape) <= 4:
            raise NotPlain
        return array.swapaxes(-3, -2) if layout == "bhnd" else array

    def statistic(self, name: str, array: Any) -> Any:
        return array

    def result_rows(self, name: str, array: Any, q: Any, shape: Shape, layout: Layout | None) -> Tuple[Any, Any]:
        if array is None:
            array = self.empty(q, exchanged(shape) if layout == "bhnd" else shape)
        return array, self.rows(name, array, layout)

    def result_statistic(self, name: str, array: Any, q: Any, shape: Shape) -> Tuple[Any, Any]:
        if array is None:
            array = self.empty_lse(q, shape)
        return array, array

    def call(self, handle: ContextHandle, pass_: Pass, arrays: list, options: CallOptions) -> None:
        if options.query_start is None and arrays[0].shape[-3] != arrays[1].shape[-3]:
            raise NotPlain
        struct = None if options is NO_OPTIONS else options.struct()
        with handle.lock:
            try:
                status = _FUNCTIONS[pass_](handle.pointer, *arrays, struct)
            except BufferError:
                raise NotPlain from None
            if status == _capi.ANNULUS_ERROR_ARGUMENT:
                raise NotPlain  # ViewedArrays has better words for what is wrong with an array
            check(status)


def _empty_numpy_lse(q: Any, shape: Shape) -> Any:
    return np.empty(shape, np.float64 if q.dtype == np.float64 else np.float32)


_BY_TYPE: Dict[type, PlainArrays] = {
    np.ndarray: PlainArrays(
        lambda q: q.size < SHORT_CALL,
        lambda q, shape: np.empty(shape, q.dtype),
        _empty_numpy_lse,
        lambda arrays: False,
    )
}


def _know_torch() -> None:
    """Makes PyTorch's tensors plain arrays. Requires that PyTorch has been imported."""
    torch = sys.modules["torch"]
    if torch.Tensor in _BY_TYPE:
        return
    float32, float64 = torch.float32, torch.float64
    grad_enabled = torch.is_grad_enabled

    def want_gradient(arrays: Tuple[Any, ...]) -> bool:
        if grad_enabled():
            for array in arrays:
                if array is not None and array.requires_grad:
                    return True
        return False

    arrays = PlainArrays(
        lambda q: q.is_cpu and q.numel() < SHORT_CALL,
        lambda q, shape: q.new_empty(shape),
        lambda q, shape: q.new_empty(shape, dtype=float64 if q.dtype == float64 else float32),
        want_gradient,
    )
    types = torch.Tensor, torch.nn.Parameter
    _capi.annulus_know_torch(types, {getattr(torch, name): number for name, number in DTYPES.items()})
    _BY_TYPE.update(dict.fromkeys(types, arrays))


def _arrays_of_type(array: Any) -> Optional[PlainArrays]:
    found = _BY_TYPE.get(type(array))
    if found is None and type(array).__module__.partition(".")[0] == "torch":
        _know_torch()
        found = _BY_TYPE.get(type(array))
    return found


def is_plain(q: Any) -> bool:
    """Returns whether q is a plain array and short."""
    arrays = _arrays_of_type(q)
    return arrays is not None and arrays.is_short(q)


def plain_arrays(required: Tuple[Any, ...], optional: Tuple[Any, ...]) -> Optional[PlainArrays]:
    """Returns the PlainArrays that read these arrays of a call. Elements of `optional` may be None.

    Returns None if one is not plain, if the libraries differ, if q, the first, is not short, or if a result needs a
    gradient.
    """
    q = required[0]
    found = _arrays_of_type(q)
    if found is None or not found.is_short(q):
        return None
    for array in required:
        if _BY_TYPE.get(type(array)) is not found:
            return None
    for array in optional:
        if array is not None and _BY_TYPE.get(type(array)) is not found:
            return None
    return None if found.want_gradient(required + optional) else found
