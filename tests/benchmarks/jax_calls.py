# SPDX-License-Identifier: Apache-2.0
"""Compares what forward and backward take under jax.jit with what the C functions take, for LongNet's six branches.

    jax_calls.py [--length 262144] [--heads 16] [--head-dim 64] [--dtype bfloat16] [--calls 10]

Prints the milliseconds of one forward and backward, the median of the batches of calls, and their ratio. A batch's calls
are queued one after the other. Computes on JAX's default device. PYTHONPATH names the built package
(build/.../bindings/python). It is not part of the test suite.
"""

import argparse
import statistics
import time

import jax
import jax.numpy as jnp

import annulus
from annulus import _arrays, _capi
from annulus.jax import attention

CONFIG = annulus.Config.longnet(2048, causal=True)
BATCHES = 9


def milliseconds(call, wait, calls):
    """Returns the median, over batches, of the time of a call. wait(result): waits for the batch's last call."""
    wait(call())  # compiles, plans
    times = []
    for _ in range(BATCHES):
        start = time.perf_counter()
        for _ in range(calls):
            result = call()
        wait(result)
        times.append((time.perf_counter() - start) / calls * 1e3)
    return statistics.median(times)


def time_jax(arrays, calls):
    def both_passes(q, k, v, d_out):
        out, gradients_of = jax.vjp(lambda q, k, v: attention(q, k, v, CONFIG), q, k, v)
        return out, gradients_of(d_out)

    compiled = jax.jit(both_passes).lower(*arrays).compile()
    return milliseconds(lambda: compiled(*arrays), jax.block_until_ready, calls)


def tensor(array):
    shape = array.shape
    dtype = _arrays.DTYPES[array.dtype.name]
    return _capi.annulus_tensor(array.unsafe_buffer_pointer(), dtype, shape, _arrays.contiguous(shape))


def time_c(arrays, calls):
    """Times the C functions on the legacy stream, in arrays and in a workspace that are made before."""
    q, k, v, d_out = arrays
    (device,) = q.devices()
    is_gpu = device.platform == "gpu"
    context = annulus.Context(CONFIG, f"cuda:{device.local_hardware_id}" if is_gpu else "cpu")
    batch, length, heads, head_dim = q.shape
    sizes = dict(kv_heads=k.shape[2], batch=batch, dtype=q.dtype.name, row_alignment=16)
    passes = "forward", "backward"
    workspace_bytes = max(context.workspace_size(length, heads, head_dim, pass_=one, **sizes) for one in passes)
    out, d_q, d_k, d_v = (jnp.zeros_like(array) for array in (q, q, k, v))
    lse = jnp.zeros((batch, heads, length), _arrays.lse_dtype(q.dtype.name))
    workspace = jnp.zeros((workspace_bytes,), "uint8")
    jax.block_until_ready([out, d_q, d_k, d_v, lse, workspace])
    context.set_workspace(workspace.unsafe_buffer_pointer(), workspace_bytes)
    rows = [tensor(array) for array in (q, k, v, out, lse)]
    gradients = [tensor(array) for array in (d_q, d_k, d_v)]
    d_out, pointer = tensor(d_out), context._handle.pointer

    def call():
        annulus._errors.check(_capi.annulus_forward(pointer, *rows, None))
        annulus._errors.check(_capi.annulus_backward(pointer, *rows, d_out, None, *gradients, None))

    def wait(_):
        if is_gpu:
            _arrays._synchronise(0, device.local_hardware_id)

    return milliseconds(call, wait, calls)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--length", type=int, default=262144)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--calls", type=int, default=10)
    options = parser.parse_args()
    shape = (1, options.length, options.heads, options.head_dim)
    arrays = [jax.random.normal(key, shape, options.dtype) for key in jax.random.split(jax.random.key(1), 4)]
    jax.block_until_ready(arrays)
    (device,) = arrays[0].devices()
    print(f"JAX {jax.__version__} on {device.device_kind}; LongNet's six, causal, {options.dtype} {list(shape)}")
    c, jitted = time_c(arrays, options.calls), time_jax(arrays, options.calls)
    print(f"forward and backward: C {c:.3f} ms, jax.jit {jitted:.3f} ms, ratio {jitted / c:.3f}")


if __name__ == "__main__":
    main()
