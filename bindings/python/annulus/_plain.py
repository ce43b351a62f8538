# SPDX-License-Identifier: Apache-2.0
"""Arrays that the extension module reads itself (arrays.c), so that short calls cost little: NumPy's, and PyTorch's on
the CPU. Everything else, and whatever is wrong with an array, is _arrays.py's."""

from __future__ import annotations

import sys
from typing import Any, Callable, Dict, NamedTuple, Optional, Tuple

import numpy as np

from . import _capi
from ._arrays import DTYPES, Shape

# A call with fewer elements of q than this is over before anybody could interrupt it.
SHORT_CALL = 1 << 18


class Kind(NamedTuple):
    # whether an array is in host memory and has few elements
    is_short: Callable[[Any], bool]
    # q -> an array of a shape and q's dtype
    empty: Callable[[Any, Shape], Any]
    # q -> an array of a shape and LSE's dtype
    empty_lse: Callable[[Any, Shape], Any]
    # whether the result of arrays would have to have a gradient
    want_gradient: Callable[[Tuple[Any, ...]], bool]


def _empty_numpy_lse(q: Any, shape: Shape) -> Any:
    return np.empty(shape, np.float64 if q.dtype == np.float64 else np.float32)


_KINDS: Dict[type, Kind] = {
    np.ndarray: Kind(
        lambda q: q.size < SHORT_CALL,
        lambda q, shape: np.empty(shape, q.dtype),
        _empty_numpy_lse,
        lambda arrays: False,
    )
}


def know_torch() -> None:
    """Makes PyTorch's tensors plain arrays; PyTorch has been imported."""
    torch = sys.modules["torch"]
    if torch.Tensor in _KINDS:
        return
    float32, float64 = torch.float32, torch.float64
    grad_enabled = torch.is_grad_enabled

    def want_gradient(arrays: Tuple[Any, ...]) -> bool:
        if grad_enabled():
            for array in arrays:
                if array is not None and array.requires_grad:
                    return True
        return False

    kind = Kind(
        lambda q: q.is_cpu and q.numel() < SHORT_CALL,
        lambda q, shape: q.new_empty(shape),
        lambda q, shape: q.new_empty(shape, dtype=float64 if q.dtype == float64 else float32),
        want_gradient,
    )
    types = torch.Tensor, torch.nn.Parameter
    _capi.annulus_know_torch(types, {getattr(torch, name): number for name, number in DTYPES.items()})
    _KINDS.update(dict.fromkeys(types, kind))


def kind_of(arrays: Tuple[Any, ...], optional: Tuple[Any, ...]) -> Optional[Kind]:
    """The kind of arrays, of which the first is q, and of those of the optional ones that are not None; None where they
    are not plain and of one kind, q is not short, or a gradient is wanted."""
    q = arrays[0]
    kind = _KINDS.get(type(q))
    if kind is None:
        if type(q).__module__.partition(".")[0] == "torch":
            know_torch()
            kind = _KINDS.get(type(q))
        if kind is None:
            return None
    if not kind.is_short(q):
        return None
    for other in arrays:
        if _KINDS.get(type(other)) is not kind:
            return None
    for other in optional:
        if other is not None and _KINDS.get(type(other)) is not kind:
            return None
    return None if kind.want_gradient(arrays + optional) else kind
