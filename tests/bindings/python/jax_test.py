# SPDX-License-Identifier: Apache-2.0
"""annulus.jax: the same numbers as Context's calls, gradients against finite differences, and JAX's transforms.

jax_test.py runs itself as `jax_test.py --exported FILE` to call an exported program in a new process.
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import textwrap
import unittest
import warnings
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import capi
import jax_python
import pages_test
import tap
from capi import np

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
try:
    import jax
except ImportError:
    jax_python.find_jax()

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp  # noqa: E402 - after the settings

from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec  # noqa: E402

import annulus  # noqa: E402
from annulus.jax import _extension, attention, attention_mass, merge  # noqa: E402

CONFIG = annulus.Config([(16, 1), (0, 3)], causal=True)
SHAPE, KV_SHAPE = (2, 37, 4, 8), (2, 37, 2, 8)


def inputs(dtype="float64"):
    return [jnp.asarray(array) for array in capi.numbers(1, SHAPE, KV_SHAPE, KV_SHAPE, SHAPE, dtype=dtype)]


def gradients(q, k, v, config=CONFIG):
    return jax.grad(lambda *a: jnp.square(attention(*a, config)).sum(), (0, 1, 2))(q, k, v)


def program(function, *arrays):
    """Returns the text of the program that JAX compiles for a function."""
    return jax.jit(function).lower(*arrays).as_text()


# Custom calls that were built and that JAX refuses are a failure.
needs_custom_calls = unittest.skipUnless(_extension._LIBRARY.exists(), "needs a build with custom calls for JAX")


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
        together = lambda *a: jax.vmap(lambda *a: attention(*a, CONFIG))(*a)
        self.same(together(q, k, v), wanted)
        text = program(together, q, k, v)
        self.assertEqual(text.count("custom_call @"), 1, text)
        several = jax.vmap(lambda *a: attention(*a, CONFIG, sequence_lengths=[30, 37]), (0, None, 0))
        found = several(jnp.stack([q, -q]), k, jnp.stack([v, v]))
        for i, sign in enumerate((1, -1)):
            self.same(found[i], attention(sign * q, k, v, CONFIG, sequence_lengths=[30, 37]))
        each = jax.vmap(jax.grad(lambda q, k, v: attention(q, k, v, CONFIG).sum(), (0, 1, 2)))(q, k, v)
        whole = jax.grad(lambda q, k, v: attention(q, k, v, CONFIG).sum(), (0, 1, 2))(q, k, v)
        for found, wanted in zip(each, whole):
            self.same(found, wanted)

    def test_vmap_over_no_entries(self):
        q, k, v, _ = inputs()
        with self.assertRaisesRegex(annulus.ArgumentError, "batch is 0"):
            jax.jit(jax.vmap(lambda *a: attention(*a, CONFIG)))(*(x[:0] for x in (q, k, v)))

    def test_without_float64(self):
        """By default JAX makes float32 of NumPy's float64. Attributes of custom calls keep their 64 bits."""
        jax.config.update("jax_enable_x64", False)
        self.addCleanup(jax.config.update, "jax_enable_x64", True)
        arrays = capi.numbers(1, SHAPE, KV_SHAPE, KV_SHAPE, dtype="float64")
        floats = [array.astype("float32") for array in arrays]
        config = CONFIG.replace(scale=0.3, workspace_limit=2**40)
        out, lse = attention(*arrays, config, sequence_starts=[0, 20, 37], return_lse=True)
        wanted = annulus.Context(config).forward(*floats, sequence_starts=[0, 20, 37])
        self.same(out, wanted[0])
        self.same(lse, wanted[1])
        mass = attention_mass(*arrays[:2], config, lse=lse, sequence_starts=[0, 20, 37])
        self.same(mass, annulus.attention_mass(*floats[:2], config, sequence_starts=[0, 20, 37]))
        self.same(merge([(wanted[0].astype("float64"), lse)])[0], out)

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
            ("k has 3 dimensions; it must have 4, as q", annulus.ArgumentError, lambda: attention(q, k[0], v, CONFIG)),
            (
                r"k has shape \[1, 37, 2, 8\] and q \[2, 37, 4, 8\]; B and D must be the same",
                annulus.ArgumentError,
                lambda: attention(q, k[:1], v[:1], CONFIG),
            ),
            (
                r"v has shape \[2, 37, 1, 8\]; it must have \[2, 37, 2, 8\], as k has",
                annulus.ArgumentError,
                lambda: attention(q, k, v[:, :, :1], CONFIG),
            ),
            (
                "kv_heads is 2; .* must divide the 3 query heads",
                annulus.ArgumentError,
                lambda: jax.jit(attention, static_argnums=3)(q[:, :, :3], k, v, CONFIG),
            ),
            (
                "lse has shape .* and dtype float64; it must have .* and float64, as attention",
                annulus.ArgumentError,
                lambda: attention_mass(q, k, CONFIG, lse=jnp.zeros((2, 37, 4))),
            ),
            ("is_causal .* causal=", annulus.ArgumentError, lambda: attention_mass(q, k, CONFIG, is_causal=True)),
            ("parts has 0 pairs", annulus.ArgumentError, lambda: merge([])),
            (
                r"lse of parts\[1\] has shape .* and dtype float32; it must have .* and float64",
                annulus.ArgumentError,
                lambda: merge([(q, jnp.zeros((2, 4, 37))), (q, jnp.zeros((2, 4, 37), "float32"))]),
            ),
            (
                r"out of parts\[1\] has shape .*, as out of parts\[0\]",
                annulus.ArgumentError,
                lambda: merge([(q, jnp.zeros((2, 4, 37))), (k, jnp.zeros((2, 2, 37)))]),
            ),
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
        with self.assertRaisesRegex(annulus.UnsupportedError, "once and in reverse mode"):
            jax.grad(lambda q: jax.grad(loss)(q).sum())(q)

    @needs_custom_calls
    def test_programs_have_custom_calls(self):
        q, k, v, _ = inputs("float32")
        text = program(gradients, q, k, v)
        for name in ("annulus_cpu_forward", "annulus_cpu_backward"):
            self.assertEqual(text.count(f"custom_call @{name}("), 1, text)
        self.assertNotIn("callback", text)
        workspace = annulus.Context(CONFIG).workspace_size(37, 4, 8, kv_heads=2, batch=2, row_alignment=16)
        self.assertIn(f"tensor<{workspace}xui8>", text)
        self.assertIn("annulus_cpu_mass(", program(lambda q, k: attention_mass(q, k, CONFIG), q, k))
        lse = jnp.zeros((2, 4, 37), "float32")
        self.assertIn("annulus_cpu_merge(", program(lambda *part: merge([part, part]), q, lse))

    def test_heads_without_keys(self):
        q, k, v, _ = inputs()
        with self.assertWarnsRegex(UserWarning, "^1 of 4 heads attend to no key") as caught:
            attention(q, k, v, [annulus.Branch(0, 1, heads=(0, 3))])
        self.assertEqual(caught.filename, __file__)

    def test_without_b(self):
        q, k, v, _ = inputs()
        out, lse = attention(q[1], k[1], v[1], CONFIG, return_lse=True)
        self.same(out, attention(q, k, v, CONFIG)[1])
        self.same(attention_mass(q[1], k[1], CONFIG, lse=lse), attention_mass(q, k, CONFIG)[1])
        self.same(merge([(out, lse)])[0], out)

    def test_options_of_the_config(self):
        """Every option reaches the custom call: each config gives the numbers that it gives without JAX."""
        q, k, v, _ = inputs()
        arrays = [np.asarray(array) for array in (q, k, v)]
        branch = annulus.Branch
        found = set()
        for config in (
            annulus.Config([(37, 2)]),
            annulus.Config([(37, 2)], causal=True),
            annulus.Config([(37, 2)], scale=0.25),
            annulus.Config([(37, 2)], scale=-3),
            annulus.Config([(16, 3)], padding="zero_keys"),
            annulus.Config([(37, 2), (16, 1)], key_rule="each_branch"),
            annulus.Config([(37, 2), (16, 1)], key_rule="once"),
            annulus.Config([(37, 4)], head_shard=(4, 8)),
            annulus.Config([(37, 4)], engine="reference"),
            annulus.Config([branch(37, 4, phase="interleave")]),
            annulus.Config([branch(37, 4, phase=3)]),
            annulus.Config([branch(37, 4, query="residue")]),
            annulus.Config([branch(37, 4, query="every")]),
            annulus.Config([branch.window(5, 2), branch.global_tokens(2, first=3, queries=True)], key_rule="once"),
            annulus.Config([branch.window(5, 2), branch.global_tokens(2, first=4, queries=True)], key_rule="once"),
            annulus.Config([branch.window(5, 3), branch.global_tokens(2, first=4)], key_rule="once"),
            annulus.Config([branch(37, 4, heads=(1, 2))]),
            annulus.Config([branch(20, 2, order="hilbert", grid_width=5)]),
            annulus.Config([branch(20, 2, order="hilbert", grid_width=10)]),
        ):
            with self.subTest(config), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # some heads have no keys
                wanted = annulus.Context(config).forward(*arrays)[0]
                self.same(attention(q, k, v, config), wanted)
                found.add(wanted.tobytes())
        self.assertGreaterEqual(len(found), 18)  # engines agree up to rounding

    def test_attention_mass(self):
        for dtype in ("float64", "float32", jnp.bfloat16):
            q, k, v, _ = inputs(dtype)
            wanted = annulus.attention_mass(np.asarray(q), np.asarray(k), CONFIG)
            _, lse = attention(q, k, v, CONFIG, return_lse=True)
            self.same(attention_mass(q, k, CONFIG), wanted)
            self.same(jax.jit(lambda q, k, lse: attention_mass(q, k, CONFIG, lse=lse))(q, k, lse), wanted)
            self.same(jax.vmap(lambda q, k: attention_mass(q, k, CONFIG))(q, k), wanted)
            bhnd = (x.swapaxes(1, 2) for x in (q, k))
            self.same(attention_mass(*bhnd, CONFIG, lse=lse, layout="bhnd"), wanted)
        self.same(jax.grad(lambda q: attention_mass(q, k, CONFIG).sum())(q), jnp.zeros_like(q))
        one = attention_mass(q[:, 30:31], k, CONFIG, query_start=30)
        self.assertAlmostEqual(float(one.sum()), 8, delta=0.1)

    def test_merge(self):
        q, k, v, weights = inputs()
        whole, whole_lse = attention(q, k, v, [(0, 1)], return_lse=True)
        parts = [
            attention(q, k, v, [annulus.Branch(0, 2, phase=phase, query="every")], return_lse=True) for phase in (0, 1)
        ]
        nothing = jnp.full_like(whole, jnp.nan), jnp.full_like(whole_lse, -jnp.inf)
        for found in (merge(parts), jax.jit(merge)([*parts, nothing]), jax.vmap(merge)([*parts])):
            np.testing.assert_allclose(found[0], whole, rtol=1e-13, atol=1e-13)
            np.testing.assert_allclose(found[1], whole_lse, rtol=1e-13)

        def loss(q, k, v, parted):
            if parted:
                out, lse = merge(
                    [
                        attention(q, k, v, [annulus.Branch(0, 2, phase=p, query="every")], return_lse=True)
                        for p in (0, 1)
                    ]
                    + [nothing]
                )
            else:
                out, lse = attention(q, k, v, [(0, 1)], return_lse=True)
            return (out * weights).sum() + jnp.sin(lse).sum()

        found, wanted = (jax.grad(loss, (0, 1, 2))(q, k, v, parted) for parted in (True, False))
        for one, other in zip(found, wanted):
            np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-12)
        # The derivative of the derivative, against finite differences.
        out, lse = parts[0]
        slope = lambda out: (
            jax.grad(lambda out, lse: jnp.square(merge([(out, lse), parts[1]])[0]).sum(), 1)(out, lse)
        ).sum()
        step = 1e-6 * weights
        wanted = (slope(out + step) - slope(out - step)) / 2e-6
        self.assertAlmostEqual(float((jax.grad(slope)(out) * weights).sum()), float(wanted), delta=1e-6)

    def test_scan_and_checkpoint(self):
        q, k, v, _ = inputs()

        def layers(q, wrap, steps):
            layer = wrap(lambda q: attention(q, k, v, CONFIG))
            if steps is jax.lax.scan:
                q, _ = jax.lax.scan(lambda q, _: (layer(q), None), q, None, length=3)
            else:
                for _ in range(3):
                    q = layer(q)
            return jnp.square(q).sum()

        wanted = jax.grad(layers)(q, lambda layer: layer, None)
        for wrap in (lambda layer: layer, jax.checkpoint):
            self.same(jax.jit(jax.grad(lambda q: layers(q, wrap, jax.lax.scan)))(q), wanted)

    @unittest.skipUnless(hasattr(jax, "shard_map"), "needs jax.shard_map")
    def test_shard_map(self):
        """Each of two devices has one entry of the batch. Gradients of k and v that both devices have add up."""
        q, k, v, _ = inputs()
        mesh, split, same = Mesh(np.array(jax.devices()[:2]), ("x",)), PartitionSpec("x"), PartitionSpec()

        def step(q, k, v):
            loss = lambda q, k, v: jax.lax.psum(jnp.square(attention(q, k, v, CONFIG)).sum(), "x")
            return jax.grad(loss, (0, 1, 2))(q, k, v)

        specs = split, split, split
        found = jax.jit(jax.shard_map(step, mesh=mesh, in_specs=specs, out_specs=specs, check_vma=True))(q, k, v)
        for one, wanted in zip(found, gradients(q, k, v)):
            self.same(one, wanted)
        specs = split, same, same
        found = jax.jit(jax.shard_map(step, mesh=mesh, in_specs=specs, out_specs=specs, check_vma=True))(
            q, k[:1], v[:1]
        )
        each = [gradients(q[i : i + 1], k[:1], v[:1]) for i in range(2)]
        self.same(found[0], jnp.concatenate([each[0][0], each[1][0]]))
        for one, first, second in zip(found[1:], each[0][1:], each[1][1:]):
            self.same(one, first + second)

        def others(q, k, v):
            _, lse = attention(q, k, v, CONFIG, return_lse=True)
            mass = jax.lax.psum(attention_mass(q, k, CONFIG, lse=lse), "x")
            return mass, merge([(q, lse)])[0]

        outputs = same, split
        mapped = jax.shard_map(others, mesh=mesh, in_specs=specs, out_specs=outputs, check_vma=True)
        mass, merged = jax.jit(mapped)(q, k[:1], v[:1])
        self.same(merged, q)
        self.same(mass, sum(attention_mass(q[i : i + 1], k[:1], CONFIG) for i in range(2)))

    @unittest.skipUnless(hasattr(jax.sharding, "reshard"), "needs jax.sharding.reshard")
    def test_sharded_arrays(self):
        """Arrays that a mesh shards are gathered, and their gradients are right, with both kinds of axes."""
        q, k, v, _ = inputs()
        for kind in (AxisType.Auto, AxisType.Explicit):
            mesh = jax.make_mesh((2,), ("x",), axis_types=(kind,))
            specs = PartitionSpec("x"), PartitionSpec(None, None, "x"), PartitionSpec()
            sharded = [jax.device_put(x, NamedSharding(mesh, spec)) for x, spec in zip((q, k, v), specs)]
            with self.subTest(kind):
                self.same(jax.jit(lambda *a: attention(*a, CONFIG))(*sharded), attention(q, k, v, CONFIG))
                for one, wanted in zip(jax.jit(gradients)(*sharded), gradients(q, k, v)):
                    self.same(one, wanted)

    def test_threads_share_a_program(self):
        """Eight threads run one compiled function on two devices. Each gets the numbers of its own arrays."""
        config = annulus.Config([(256, 1), (0, 3)], causal=True)
        q, k, v = capi.numbers(4, *[(1, 1500, 4, 32)] * 3)
        compiled = jax.jit(lambda *a: gradients(*a, config))
        arrays = [[jax.device_put(x, jax.devices()[i % 2]) for x in (q * (i + 1), k, v)] for i in range(8)]
        wanted = [compiled(*each) for each in arrays]

        with ThreadPoolExecutor(8) as pool:
            for _ in range(3):
                for found, results in zip(pool.map(lambda each: compiled(*each), arrays), wanted):
                    for one, other in zip(found, results):
                        self.same(one, other)

    @needs_custom_calls
    def test_more_configs_than_idle_contexts(self):
        q, k, v, _ = inputs("float32")
        arrays = [np.asarray(array) for array in (q, k, v)]
        configs = [annulus.Config([(w, 1)]) for w in range(1, 35)] + [annulus.Config([(w, 2)]) for w in range(2, 35)]
        programs = [jax.jit(lambda *a, c=config: attention(*a, c)).lower(q, k, v).compile() for config in configs]
        for _ in range(2):
            for config, compiled in zip(configs, programs):
                self.same(compiled(q, k, v), annulus.Context(config).forward(*arrays)[0])

    @needs_custom_calls
    def test_export(self):
        """An exported program and its derivative run in a process that imports annulus.jax and knows nothing else."""
        from jax import export

        try:
            import flatbuffers  # noqa: F401 - what JAX serializes with
        except ImportError:
            self.skipTest("needs flatbuffers")
        q, k, v, _ = inputs("float32")
        checks = [export.DisabledSafetyCheck.custom_call(f"annulus_cpu_{pass_}") for pass_ in ("forward", "backward")]
        exported = export.export(jax.jit(lambda *a: attention(*a, CONFIG)), disabled_checks=checks)(q, k, v)
        with tempfile.TemporaryDirectory() as directory:
            file = pathlib.Path(directory, "exported")
            file.write_bytes(exported.serialize(vjp_order=1))
            np.savez(file.with_suffix(".npz"), q=q, k=k, v=v)
            subprocess.run([sys.executable, __file__, "--exported", file], check=True, timeout=100)
            with np.load(file.with_suffix(".results.npz")) as results:
                self.same(results["out"], attention(q, k, v, CONFIG))
                for name, wanted in zip(("d_q", "d_k", "d_v"), gradients(q, k, v)):
                    self.same(results[name], wanted)

    @needs_custom_calls
    def test_examples_of_the_page(self):
        first, *others = pages_test.examples("doc/python.md")
        names, _ = pages_test.run(first, {})
        mine = [example for example in others if "from annulus.jax import" in example]
        self.assertEqual(len(mine), 2)
        for example in mine:
            with self.subTest(example):
                pages_test.run(example, names)

    @needs_custom_calls
    def test_errors_of_a_running_call(self):
        """What only the call itself can find is an error of JAX with the library's message."""
        q, k, v, _ = inputs("float32")
        attributes, _ = annulus.jax._calls._attributes("cpu", "forward", q, k, annulus.jax._calls.Call(CONFIG._text))
        results = [jax.ShapeDtypeStruct(shape, "float32") for shape in (q.shape, (2, 4, 37))]
        for workspace, arrays, words in (
            (0, (q, k, v[:, :30]), r"INVALID_ARGUMENT: shape\[1\] of v is 30; it must be 37"),
            (1, (q, k, v), "RESOURCE_EXHAUSTED: .* bytes"),
        ):
            call = jax.ffi.ffi_call("annulus_cpu_forward", [*results, jax.ShapeDtypeStruct((workspace,), "uint8")])
            with self.assertRaisesRegex(jax.errors.JaxRuntimeError, words):
                jax.block_until_ready(jax.jit(lambda *a, call=call: call(*a, **attributes))(*arrays))

    def test_callbacks_compute_the_same(self):
        """Without custom calls, it says so once and computes by callbacks."""
        q, k, v, weights = inputs()
        _, lse = attention(q, k, v, CONFIG, return_lse=True)

        def run(*arrays):
            q, k, v, lse = arrays
            out = attention(q, k, v, CONFIG)
            vmapped = jax.vmap(lambda *a: attention(*a, CONFIG, sequence_lengths=[30]))(
                *(x[:, None] for x in (q, k, v))
            )
            return out, vmapped, gradients(q, k, v), attention_mass(q, k, CONFIG, lse=lse), merge([(out, lse)] * 2)

        wanted = jax.tree.leaves(jax.jit(run)(q, k, v, lse))
        jax.clear_caches()
        self.addCleanup(jax.clear_caches)
        with (
            mock.patch.object(_extension, "_refusal", "it is hidden here"),
            warnings.catch_warnings(record=True) as caught,
        ):
            warnings.simplefilter("always")
            text = program(run, q, k, v, lse)
            found = jax.tree.leaves(jax.jit(run)(q, k, v, lse))
            with self.assertRaisesRegex(annulus.ArgumentError, "must divide the 3 query heads"):
                attention(q[:, :, :3], k, v, CONFIG)
        self.assertNotIn("custom_call @annulus", text)
        self.assertEqual(
            [(str(one.message), one.filename) for one in caught],
            [("annulus.jax computes on the host's CPU, by callbacks of JAX: it is hidden here", __file__)],
        )
        for one, other in zip(found, wanted):
            self.same(one, other)

    @needs_custom_calls
    def test_unknown_interfaces_are_refused(self):
        """JAX starts although XLA refuses the custom calls, here for one that does not tell its version."""
        text = self.print_of("""
            import ctypes, jax
            silent = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(lambda frame: None)
            make_capsule = jax.ffi.pycapsule
            jax.ffi.pycapsule = lambda _: make_capsule(silent)
            from annulus.jax import _extension
            print(_extension.why_not("cpu"))
            print(jax.devices("cpu")[0].platform)
        """)
        self.assertRegex(text, r"^JAX .* does not take annulus's custom calls: .*annulus_cpu_forward(.|\n)*\ncpu\n$")

    def print_of(self, program):
        """Runs a program in a process without JAX's threads. Returns what it prints."""
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True, check=True
        )
        return done.stdout


def call_exported(file):
    """Calls the exported program in `file` on the arrays beside it, and saves what it and its derivative return."""
    from jax import export

    call = export.deserialize(bytearray(file.read_bytes())).call
    with np.load(file.with_suffix(".npz")) as arrays:
        q, k, v = (jnp.asarray(arrays[name]) for name in "qkv")
    d_q, d_k, d_v = jax.grad(lambda *a: jnp.square(call(*a)).sum(), (0, 1, 2))(q, k, v)
    np.savez(file.with_suffix(".results.npz"), out=call(q, k, v), d_q=d_q, d_k=d_k, d_v=d_v)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--exported"]:
        call_exported(pathlib.Path(sys.argv[2]))
    else:
        tap.main()
