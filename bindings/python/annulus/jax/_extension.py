# SPDX-License-Identifier: Apache-2.0
"""The shared library with annulus's custom calls for XLA. It is registered with JAX when this module is imported."""

from __future__ import annotations

import ctypes
import functools
import pathlib

import jax
from jaxlib import xla_client

from .. import _capi
from .._choices import DEVICE_KINDS
from .._errors import UnsupportedError, check, made
from .._mistakes import warn

# What stands for JAX while the pages are made has no version.
if () < tuple(jax.__version_info__) < (0, 6):
    raise ImportError(f"annulus.jax needs JAX 0.6 or newer; this is {jax.__version__}")

_LIBRARY = pathlib.Path(__file__).with_name("libannulus_xla.so")
_PASSES = ("forward", "backward", "mass", "merge")
# JAX's names of platforms when programs are compiled, and when custom calls are registered.
_PLATFORMS = {"cpu": "cpu", "cuda": "CUDA"}


def target_name(platform: str, pass_: str) -> str:
    """Returns the name of a pass's custom call in compiled programs, and of its function in the library."""
    return f"annulus_{platform}_{pass_}"


def _register_at_once() -> None:
    """Makes JAX register custom calls for CPUs at once. It would do so when it starts, and would not start if XLA
    refuses one of them, for example because it was compiled for an interface that XLA does not take."""
    register = getattr(getattr(xla_client, "_xla", None), "register_custom_call_target", None)
    if register is not None:
        xla_client.register_custom_call_handler("cpu", register)


def _register() -> str | None:
    """Registers the custom calls. Returns why that is impossible, or None."""
    if not _LIBRARY.exists():
        return "annulus was built without its custom calls for XLA (Meson option jax)"
    try:
        library = ctypes.CDLL(str(_LIBRARY))
        _register_at_once()
        for platform, registered in _PLATFORMS.items():
            for pass_ in _PASSES:
                name = target_name(platform, pass_)
                jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(getattr(library, name)), platform=registered)
    except Exception as error:  # its type depends on the version of jaxlib
        return f"JAX {jax.__version__} does not take annulus's custom calls: {error}"
    return None


_refusal = _register()


@functools.lru_cache(maxsize=None)
def _why_no_cuda() -> str | None:
    """Returns why annulus cannot compute on CUDA devices, or None."""
    if made(_capi.annulus_device_count(DEVICE_KINDS["cuda"])) > 0:
        return None
    try:
        check(_capi.annulus_context_create(DEVICE_KINDS["cuda"], 0)[0])
    except UnsupportedError as error:
        return str(error)
    return "annulus finds no CUDA device"


def why_not(platform: str) -> str | None:
    """Returns why a platform of JAX has no custom calls, or None if it has them."""
    if _refusal is not None:
        return _refusal
    if platform not in _PLATFORMS:
        return f"annulus has no custom calls for JAX's platform {platform!r}"
    return _why_no_cuda() if platform == "cuda" else None


@functools.lru_cache(maxsize=None)
def warn_of_callbacks(reason: str) -> None:
    """Warns, once for each reason, that annulus.jax computes by callbacks."""
    warn(f"annulus.jax computes on the host's CPU, by callbacks of JAX: {reason}", through=("jax", "contextlib"))
