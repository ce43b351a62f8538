# SPDX-License-Identifier: Apache-2.0
"""Dilated attention over sequences of any length, on CPUs and NVIDIA GPUs.

    import annulus
    out = annulus.attention(q, k, v, branches=[(2048, 1), (8192, 4)], causal=True)

q and the result are arrays [B, N, H, D] of NumPy, PyTorch, CuPy or JAX; k and v are [B, N, G, D]. `Config` says which
keys a query attends to, `Context` computes forward and backward on a device, `Comm` connects several ranks, and
`Shards` says which positions each rank holds. `annulus.torch` has a differentiable function and modules for PyTorch,
`annulus.jax` functions that JAX's transforms accept, and `annulus.slides` maps of slides.
"""

from __future__ import annotations

from typing import Any

import numpy as _np

from . import _capi
from ._arguments import integer, pick
from ._attention import attention, attention_mass, lse_of_flash_attention, merge
from ._choices import DEVICE_KINDS
from ._comm import Comm
from ._config import Branch, Config
from ._context import Context, Estimate, Traffic
from ._errors import (
    ArgumentError,
    CommError,
    CommLibraryError,
    DeclinedError,
    DeviceError,
    Error,
    OutOfMemoryError,
    UnsupportedError,
    WorkspaceError,
    check,
    made,
)
from ._shards import Shards
from .types import DeviceKind

__all__ = [
    "ArgumentError",
    "Branch",
    "Comm",
    "CommError",
    "CommLibraryError",
    "Config",
    "Context",
    "DeclinedError",
    "DeviceError",
    "Error",
    "Estimate",
    "OutOfMemoryError",
    "Shards",
    "Traffic",
    "UnsupportedError",
    "WorkspaceError",
    "attention",
    "attention_mass",
    "build_info",
    "device_count",
    "hilbert_curve",
    "lse_of_flash_attention",
    "merge",
]

__version__: str = _capi.annulus_version_string()


def build_info() -> str:
    """Returns one line for bug reports: version, compiler, vector instructions, CUDA."""
    return _capi.annulus_build_info()


def device_count(kind: DeviceKind = "cuda") -> int:
    """Returns how many devices of a kind, "cpu" or "cuda", can be used on this machine."""
    return made(_capi.annulus_device_count(pick("kind", kind, DEVICE_KINDS)))


def hilbert_curve(length: int, width: int = 0) -> _np.ndarray:
    """Returns the order of the positions in a segment with order="hilbert": element p is the p-th position, from 0.

    length: the positions of the segment. width: the number of columns of the grid, a divisor of length; 0: the smallest
    divisor that is at least the square root of length. Returns int64 [length].
    """
    length, width = integer("length", length), integer("width", width)
    try:
        positions = _np.empty(max(length, 0), _np.int64)
    except (MemoryError, ValueError):
        raise OutOfMemoryError(f"length is {length}; there is no memory for so many positions") from None
    check(_capi.annulus_hilbert_curve(length, width, positions.__array_interface__["data"][0]))
    return positions


def __dir__() -> list[str]:
    return sorted([*__all__, *(name for name in globals() if name.startswith("__")), "jax", "slides", "torch", "types"])


def __getattr__(name: str) -> Any:
    """Imports annulus.torch, annulus.jax and annulus.slides when they are first used, since what they need may be
    missing."""
    if name in ("jax", "slides", "torch"):
        import importlib

        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
