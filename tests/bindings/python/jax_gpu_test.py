# SPDX-License-Identifier: Apache-2.0
"""annulus.jax on NVIDIA GPUs, against the engine `reference`, which computes in float64 on the CPU.

Needs JAX for CUDA (`pip install "jax[cuda13]"`, or cuda12) and a build with the CUDA plugin. By hand:

    PYTHONPATH=build/test/bindings/python:tests/cli ANNULUS_SOURCE=. python3 tests/bindings/python/jax_gpu_test.py
"""

import os
import unittest
from concurrent.futures import ThreadPoolExecutor

import jax_python
import tap

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # other programs use the GPU, too
try:
    import jax
except ImportError:
    jax_python.find_jax()

try:
    GPUS = jax.devices("cuda")
except RuntimeError as error:
    tap.skip_all(f"needs JAX on a CUDA device: {error}".splitlines()[0])

import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

import annulus
from annulus.jax import _extension, attention, attention_mass, merge

if reason := _extension.why_not("cuda"):
    tap.skip_all(reason)

CONFIG = annulus.Config([(512, 1), (2048, 4), (0, 16)], causal=True)
SHAPE, KV_SHAPE = (2, 3001, 8, 64), (2, 3001, 4, 64)
# Relative to the largest element. They allow for roundings of results and, in 16 bits, of probabilities and of out.
TOLERANCES = {"float32": 2.0**-16, "bfloat16": 2.0**-6, "float16": 2.0**-9}


def inputs(dtype, gpu=GPUS[0]):
    """Returns q, k, v and d_out on a GPU."""
    generator = np.random.default_rng(1)
    arrays = [generator.standard_normal(shape, np.float32) for shape in (SHAPE, KV_SHAPE, KV_SHAPE, SHAPE)]
    return [jax.device_put(jnp.asarray(array, dtype), gpu) for array in arrays]


def both_passes(q, k, v, d_out, **options):
    (out, lse), gradients_of = jax.vjp(lambda *a: attention(*a, CONFIG, return_lse=True, **options), q, k, v)
    return (out, lse, *gradients_of((d_out, jnp.ones_like(lse))))


def reference(q, k, v, d_out):
    """Returns what both_passes() returns, and the attention mass, in float64."""
    arrays = [np.asarray(array).astype(np.float64) for array in (q, k, v, d_out)]
    context = annulus.Context(CONFIG.replace(engine="reference"))
    out, lse = context.forward(*arrays[:3])
    gradients = context.backward(*arrays[:3], out, lse, arrays[3], d_lse=np.ones_like(lse))
    return (out, lse, *gradients), context.attention_mass(*arrays[:2], lse=lse)


def program(function, *arrays):
    """Returns the text of the program that JAX compiles for a function."""
    return jax.jit(function).lower(*arrays).as_text()


