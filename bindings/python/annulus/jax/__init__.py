# SPDX-License-Identifier: Apache-2.0
"""Dilated attention for JAX: functions that work under jax.grad, jax.jit, jax.vmap, jax.lax.scan, jax.checkpoint and
jax.shard_map.

    from annulus.jax import attention

    loss = lambda q, k, v: attention(q, k, v, [(2048, 1), (8192, 4)], causal=True).sum()
    d_q, d_k, d_v = jax.jit(jax.grad(loss, (0, 1, 2)))(q, k, v)

The functions compute on the arrays' device, a CPU or an NVIDIA GPU, as custom calls of XLA: on XLA's stream, in memory
that XLA allocates. Without custom calls the functions warn once that they compute on the host's CPU instead, by a
callback of JAX, which copies arrays on a GPU there and back. Needs JAX 0.6 or newer.

annulus.attention() takes concrete arrays of JAX, too, without a gradient.
"""

from . import _extension  # noqa: F401 - first, since it checks JAX's version
from ._attention import attention
from ._mass import attention_mass
from ._merge import merge

__all__ = ["attention", "attention_mass", "merge"]


def __dir__() -> list[str]:
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])
