# SPDX-License-Identifier: Apache-2.0
"""A small job, forward and backward. The example of every language does it, and prints the same lines."""

import annulus
import numpy as np

SHAPE = (1, 64, 4, 16)


def numbers():
    """Yields numbers in [-1, 1) from a linear congruential generator."""
    state = 1
    while True:
        state = (state * 1664525 + 1013904223) % 2**32
        yield (state >> 8) / 2**23 - 1


generator = numbers()
q, k, v, d_out = (np.fromiter(generator, np.float32, int(np.prod(SHAPE))).reshape(SHAPE) for _ in range(4))

context = annulus.Context(annulus.Config([(16, 1), (64, 4)], causal=True))
out, lse = context.forward(q, k, v)
d_q, d_k, d_v = context.backward(q, k, v, out, lse, d_out)


def total(array):
    return sum(array.ravel().tolist())  # one after the other, in float64


print(f"sum(out) = {total(out):.6f}")
print(f"sum(lse) = {total(lse):.6f}")
print("out[0..3] =", *(f"{number:.6f}" for number in out.ravel()[:4]))
print(f"sum(q * dq) = {total(q.astype(float) * d_q):.6f}")
print(f"sum(k * dk) = {total(k.astype(float) * d_k):.6f}")
