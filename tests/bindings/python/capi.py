# SPDX-License-Identifier: Apache-2.0
"""The C API called by ctypes, without the package under test, whose results must equal these bit for bit."""

import contextlib
import ctypes
import os

from c_structs import Branch
import tap

try:
    import numpy as np
except ImportError:
    tap.skip_all("needs NumPy")

LIBRARY = ctypes.CDLL(os.environ["ANNULUS_LIBRARY"])
DTYPES = {"float64": 1, "float32": 2, "bfloat16": 3, "float16": 4}


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_int),
        ("ndim", ctypes.c_int32),
        ("shape", ctypes.c_int64 * 4),
        ("stride", ctypes.c_int64 * 4),
    ]


def tensor(array, dtype):
    """Makes a tensor of an array with any strides. bfloat16 may be any dtype of 2 bytes."""
    strides = [stride // array.itemsize for stride in array.strides]
    return ctypes.byref(Tensor(array.ctypes.data, DTYPES[dtype], array.ndim, tuple(array.shape), tuple(strides)))


def check(status):
    assert status == 0, status


@contextlib.contextmanager
def context(branches, causal):
    config, made = ctypes.c_void_p(), ctypes.c_void_p()
    check(LIBRARY.annulus_config_create(ctypes.byref(config)))
    for w, r in branches:
        check(LIBRARY.annulus_config_add_branch(config, ctypes.byref(Branch.plain(w, r)), None))
    check(LIBRARY.annulus_config_set_causal(config, int(causal)))
    check(LIBRARY.annulus_context_create(ctypes.byref(made), 1, 0))
    check(LIBRARY.annulus_context_set_config(made, config))
    yield made
    LIBRARY.annulus_context_destroy(made)
    LIBRARY.annulus_config_destroy(config)


def compute(q, k, v, d_out, branches, causal, dtype):
    """Computes (out, lse, d_q, d_k, d_v). The arrays hold numbers of `dtype`, in the NumPy dtype of q."""
    b, n, h, _ = q.shape
    out, d_q = np.empty(q.shape, q.dtype), np.empty(q.shape, q.dtype)
    d_k, d_v = np.empty(k.shape, q.dtype), np.empty(v.shape, q.dtype)
    lse_dtype = "float64" if dtype == "float64" else "float32"
    lse = np.empty((b, h, n), lse_dtype)
    with context(branches, causal) as made:
        rows = [tensor(array, dtype) for array in (q, k, v, out)]
        check(LIBRARY.annulus_forward(made, *rows, tensor(lse, lse_dtype), None))
        gradients = [tensor(array, dtype) for array in (d_q, d_k, d_v)]
        check(
            LIBRARY.annulus_backward(made, *rows, tensor(lse, lse_dtype), tensor(d_out, dtype), None, *gradients, None)
        )
    return out, lse, d_q, d_k, d_v


def numbers(seed, *shapes, dtype="float32"):
    generator = np.random.default_rng(seed)
    return [generator.standard_normal(shape).astype(dtype) for shape in shapes]