class JaxGpuTest(unittest.TestCase):
    def near(self, found, wanted, dtype):
        found, wanted = np.asarray(found).astype(np.float64), np.asarray(wanted).astype(np.float64)
        self.assertEqual(found.shape, wanted.shape)
        self.assertLessEqual(np.abs(found - wanted).max(), TOLERANCES[dtype] * np.abs(wanted).max())

    def test_numbers(self):
        for dtype in TOLERANCES:
            arrays = inputs(dtype)
            wanted, wanted_mass = reference(*arrays)
            for layout in ("bnhd", "bhnd"):
                with self.subTest(dtype, layout=layout):
                    laid_out = arrays if layout == "bnhd" else [x.swapaxes(1, 2) for x in arrays]
                    found = list(jax.jit(lambda *a, layout=layout: both_passes(*a, layout=layout))(*laid_out))
                    mass = attention_mass(*laid_out[:2], CONFIG, lse=found[1], layout=layout)
                    if layout == "bhnd":
                        found = [x.swapaxes(1, 2) if x.ndim == 4 else x for x in found]
                    for one, other in zip(found, wanted):
                        self.near(one, other, dtype)
                    self.near(mass, wanted_mass, dtype)

    def test_programs_have_custom_calls(self):
        arrays = inputs("bfloat16")
        text = program(both_passes, *arrays)
        for name in ("annulus_cuda_forward", "annulus_cuda_backward"):
            self.assertEqual(text.count(f"custom_call @{name}("), 1, text)
        self.assertNotIn("callback", text)
        place = f"cuda:{GPUS[0].local_hardware_id}"
        sizes = dict(kv_heads=4, batch=2, dtype="bfloat16", pass_="backward", row_alignment=16)
        workspace = annulus.Context(CONFIG, place).workspace_size(SHAPE[1], 8, 64, **sizes)
        self.assertIn(f"tensor<{workspace}xui8>", text)

    def test_merge(self):
        q, k, v, d_out = inputs("float32")
        branches = [annulus.Branch(0, 2, phase=phase, query="every") for phase in (0, 1)]

        def merged(q, k, v):
            return merge([attention(q, k, v, [branch], return_lse=True) for branch in branches])[0]

        def whole(q, k, v):
            return attention(q, k, v, [(0, 1)])

        self.assertIn("custom_call @annulus_cuda_merge(", program(merged, q, k, v))
        for one, other in zip(*(jax.jit(lambda *a, f=f: jax.vjp(f, *a)[1](d_out))(q, k, v) for f in (merged, whole))):
            self.near(one, other, "float32")

    def test_transforms(self):
        q, k, v, d_out = inputs("float32")
        wanted = both_passes(q, k, v, d_out)
        folded = jax.jit(jax.vmap(both_passes))(*(x[:, None] for x in (q, k, v, d_out)))
        for one, other in zip(folded, wanted):
            self.near(one[:, 0], other, "float32")

        def layers(q):
            step = jax.checkpoint(lambda q, _: (attention(q, k, v, CONFIG), None))
            return jnp.square(jax.lax.scan(step, q, None, length=10)[0]).sum()

        def one_by_one(q):
            for _ in range(10):
                q = attention(q, k, v, CONFIG)
            return jnp.square(q).sum()

        self.near(jax.jit(jax.grad(layers))(q), jax.grad(one_by_one)(q), "float32")

    def test_threads_share_a_program(self):
        q, k, v, d_out = inputs("bfloat16")
        compiled = jax.jit(both_passes)
        wanted = [compiled(q * i, k, v, d_out) for i in range(1, 5)]
        with ThreadPoolExecutor(4) as pool:
            for _ in range(20):
                for found, results in zip(pool.map(lambda i: compiled(q * i, k, v, d_out), range(1, 5)), wanted):
                    for one, other in zip(found, results):
                        self.near(one, other, "bfloat16")

    def test_export(self):
        from jax import export

        try:
            import flatbuffers  # noqa: F401 - what JAX serializes with
        except ImportError:
            self.skipTest("needs flatbuffers")
        arrays = inputs("bfloat16")
        checks = [export.DisabledSafetyCheck.custom_call(f"annulus_cuda_{pass_}") for pass_ in ("forward", "backward")]
        exported = export.export(jax.jit(both_passes), disabled_checks=checks)(*arrays)
        called = export.deserialize(exported.serialize()).call(*arrays)
        for one, other in zip(called, both_passes(*arrays)):
            self.near(one, other, "bfloat16")

    @unittest.skipIf(len(GPUS) < 2, "needs two GPUs")
    def test_second_gpu(self):
        arrays = inputs("float32", GPUS[1])
        found = jax.jit(both_passes)(*arrays)
        self.assertEqual(found[0].devices(), {GPUS[1]})
        for one, other in zip(found, reference(*arrays)[0]):
            self.near(one, other, "float32")

    def test_shard_map(self):
        """Each GPU, of at most two, has one entry of the batch. Gradients of k and v that both GPUs have add up."""
        gpus = GPUS[:2]
        count = len(gpus)
        q, k, v, d_out = (np.asarray(array)[:count] for array in inputs("float32"))  # on no GPU yet
        mesh, split, same = Mesh(np.array(gpus), ("x",)), PartitionSpec("x"), PartitionSpec()

        def step(q, k, v, d_out):
            loss = lambda q, k, v: jax.lax.psum((attention(q, k, v, CONFIG) * d_out).sum(), "x")
            return jax.grad(loss, (0, 1, 2))(q, k, v)

        specs = dict(in_specs=(split, same, same, split), out_specs=(split, same, same))
        found = jax.jit(jax.shard_map(step, mesh=mesh, check_vma=True, **specs))(q, k[:1], v[:1], d_out)
        alone = jax.grad(
            lambda q, k, v: (attention(q, *(jnp.concatenate([x] * count) for x in (k, v)), CONFIG) * d_out).sum(),
            (0, 1, 2),
        )(*map(jnp.asarray, (q, k[:1], v[:1])))
        for one, other in zip(found, alone):
            self.near(one, other, "float32")


if __name__ == "__main__":
    tap.main()
