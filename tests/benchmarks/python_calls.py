# SPDX-License-Identifier: Apache-2.0
"""Measures the overhead of calls from Python in microseconds, by a call with one head and 8 tokens. Also measures what
a module adds to its projections and its attention.

A batch has 100 calls. The table shows the fastest batch, and the time that the fastest third of the batches does not
exceed. `C` is the call of the C function alone, on one thread. PYTHONPATH names the built package
(build/.../bindings/python). It is not part of the test suite.
"""

import importlib.util
import time

import numpy as np

import annulus
from annulus import _arrays, _capi

BRANCHES = [(8, 1)]
CONFIG = annulus.Config(BRANCHES)
CALLS, BATCHES = 100, 150


def show(name, call):
    times = []
    for _ in range(BATCHES):
        start = time.perf_counter()
        for _ in range(CALLS):
            call()
        times.append((time.perf_counter() - start) / CALLS * 1e6)
    times.sort()
    print(f"{name:42} {times[0]:7.1f} {times[BATCHES // 3]:7.1f}", flush=True)


def time_numpy():
    q, k, v = (np.random.default_rng(i).standard_normal((1, 8, 1, 8), np.float32) for i in range(3))
    context = annulus.Context(CONFIG, threads=1)
    out, lse = context.forward(q, k, v)
    tensors = [_arrays.tensor(_arrays.view("rows", array), 4) for array in (q, k, v, out)]
    tensors.append(_arrays.tensor(_arrays.view("lse", lse), 3))
    show("C", lambda: _capi.annulus_forward(context._handle, *tensors, None))
    show("NumPy, attention() of a list", lambda: annulus.attention(q, k, v, BRANCHES, causal=True))
    show("NumPy, attention() of a Config", lambda: annulus.attention(q, k, v, CONFIG))
    show("NumPy, Context.forward()", lambda: context.forward(q, k, v))
    show("NumPy, Context.backward()", lambda: context.backward(q, k, v, out, lse, out))


def time_torch():
    import torch
    from annulus.torch import dilated_attention

    q, k, v = (torch.randn(1, 8, 1, 8) for _ in range(3))
    print("PyTorch", torch.__version__)
    show("dilated_attention() of a list", lambda: dilated_attention(q, k, v, BRANCHES, causal=True))
    show("dilated_attention() of a Config", lambda: dilated_attention(q, k, v, CONFIG))
    q.requires_grad_()
    show("the same, with a gradient to come", lambda: dilated_attention(q, k, v, CONFIG))
    d_out = torch.ones_like(q)
    show("the same and its backward()", lambda: dilated_attention(q, k, v, CONFIG).backward(d_out))


def time_module():
    """Times a module of Prov-GigaPath's size with 1000 rows. Its projections, norm and attention return their input."""
    import torch
    from annulus.torch import LongNetAttention, _modules

    class Through(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.empty(0))

        def forward(self, rows):
            return rows

    module, x = LongNetAttention(768, 16, [1024, 5792], [1, 2]), torch.zeros(1, 1000, 768)
    for name in ("q_proj", "k_proj", "v_proj", "out_proj", "inner_attn_ln"):
        setattr(module, name, Through())
    attend, _modules.attend = _modules.attend, lambda q, k, v, *_, **__: (q, None)
    show("LongNetAttention beside what it calls", lambda: module(x, x, x))
    show("of that, a call of a submodule, of five", lambda: module.q_proj(x))
    _modules.attend = attend


if __name__ == "__main__":
    print(f"{'microseconds a call':42} {'fastest':>7} {'third':>7}")
    time_numpy()
    if importlib.util.find_spec("torch"):
        time_torch()
        time_module()
