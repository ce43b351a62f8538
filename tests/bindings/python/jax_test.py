# SPDX-License-Identifier: Apache-2.0
"""annulus.jax: the same numbers as Context's calls, gradients against finite differences, and JAX's transforms."""

import unittest
from unittest import mock

import capi
import tap
from capi import np

try:
    import jax
except ImportError:
    tap.skip_all("needs JAX")

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp  # noqa: E402 - after the settings

import annulus  # noqa: E402
from annulus.jax import attention  # noqa: E402

CONFIG = annulus.Config([(16, 1), (0, 3)], causal=True)
SHAPE, KV_SHAPE = (2, 37, 4, 8), (2, 37, 2, 8)


def inputs(dtype="float64"):
    return [jnp.asarray(array) for array in capi.numbers(1, SHAPE, KV_SHAPE, KV_SHAPE, SHAPE, dtype=dtype)]


class JaxTest(unittest.TestCase):
    def same(self, found, wanted):
        found, wanted = np.asarray(found), np.asarray(wanted)
        self.assertEqual((found.dtype, found.shape), (wanted.dtype, wanted.shape))
        self.assertEqual(found.tobytes(), wanted.tobytes())

    def test_same_numbers_as_the_context(self):
        context = annulus.Context(CONFIG)
        d_lse = jnp.asarray(capi.numbers(2, (2, 4, 37))[0])
        for dtype in ("float64", "float32", "float16", jnp.bfloat16):
            with self.subTest(dtype):
                q, k, v, d_out = inputs(dtype)
                weights = d_lse.astype("float64" if dtype == "float64" else "float32")
                (out, lse), gradients_of = jax.vjp(lambda *a: attention(*a, CONFIG, return_lse=True), q, k, v)
                arrays = [np.asarray(array) for array in (q, k, v, d_out, weights)]
                wanted, wanted_lse = context.forward(*arrays[:3])
                self.same(out, wanted)
                self.same(lse, wanted_lse)
                gradients = context.backward(*arrays[:3], wanted, wanted_lse, arrays[3], d_lse=arrays[4])
                for found, gradient in zip(gradients_of((d_out, weights)), gradients):
                    self.same(found, gradient)

    def test_gradients_are_those_of_finite_differences(self):
        q, k, v, weights = inputs()

        def loss(q, k, v):
            out, lse = attention(q, k, v, CONFIG, return_lse=True)
            return (out * weights).sum() + jnp.sin(lse).sum()

        for compiled in (loss, jax.jit(loss)):
            gradients = jax.grad(compiled, (0, 1, 2))(q, k, v)
            step = 1e-6
            for i, direction in enumerate(capi.numbers(3, SHAPE, KV_SHAPE, KV_SHAPE, dtype="float64")):
                above, below = [q, k, v], [q, k, v]
                above[i], below[i] = above[i] + step * direction, below[i] - step * direction
                slope = (compiled(*above) - compiled(*below)) / (2 * step)
                self.assertAlmostEqual(float((gradients[i] * direction).sum()), float(slope), delta=1e-6)

    def test_layout(self):
        q, k, v, weights = inputs()

        def run(layout, *arrays):
            loss = lambda *a: (attention(*a, CONFIG, layout=layout) * arrays[3]).sum()
            return attention(*arrays[:3], CONFIG, return_lse=True, layout=layout), jax.grad(loss, (0, 1, 2))(
                *arrays[:3]
            )

        (out, lse), gradients = run(None, q, k, v, weights)
        (new_out, new_lse), new_gradients = run("bhnd", *(x.swapaxes(1, 2) for x in (q, k, v, weights)))
        self.same(new_out, out.swapaxes(1, 2))
        self.same(new_lse, lse)
        for found, wanted in zip(new_gradients, gradients):
            self.same(found, wanted.swapaxes(1, 2))

    def test_vmap_makes_one_call(self):
        q, k, v, _ = inputs()
        wanted = attention(q, k, v, CONFIG)
        compute = annulus.jax._forward_on_host
        with mock.patch.object(annulus.jax, "_forward_on_host", side_effect=compute) as calls:
            self.same(jax.vmap(lambda *a: attention(*a, CONFIG))(q, k, v), wanted)
        self.assertEqual(calls.call_count, 1)
        several = jax.vmap(lambda *a: attention(*a, CONFIG, sequence_lengths=[30, 37]), (0, None, 0))
        found = several(jnp.stack([q, -q]), k, jnp.stack([v, v]))
        for i, sign in enumerate((1, -1)):
            self.same(found[i], attention(sign * q, k, v, CONFIG, sequence_lengths=[30, 37]))
        each = jax.vmap(jax.grad(lambda q, k, v: attention(q, k, v, CONFIG).sum(), (0, 1, 2)))(q, k, v)
        whole = jax.grad(lambda q, k, v: attention(q, k, v, CONFIG).sum(), (0, 1, 2))(q, k, v)
        for found, wanted in zip(each, whole):
            self.same(found, wanted)

    def test_windows_and_sequences(self):
        q, k, v, _ = inputs()
        out = attention(q, k, v, CONFIG)
        self.same(attention(q[:, 30:], k, v, CONFIG, query_start=30), out[:, 30:])
        packed = jax.jit(lambda *a: attention(*a, CONFIG, sequence_starts=[0, 20, 37]))(q, k, v)
        self.same(packed[:, 20:], attention(q[:, 20:], k[:, 20:], v[:, 20:], CONFIG))

    def test_refusals(self):
        q, k, v, _ = inputs()
        for words, error, call in (
            ("is_causal .* causal=", annulus.ArgumentError, lambda: attention(q, k, v, CONFIG, is_causal=True)),
            (
                "k has dtype float32; it must be float64, as q's",
                annulus.ArgumentError,
                lambda: attention(q, k.astype("f4"), v, CONFIG),
            ),
            (
                "^q has dtype int32; it must be float64, float32, bfloat16, float16$",
                annulus.ArgumentError,
                lambda: attention(*(x.astype("i4") for x in (q, k, v)), CONFIG),
            ),
            (
                "^q has dtype int32; it must be float64, float32, bfloat16, float16$",
                annulus.ArgumentError,
                lambda: annulus.attention(*(x.astype("i4") for x in (q, k, v)), CONFIG),
            ),
            (
                "^sequence_lengths is traced by jax.jit, .*; it must be known when JAX compiles: .* static_argnums",
                annulus.UnsupportedError,
                lambda: jax.jit(lambda n: attention(q, k, v, CONFIG, sequence_lengths=n))(jnp.array([3, 4])),
            ),
            (
                "^sequence_starts is traced",
                annulus.UnsupportedError,
                lambda: jax.jit(lambda n: attention(q, k, v, CONFIG, sequence_starts=[0, n]))(3),
            ),
            (
                "^query_start is traced",
                annulus.UnsupportedError,
                lambda: jax.jit(lambda n: attention(q, k, v, CONFIG, query_start=n))(0),
            ),
            ("q has 2 dimensions", annulus.ArgumentError, lambda: attention(q[0, 0], k, v, CONFIG)),
            ("k is a list", TypeError, lambda: attention(q, [1.0], v, CONFIG)),
            ("layout is 'nd'", annulus.ArgumentError, lambda: attention(q, k, v, CONFIG, layout="nd")),
            ("q has 37 rows and k has 36", annulus.ArgumentError, lambda: attention(q, k[:, 1:], v[:, 1:], CONFIG)),
            (
                "annulus.jax.attention",
                annulus.UnsupportedError,
                lambda: jax.jit(lambda q: annulus.attention(q, k, v, CONFIG))(q),
            ),
        ):
            with self.subTest(words), self.assertRaisesRegex(error, words):
                call()

    def test_other_derivatives_are_refused(self):
        q, k, v, _ = inputs()
        loss = lambda q: attention(q, k, v, CONFIG).sum()
        with self.assertRaises(TypeError):
            jax.jvp(loss, (q,), (q,))
        with self.assertRaises((TypeError, ValueError)):
            jax.grad(lambda q: jax.grad(loss)(q).sum())(q)


if __name__ == "__main__":
    tap.main()
