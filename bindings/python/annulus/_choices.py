# SPDX-License-Identifier: Apache-2.0
"""The words that arguments may be, with the C API's number for each."""

from __future__ import annotations

from . import _capi

PHASES = {"block": _capi.ANNULUS_PHASE_BLOCK, "interleave": _capi.ANNULUS_PHASE_INTERLEAVE}
QUERIES = {
    "dilated": _capi.ANNULUS_QUERY_DILATED,
    "residue": _capi.ANNULUS_QUERY_RESIDUE,
    "every": _capi.ANNULUS_QUERY_EVERY,
}
ORDERS = {"linear": _capi.ANNULUS_ORDER_LINEAR, "hilbert": _capi.ANNULUS_ORDER_HILBERT}
KINDS = {
    "segments": _capi.ANNULUS_BRANCH_SEGMENTS,
    "window": _capi.ANNULUS_BRANCH_WINDOW,
    "global": _capi.ANNULUS_BRANCH_GLOBAL,
}
PADDINGS = {"exact": _capi.ANNULUS_PADDING_EXACT, "zero_keys": _capi.ANNULUS_PADDING_ZERO_KEYS}
KEY_RULES = {"each_branch": _capi.ANNULUS_KEY_EACH_BRANCH, "once": _capi.ANNULUS_KEY_ONCE}
EXCHANGES = {
    "auto": _capi.ANNULUS_EXCHANGE_AUTO,
    "ring": _capi.ANNULUS_EXCHANGE_RING,
    "gather": _capi.ANNULUS_EXCHANGE_GATHER,
}
ENGINES = {
    _capi.annulus_engine_name(engine): engine
    for engine in (
        _capi.ANNULUS_ENGINE_AUTO,
        _capi.ANNULUS_ENGINE_REFERENCE,
        _capi.ANNULUS_ENGINE_CPU,
        _capi.ANNULUS_ENGINE_GEMM,
        _capi.ANNULUS_ENGINE_FUSED,
        _capi.ANNULUS_ENGINE_MMA,
    )
}
PASSES = {
    "forward": _capi.ANNULUS_PASS_FORWARD,
    "backward": _capi.ANNULUS_PASS_BACKWARD,
    "mass": _capi.ANNULUS_PASS_MASS,
}
DEVICE_KINDS = {"cpu": _capi.ANNULUS_DEVICE_CPU, "cuda": _capi.ANNULUS_DEVICE_CUDA}
