# SPDX-License-Identifier: Apache-2.0
"""annulus.torch: values to the bit, gradients, autocast, modules against their formulas, ranks, compiled graphs."""

import gc
import io
import os
import tempfile
import types
import unittest
import unittest.mock
import weakref

import capi
import tap
from capi import np

try:
    import torch
except ImportError:
    tap.skip_all("needs PyTorch")

from torch.autograd import forward_ad

import annulus
import published
from annulus.torch import LongNetAttention, MultiheadDilatedAttention, _ranks, dilated_attention, reconnect
from threads import together

BRANCHES = [(16, 1), (48, 3)]
SHAPE, KV_SHAPE = (2, 83, 4, 16), (2, 83, 2, 16)
# Every query has a key in these, so the LSE is finite.
FULL = [(6, 1), annulus.Branch(15, 2, query="residue")]
# The messages for derivatives that do not exist.
ONCE, REVERSE = "dilated attention is once differentiable", "take first derivatives in reverse mode"


def rows(seed, *shapes, dtype=torch.float32, grad=False):
    return [
        torch.from_numpy(array).to(dtype).requires_grad_(grad) for array in capi.numbers(seed, *shapes, dtype="float64")
    ]


class FunctionTest(unittest.TestCase):
    def test_equal_to_the_c_api(self):
        for dtype in ("float64", "float32", "bfloat16", "float16"):
            with self.subTest(dtype):
                arrays = rows(7, SHAPE, KV_SHAPE, KV_SHAPE, SHAPE, dtype=getattr(torch, dtype))
                codes = [t.view(torch.int16) if t.element_size() == 2 else t for t in arrays]
                wanted = capi.compute(*(t.numpy() for t in codes), BRANCHES, True, dtype)
                q, k, v = (t.clone().requires_grad_() for t in arrays[:3])
                out, lse = dilated_attention(q, k, v, BRANCHES, causal=True, return_lse=True)
                out.backward(arrays[3])
                for found, array in zip((out, lse, q.grad, k.grad, v.grad), wanted):
                    found = found.detach()
                    if array.dtype == np.int16:
                        found = found.view(torch.int16)
                    self.assertEqual(found.numpy().tobytes(), array.tobytes())

    def test_the_one_call_function(self):
        q, k, v = rows(7, SHAPE, KV_SHAPE, KV_SHAPE, dtype=torch.bfloat16)
        out, lse = annulus.attention(q, k, v, BRANCHES, return_lse=True)
        self.assertEqual((out.dtype, lse.dtype), (torch.bfloat16, torch.float32))
        self.assertTrue(torch.equal(out, dilated_attention(q, k, v, BRANCHES)))
        q.requires_grad_()
        with self.assertRaisesRegex(annulus.ArgumentError, "annulus.torch.dilated_attention"):
            annulus.attention(q, k, v, BRANCHES)
        with torch.no_grad():
            self.assertTrue(torch.equal(out, annulus.attention(q, k, v, BRANCHES)))

    def test_gradcheck(self):
        for causal in (False, True):
            windows = [annulus.Branch.window(4, 2, 2), annulus.Branch.global_tokens(2, queries=True)]
            for branches in (FULL, [(0, 1)], windows, annulus.Config(FULL, padding="zero_keys", scale=0.7)):
                with self.subTest(causal=causal, branches=branches):
                    if isinstance(branches, annulus.Config):
                        branches, options = branches.replace(causal=causal), {}
                    else:
                        options = {"causal": causal}
                    inputs = rows(3, (2, 15, 4, 8), (2, 15, 2, 8), (2, 15, 2, 8), dtype=torch.float64, grad=True)
                    self.assertTrue(
                        torch.autograd.gradcheck(
                            lambda q, k, v: dilated_attention(q, k, v, branches, return_lse=True, **options), inputs
                        )
                    )

    def test_gradcheck_of_a_window_and_of_rows_without_keys(self):
        inputs = rows(3, (1, 6, 2, 8), (1, 15, 2, 8), (1, 15, 2, 8), dtype=torch.float64, grad=True)
        self.assertTrue(
            torch.autograd.gradcheck(
                lambda q, k, v: dilated_attention(q, k, v, [(8, 2)], causal=True, query_start=7), inputs
            )
        )

    def test_gradcheck_of_sequences(self):
        for given in (
            {"sequence_starts": torch.tensor([1, 6, 6, 13])},
            {"sequence_starts": [0, 9, 15], "sequence_lengths": [4, 6]},
            {"sequence_lengths": torch.tensor([15, 4], dtype=torch.int32)},
        ):
            with self.subTest(given):
                inputs = rows(3, (2, 15, 2, 8), (2, 15, 2, 8), (2, 15, 2, 8), dtype=torch.float64, grad=True)
                self.assertTrue(
                    torch.autograd.gradcheck(
                        lambda q, k, v: dilated_attention(q, k, v, [(4, 1), (0, 2)], causal=True, **given), inputs
                    )
                )

    def test_threads_are_pytorchs(self):
        """Every function uses PyTorch's number of threads. A number in the environment is left to the library."""
        made = []
        make = annulus.Context.__init__

        def note(context, *arguments, **options):
            make(context, *arguments, **options)
            made.append(context._handle.threads)

        def call_all():
            del made[:]
            config = annulus.Config(FULL, scale=0.1)
            q, k, v = rows(3, (1, 15, 2, 8), (1, 15, 2, 8), (1, 15, 2, 8), grad=True)
            out, lse = dilated_attention(q, k, v, config, return_lse=True)
            out.sum().backward()
            annulus.torch.attention_mass(q, k, config)
            with unittest.mock.patch.object(annulus.torch._merge, "_ANY_CONFIG", config.replace(scale=0.2)):
                annulus.torch.merge([(out, lse), (out, lse)])
            (end,) = annulus.Comm.local(1)
            dilated_attention(q, k, v, config, process_group=end)
            return made

        before = torch.get_num_threads()
        try:
            with unittest.mock.patch.object(annulus.Context, "__init__", note):
                for threads in (1, 3):
                    torch.set_num_threads(threads)
                    self.assertEqual(call_all(), [threads] * 3)
                with unittest.mock.patch.dict(os.environ, ANNULUS_NUM_THREADS="2"):
                    self.assertEqual(call_all(), [0] * 3)
        finally:
            torch.set_num_threads(before)

    def test_gradient_of_lse_alone(self):
        q, k, v = rows(3, (1, 15, 2, 8), (1, 15, 2, 8), (1, 15, 2, 8), dtype=torch.float64, grad=True)
        _, lse = dilated_attention(q, k, v, FULL, return_lse=True)
        lse.sum().backward()
        self.assertEqual(float(v.grad.abs().max()), 0)
        self.assertGreater(float(q.grad.abs().max()), 0)

    def test_learnable_sinks(self):
        """Sinks of doc/migration.md: a score for each head, whose exponential joins the denominator. Values and gradients
        are those of the softmax over the keys and the sink."""
        q, k, v = rows(3, (2, 41, 4, 8), (2, 41, 2, 8), (2, 41, 2, 8), dtype=torch.float64, grad=True)
        sinks = torch.linspace(-2, 3, 4, dtype=torch.float64, requires_grad=True)
        (d_out,) = rows(4, (2, 41, 4, 8), dtype=torch.float64)

        out, lse = dilated_attention(q, k, v, [annulus.Branch.window(6, 0)], causal=True, return_lse=True)
        out = out * torch.sigmoid(lse - sinks[:, None]).transpose(1, 2)[..., None]
        found = torch.autograd.grad(out, (q, k, v, sinks), d_out)

        behind = torch.arange(41)[:, None] - torch.arange(41)
        keys, values = (t.repeat_interleave(2, dim=2) for t in (k, v))
        scores = torch.einsum("bnhd,bmhd->bhnm", q, keys) / 8**0.5
        scores = scores.masked_fill((behind < 0) | (behind > 6), -torch.inf)
        column = sinks[None, :, None, None].expand(2, 4, 41, 1)
        weights = torch.cat([scores, column], dim=-1).softmax(dim=-1)[..., :-1]
        wanted_out = torch.einsum("bhnm,bmhd->bnhd", weights, values)
        torch.testing.assert_close(out, wanted_out, rtol=1e-12, atol=1e-12)
        for one, other in zip(found, torch.autograd.grad(wanted_out, (q, k, v, sinks), d_out)):
            torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)

    def test_only_what_is_asked_for(self):
        q, k, v = rows(3, SHAPE, KV_SHAPE, KV_SHAPE)
        v.requires_grad_()
        dilated_attention(q, k, v, BRANCHES).sum().backward()
        self.assertIsNone(q.grad)
        self.assertIsNotNone(v.grad)

    @unittest.skipUnless(hasattr(torch, "func"), "needs PyTorch 2.0")
    def test_several_gradients_at_once(self):
        """torch.func.vmap over torch.autograd.grad works on a graph that was made outside."""
        tensors = rows(6, SHAPE, KV_SHAPE, KV_SHAPE, grad=True)
        out = dilated_attention(*tensors, BRANCHES, causal=True)
        weights = torch.stack(rows(7, SHAPE, SHAPE))
        batched = torch.func.vmap(lambda w: torch.autograd.grad(out, tensors, w, retain_graph=True))(weights)
        for i in range(2):
            for found, wanted in zip(batched, torch.autograd.grad(out, tensors, weights[i], retain_graph=True)):
                torch.testing.assert_close(found[i], wanted)

    def test_strides(self):
        q, k, v = rows(3, SHAPE, SHAPE, SHAPE, dtype=torch.float64)
        wanted = dilated_attention(q, k, v, BRANCHES)
        heads_first = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in (q, k, v)]
        self.assertTrue(torch.equal(dilated_attention(*heads_first, BRANCHES), wanted))
        columns = [t.transpose(2, 3).contiguous().transpose(2, 3) for t in (q, k, v)]
        self.assertTrue(torch.equal(dilated_attention(*columns, BRANCHES), wanted))
        packed = torch.stack((q, k, v), 3).requires_grad_()
        dilated_attention(*packed.unbind(3), BRANCHES).sum().backward()  # an expanded gradient arrives
        self.assertTrue(bool(packed.grad.isfinite().all()))

    def test_without_the_batch_axis(self):
        q, k, v = rows(3, SHAPE, SHAPE, SHAPE)
        out, lse = dilated_attention(q[0], k[0], v[0], BRANCHES, return_lse=True)
        wanted = dilated_attention(q[:1], k[:1], v[:1], BRANCHES, return_lse=True)
        self.assertTrue(torch.equal(out, wanted[0][0]) and torch.equal(lse, wanted[1][0]))

    def test_no_second_derivative(self):
        """The gradient of a sum arrives as a constant; that works too."""
        q, k, v = rows(3, (1, 15, 2, 8), (1, 15, 2, 8), (1, 15, 2, 8), grad=True)
        plain = rows(3, (1, 15, 2, 8))[0]
        for power in (1, 2):
            loss = dilated_attention(q, k, v, FULL).pow(power).sum()
            gradients = torch.autograd.grad(loss, (q, k, v), create_graph=True)
            for gradient, wanted in zip(gradients, torch.autograd.grad(loss, (q, k, v))):
                self.assertTrue(torch.equal(gradient, wanted))
                with self.assertRaisesRegex(annulus.UnsupportedError, ONCE):
                    (q.sum() + gradient.sum()).backward(retain_graph=True)
                (q.sum() + gradient.detach().sum()).backward()
        functional = torch.autograd.functional
        for call in (functional.hessian, lambda f, x: functional.hvp(f, x, x), lambda f, x: functional.jvp(f, x, x)):
            with self.assertRaisesRegex(annulus.UnsupportedError, ONCE):
                call(lambda q: dilated_attention(q, k, v, FULL).sum(), plain)

    def test_no_forward_mode(self):
        q, k, v = rows(3, (1, 15, 2, 8), (1, 15, 2, 8), (1, 15, 2, 8))
        for place in range(3):
            for grad in (False, True):
                with self.subTest(place=place, grad=grad), forward_ad.dual_level():
                    inputs = [t.clone().requires_grad_(grad) for t in (q, k, v)]
                    inputs[place] = forward_ad.make_dual(inputs[place], torch.ones_like(q))
                    with self.assertRaisesRegex(annulus.UnsupportedError, REVERSE):
                        dilated_attention(*inputs, FULL)
        q.requires_grad_()
        with forward_ad.dual_level():
            out = dilated_attention(q, k, v, FULL)
            self.assertIsNone(forward_ad.unpack_dual(out).tangent)
            dual = forward_ad.make_dual(torch.ones_like(out), torch.ones_like(out))
            with self.assertRaisesRegex(annulus.UnsupportedError, REVERSE):
                torch.autograd.grad(out, q, dual)
        with self.assertRaisesRegex(annulus.UnsupportedError, REVERSE):
            torch.autograd.functional.jacobian(
                lambda q: dilated_attention(q, k, v, FULL), q, strategy="forward-mode", vectorize=True
            )

    def test_autocast(self):
        q, k, v = rows(3, SHAPE, KV_SHAPE, KV_SHAPE, grad=True)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = dilated_attention(q, k.detach().bfloat16(), v, BRANCHES)
            double = dilated_attention(*(t.detach().double() for t in (q, k, v)), BRANCHES)
        self.assertEqual((out.dtype, double.dtype), (torch.bfloat16, torch.float64))
        self.assertTrue(torch.equal(out, dilated_attention(q.bfloat16(), k.bfloat16(), v.bfloat16(), BRANCHES)))
        out.float().sum().backward()
        self.assertEqual((q.grad.dtype, v.grad.dtype), (torch.float32, torch.float32))

    def test_refusals(self):
        q, k, v = rows(3, SHAPE, KV_SHAPE, KV_SHAPE)
        for words, tensors in {
            "q is a tensor on meta; it must be on the CPU or": (q.to("meta"), k, v),
            "k is a tensor of torch.sparse.* it must be a plain dense": (q, k.to_sparse(), v),
            "N of q is 0": (q[:, :0], k[:, :0], v[:, :0]),
        }.items():
            error = annulus.ArgumentError if "N of" in words else annulus.UnsupportedError
            with self.subTest(words), self.assertRaisesRegex(error, words):
                annulus.attention(*tensors, BRANCHES)
        comm = annulus.Comm.local(1)[0]
        cases = {
            "q is a ndarray; it must be a torch.Tensor": ((q.numpy(), k, v), TypeError),
            "k is a NoneType; it must be a torch.Tensor": ((q, None, v), TypeError),
            "v is a list; it must be a torch.Tensor": ((q, k, [1.0]), TypeError),
            "q is on meta; it must be on the CPU or": ((q.to("meta"), k, v), annulus.UnsupportedError),
            "k is on meta; it must be on the CPU or": ((q, k.to("meta"), v), annulus.UnsupportedError),
            "v is on meta; it must be on the CPU or": ((q, k, v.to("meta")), annulus.UnsupportedError),
            "v is a sparse or nested tensor": ((q, k, v.to_sparse()), annulus.UnsupportedError),
            "k has dtype .*; it must be ": ((q, k.double(), v), annulus.ArgumentError),
            "q has 2 dimensions; it must have 4": ((q[0, 0], k, v), annulus.ArgumentError),
            "k has 5 dimensions; it must have 4": ((q, k[None], v), annulus.ArgumentError),
            "q has 9 rows and k has 83; .*query_start": ((q[:, :9], k, v), annulus.ArgumentError),
        }
        for words, (tensors, error) in cases.items():
            with self.subTest(words), self.assertRaisesRegex(error, words):
                dilated_attention(*tensors, BRANCHES)
        options = {
            "query_start is '3'; it must be an int": {"query_start": "3"},
            r"sequence_starts\[2\] is 84; it must be at most 83": {"sequence_starts": torch.tensor([0, 40, 84])},
            "sequence_starts is '3'; it must be a list of int": {"sequence_starts": "3"},
            "causal is 'no'; it must be True or False": {"causal": "no"},
            "scale is tensor.*; it must be a number": {"scale": torch.ones((), requires_grad=True)},
            r"shards is \[83\]; it needs process_group": {"shards": [83]},
            "process_group is 3; it must be a group of torch.distributed": {"process_group": 3},
            "shards is 'x'; it must be None, 'balanced', 'gather', annulus.Shards or": {"process_group": comm, "shards": "x"},
            r"shards\[0\] is 83.5; it must be an int": {"process_group": comm, "shards": [83.5]},
        }
        for words, given in options.items():
            with self.subTest(words), self.assertRaisesRegex(annulus.ArgumentError, words):
                dilated_attention(q, k, v, BRANCHES, **given)
        with self.assertRaisesRegex(annulus.ArgumentError, "branches is 16; it must be a list of branches, such as"):
            dilated_attention(q, k, v, 16)

    @unittest.skipUnless(hasattr(torch.library, "custom_op"), "needs PyTorch 2.4")
    def test_operators(self):
        config = annulus.Config(FULL)._text
        inputs = rows(3, (1, 15, 2, 8), (1, 15, 2, 8), (1, 15, 2, 8), dtype=torch.float64, grad=True)
        torch.library.opcheck(torch.ops.annulus.forward.default, (*inputs, config, None, None, None, 0))

    @unittest.skipUnless(hasattr(torch.library, "custom_op"), "needs PyTorch 2.4")
    def test_flops_are_counted(self):
        """A pair costs 4 D FLOPs forward and 10 D backward. The test counts the pairs one by one."""
        from torch.utils.flop_counter import FlopCounterMode

        batch, length, heads, dim = SHAPE
        place, starts = np.arange(length), [0, 30, length]

        def pairs(first=0, starts=(0, length)):
            count = 0
            for start, end in zip(starts, starts[1:]):
                q, k = place[max(start, first) : end, None] - start, place[None, start:end] - start
                for w, r in BRANCHES:
                    for head in range(heads):
                        kept = [(p % w % r == head // -(-heads // r)) for p in (q, k)]
                        count += ((q // w == k // w) & kept[0] & kept[1] & (k <= q)).sum()
            return batch * count

        q, k, v = rows(4, SHAPE, KV_SHAPE, KV_SHAPE, grad=True)
        for tokens, options in ((0, {}), (70, {"query_start": 70}), (0, {"sequence_starts": starts})):
            wanted = pairs(tokens, starts if "sequence_starts" in options else (0, length))
            run = lambda: dilated_attention(q[:, tokens:], k, v, BRANCHES, causal=True, **options)
            with FlopCounterMode(display=False) as counter:
                out = run()
            self.assertEqual(counter.get_total_flops(), 4 * dim * wanted)
            for result in (out, run()):  # also a result from before counting
                with FlopCounterMode(display=False) as counter:
                    result.sum().backward()
                self.assertEqual(counter.get_total_flops(), 10 * dim * wanted)
        layer = MultiheadDilatedAttention(64, 4, [16, 48], [1, 3], is_causal=True)
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            layer(torch.zeros(batch, length, 64))
        projections = 4 * 2 * batch * length * 64 * 64
        self.assertEqual(counter.get_total_flops(), 4 * dim * pairs() + projections)

    @unittest.skipUnless(hasattr(torch.library, "custom_op"), "needs PyTorch 2.4")
    def test_flops_of_ranks(self):
        from torch.utils.flop_counter import FlopCounterMode

        shards = annulus.Shards.zigzag(SHAPE[1], 1)
        tensors = rows(4, SHAPE, KV_SHAPE, KV_SHAPE)
        end = annulus.Comm.local(1)[0]
        counts = []
        for options in ({}, {"process_group": end, "shards": shards}, {"process_group": end, "shards": [SHAPE[1]]}):
            with FlopCounterMode(display=False) as counter:
                dilated_attention(*tensors, BRANCHES, causal=True, **options)
            counts.append(counter.get_total_flops())
        self.assertEqual(counts, counts[:1] * 3)
        with FlopCounterMode(display=False), self.assertRaisesRegex(annulus.UnsupportedError, "say shards="):
            dilated_attention(*tensors, BRANCHES, process_group=end)

    @unittest.skipUnless(hasattr(torch.library, "custom_op"), "needs PyTorch 2.4")
    def test_compiled(self):
        config = annulus.Config(BRANCHES, causal=True)
        functions = [
            lambda q, k, v: dilated_attention(2 * q, k, v, config) + 1,
            lambda q, k, v: dilated_attention(2 * q, k, v, [(16, 1), (48, 3)], causal=True) + 1,
            lambda q, k, v: dilated_attention(2 * q, k, v, FULL) + 1,
            lambda q, k, v: dilated_attention(2 * q, k, v, ({"segment_length": 16, "dilation": 3},)) + 1,
        ]
        for function in functions:
            q, k, v = rows(3, SHAPE, KV_SHAPE, KV_SHAPE, grad=True)
            wanted = function(q, k, v)
            wanted_gradients = torch.autograd.grad(wanted.sum(), (q, k, v))
            compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
            found = compiled(q, k, v)
            self.assertTrue(torch.equal(found, wanted))
            for one, other in zip(torch.autograd.grad(found.sum(), (q, k, v)), wanted_gradients):
                self.assertTrue(torch.equal(one, other))

    @unittest.skipUnless(hasattr(torch.library, "custom_op"), "needs PyTorch 2.4")
    def test_compiled_sequences(self):
        """One graph without breaks has the numbers of sequences as lists, arrays or tensors, also computed ones."""
        config = annulus.Config(BRANCHES, causal=True)
        n = SHAPE[1]
        starts, lengths = [0, 20, n], [18, n - 23]
        numbers = {"list": list, "tensor": torch.tensor, "int32": lambda x: torch.tensor(x, dtype=torch.int32)}
        cases = [({"sequence_starts": kind(starts)}, name) for name, kind in numbers.items()]
        cases += [({"sequence_starts": kind(starts), "sequence_lengths": lengths}, name) for name, kind in numbers.items()]
        cases += [({"sequence_lengths": kind([n, n - 8])}, name) for name, kind in numbers.items()]
        cases += [({"sequence_starts": np.array(starts)}, "NumPy")]
        for options, name in cases:
            with self.subTest(sorted(options), kind=name):
                function = lambda q, k, v, options: dilated_attention(2 * q, k, v, config, **options) + 1
                self.check_compiled(function, options)
        totals = lambda q, k, v, x: dilated_attention(
            2 * q, k, v, config, sequence_starts=torch.nn.functional.pad(x.cumsum(0), (1, 0))
        )
        compiled = self.check_compiled(totals, torch.tensor([20, n - 20]))
        q, k, v = rows(3, SHAPE, KV_SHAPE, KV_SHAPE, grad=True)
        with unittest.mock.patch.object(torch._dynamo.config, "error_on_recompile", True):
            other = torch.tensor([11, n - 11])
            self.assertTrue(torch.equal(compiled(q, k, v, other), totals(q, k, v, other)))
        with self.assertRaisesRegex(annulus.ArgumentError, r"^sequence_starts\[0\] is 0.0; it must be an int"):
            compiled(q, k, v, torch.tensor([0.5, 1]))

    def check_compiled(self, function, *others):
        """Compares a function with its compiled form, with gradients. Returns the compiled form."""
        q, k, v = rows(3, SHAPE, KV_SHAPE, KV_SHAPE, grad=True)
        wanted = function(q, k, v, *others)
        torch._dynamo.reset()  # it counts how often it compiles the same code
        compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
        found = compiled(q, k, v, *others)
        self.assertTrue(torch.equal(found, wanted))
        gradients = (torch.autograd.grad(each.sum(), (q, k, v)) for each in (found, wanted))
        for one, other in zip(*gradients):
            self.assertTrue(torch.equal(one, other))
        return compiled

    @unittest.skipUnless(hasattr(torch.library, "custom_op"), "needs PyTorch 2.4")
    def test_exported_module(self):
        """A module of any length, saved and loaded, with sequences whose numbers it gets when it runs."""

        class Packed(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = MultiheadDilatedAttention(64, 4, [16, 48], [1, 3])

            def forward(self, x, starts):
                return self.inner(x, x, x, sequence_starts=starts)[0]

        module = Packed().eval()
        (x,) = rows(3, (2, 83, 64))
        length = torch.export.Dim("length", min=16, max=4096)
        shapes = {"x": {1: length}, "starts": None}
        exported = torch.export.export(module, (x, torch.tensor([0, 20, 83])), dynamic_shapes=shapes)
        file = io.BytesIO()
        torch.export.save(exported, file)
        file.seek(0)
        loaded = torch.export.load(file).module()
        (longer,) = rows(4, (2, 120, 64))
        for rows_of_x, starts in ((x, [0, 20, 83]), (x, [0, 50, 83]), (longer, [0, 100, 120])):
            found = loaded(rows_of_x, torch.tensor(starts))
            self.assertTrue(torch.allclose(found, module(rows_of_x, torch.tensor(starts)), atol=1e-6))
        from torch.utils.flop_counter import FlopCounterMode

        counts = []
        for each in (module, loaded):
            with FlopCounterMode(display=False) as counter:
                each(x, torch.tensor([0, 20, 83])).sum().backward()
            found = {str(operator): count for operator, count in counter.get_flop_counts()["Global"].items()}
            suffix = "" if each is module else "_of_sequences"
            counts.append([found[f"annulus.{pass_}{suffix}"] for pass_ in ("forward", "backward")])
        self.assertEqual(counts[0], counts[1])

    def test_parts_with_some_of_the_heads_add_up(self):
        whole = MultiheadDilatedAttention(64, 4, [16, 48], [2, 3], kv_heads=2)
        (x,) = rows(3, (2, 83, 64))
        total = 0
        for first in (0, 2):
            part = MultiheadDilatedAttention(64, 2, [16, 48], [2, 3], kv_heads=1, head_shard=(first, 4))
            self.assertEqual(part.out_proj.bias is None, first > 0)
            own = {"q": slice(16 * first, 16 * first + 32), "k": slice(8 * first, 8 * first + 16)}
            with torch.no_grad():
                for name, rows_of in (("q_proj", own["q"]), ("k_proj", own["k"]), ("v_proj", own["k"])):
                    getattr(part, name).weight.copy_(getattr(whole, name).weight[rows_of])
                    getattr(part, name).bias.copy_(getattr(whole, name).bias[rows_of])
                part.out_proj.weight.copy_(whole.out_proj.weight[:, own["q"]])
            total = total + part(x)[0]
        self.assertTrue(torch.allclose(total, whole(x)[0], atol=1e-6))

    def test_distributed_tensors_are_refused(self):
        class DTensor(torch.Tensor):  # a stand-in: older versions of PyTorch have none
            pass

        q, k, v = rows(3, *[(1, 15, 2, 8)] * 3)
        for name in "qkv":
            given = {"q": q, "k": k, "v": v}
            given[name] = given[name].as_subclass(DTensor)
            with self.subTest(name), self.assertRaisesRegex(
                annulus.UnsupportedError, rf"^{name} is a DTensor; pass its local part, {name}.to_local\(\), .* head_shard="
            ):
                dilated_attention(given["q"], given["k"], given["v"], [(4, 2)])

    def test_projections_of_some_heads_must_say_which(self):
        module = MultiheadDilatedAttention(64, 4, [16], [2])
        (x,) = rows(3, (2, 83, 64))
        module.num_heads = module.kv_heads = 2
        with self.assertRaisesRegex(annulus.ArgumentError, r"num_heads is 2; .* has 4\. .* head_shard=\(first, total\)"):
            module(x)
        with self.assertRaisesRegex(annulus.ArgumentError, "head_shard is .* and num_heads 4"):
            MultiheadDilatedAttention(64, 4, [16], [2], head_shard=(1, 4))
        with self.assertRaisesRegex(annulus.UnsupportedError, "layer_norm is True and head_shard given"):
            MultiheadDilatedAttention(64, 2, [16], [2], head_shard=(0, 4), layer_norm=True)

    @unittest.skipUnless(hasattr(torch.library, "custom_op"), "needs PyTorch 2.4")
    def test_compiled_module(self):
        module = MultiheadDilatedAttention(64, 4, [16, 48], [1, 3], layer_norm=True)
        (x,) = rows(3, (2, 83, 64))
        compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
        self.assertTrue(torch.allclose(compiled(x)[0], module(x)[0], atol=1e-6))


@unittest.skipUnless(hasattr(torch, "func"), "needs PyTorch 2.0")
class TransformsTest(unittest.TestCase):
    """The transforms of torch.func that need one derivative in reverse mode work; all others are errors."""

    def setUp(self):
        self.q, self.k, self.v, self.tangent = rows(3, *[(2, 15, 4, 8)] + [(2, 15, 2, 8)] * 2 + [(2, 15, 4, 8)])

    def loss(self, q):
        out, lse = dilated_attention(q, self.k, self.v, FULL, return_lse=True)
        return out.pow(2).sum() + lse.sum()

    def gradient(self, q):
        q = q.clone().requires_grad_()
        return torch.autograd.grad(self.loss(q), q)[0]

    def test_reverse_mode(self):
        wanted = self.gradient(self.q)
        self.assertTrue(torch.equal(torch.func.grad(self.loss)(self.q), wanted))
        self.assertTrue(torch.equal(torch.func.vjp(self.loss, self.q)[1](torch.ones(()))[0], wanted))
        torch.testing.assert_close(torch.func.jacrev(self.loss)(self.q), wanted)
        of_lse = torch.func.grad(lambda q: dilated_attention(q, self.k, self.v, FULL, return_lse=True)[1].sum())(self.q)
        q = self.q.clone().requires_grad_()
        dilated_attention(q, self.k, self.v, FULL, return_lse=True)[1].sum().backward()
        self.assertTrue(torch.equal(of_lse, q.grad))

    def test_vmap(self):
        """torch.func.vmap works over any axis, of q alone or of all tensors, with and without B, and on gradients."""
        many = torch.stack([self.q, self.tangent, -self.q], 3)
        keys, values = (torch.stack([t, 2 * t, 3 * t]) for t in (self.k, self.v))

        def attend(q, k, v):
            return dilated_attention(q, k, v, FULL, causal=True, return_lse=True)

        def compare(found, calls):
            for one, others in zip(found, zip(*calls)):
                torch.testing.assert_close(one, torch.stack(others))

        compare(
            torch.func.vmap(attend, in_dims=(3, None, None))(many, self.k, self.v),
            [attend(many[..., i, :], self.k, self.v) for i in range(3)],
        )
        compare(
            torch.func.vmap(attend, in_dims=(3, 0, 0))(many, keys, values),
            [attend(many[..., i, :], keys[i], values[i]) for i in range(3)],
        )
        compare(
            torch.func.vmap(attend, in_dims=(2, None, None))(many[0], self.k[0], self.v[0]),
            [attend(many[0, ..., i, :], self.k[0], self.v[0]) for i in range(3)],
        )
        several = torch.func.vmap(torch.func.vmap(attend))(*(t[None] for t in (many.movedim(3, 0), keys, values)))
        compare((t[0] for t in several), [attend(many[..., i, :], keys[i], values[i]) for i in range(3)])
        gradients = torch.func.vmap(torch.func.grad(self.loss), in_dims=3)(many)
        torch.testing.assert_close(gradients, torch.stack([self.gradient(many[..., i, :]) for i in range(3)]))
        q = self.q.clone().requires_grad_()
        lse = dilated_attention(q, self.k, self.v, FULL, return_lse=True)[1]
        weights = torch.stack([torch.ones_like(lse), lse.detach()])
        mapped = torch.func.vmap(torch.func.vjp(lambda q: attend(q, self.k, self.v)[1], self.q)[1])(weights)[0]
        found = [torch.autograd.grad(attend(q, self.k, self.v)[1], q, weight)[0] for weight in weights]
        torch.testing.assert_close(mapped, torch.stack(found))

    def test_no_forward_mode(self):
        func, q, tangent = torch.func, self.q, self.tangent
        one = torch.ones(())
        calls = {
            "jvp": lambda: func.jvp(self.loss, (q,), (tangent,)),
            "jvp of jvp": lambda: func.jvp(lambda q: func.jvp(self.loss, (q,), (tangent,))[1], (q,), (tangent,)),
            "jvp of grad": lambda: func.jvp(func.grad(self.loss), (q,), (tangent,)),
            "jvp of vjp": lambda: func.jvp(func.vjp(self.loss, q)[1], (one,), (one,)),
            "grad of jvp": lambda: func.grad(lambda q: func.jvp(self.loss, (q,), (tangent,))[1])(q),
            "jvp of vmap": lambda: func.jvp(func.vmap(self.loss), (q[None],), (tangent[None],)),
            "vmap of jvp": lambda: func.vmap(lambda q: func.jvp(self.loss, (q,), (tangent,)))(q[None]),
            "jacfwd": lambda: func.jacfwd(self.loss)(q),
            "hessian": lambda: func.hessian(self.loss)(q),
        }
        if hasattr(func, "linearize"):
            calls["linearize"] = lambda: func.linearize(self.loss, q)
        for name, call in calls.items():
            with self.subTest(name), self.assertRaisesRegex(annulus.UnsupportedError, REVERSE):
                call()
        value, derivative = func.jvp(lambda factor: factor * self.loss(q), (one,), (one,))
        self.assertTrue(torch.equal(value, derivative))

    def test_no_second_derivative(self):
        def penalty(q):
            return torch.func.grad(lambda q: dilated_attention(q, self.k, self.v, FULL).sum())(q).sum() + q.sum()

        for call in (torch.func.grad(penalty), torch.func.jacrev(torch.func.jacrev(self.loss))):
            with self.assertRaisesRegex(annulus.UnsupportedError, ONCE):
                call(self.q)

    @unittest.skipUnless(hasattr(torch.library, "custom_op"), "needs PyTorch 2.4")
    def test_no_forward_mode_compiled(self):
        compiled = torch.compile(self.loss, backend="aot_eager")
        self.assertTrue(torch.equal(compiled(self.q), self.loss(self.q)))
        jvp = torch.compile(lambda q: torch.func.jvp(self.loss, (q,), (self.tangent,))[1], backend="aot_eager")
        for call in (jvp, lambda q: torch.func.jvp(compiled, (q,), (self.tangent,))):
            with self.assertRaisesRegex(annulus.UnsupportedError, REVERSE):
                call(self.q)
        with forward_ad.dual_level(), self.assertRaisesRegex(annulus.UnsupportedError, REVERSE):
            compiled(forward_ad.make_dual(self.q, self.tangent))


class ModuleTest(unittest.TestCase):
    def test_multihead(self):
        module = MultiheadDilatedAttention(64, 4, [16, 48], [1, 3], kv_heads=2, layer_norm=True, dtype=torch.float64)
        self.assertEqual(
            {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()},
            {
                "q_proj.weight": (64, 64),
                "q_proj.bias": (64,),
                "k_proj.weight": (32, 64),
                "k_proj.bias": (32,),
                "v_proj.weight": (32, 64),
                "v_proj.bias": (32,),
                "out_proj.weight": (64, 64),
                "out_proj.bias": (64,),
                "inner_attn_ln.weight": (64,),
                "inner_attn_ln.bias": (64,),
            },
        )
        x, y, z = rows(3, (2, 83, 64), (2, 83, 64), (2, 83, 64), dtype=torch.float64)
        out, weights = module(x, y, z, is_causal=True)
        self.assertIsNone(weights)
        q, k, v = (p(t).view(2, 83, -1, 16) for p, t in ((module.q_proj, x), (module.k_proj, y), (module.v_proj, z)))
        attended = dilated_attention(q, k, v, BRANCHES, causal=True).reshape(2, 83, 64)
        self.assertTrue(torch.allclose(out, module.out_proj(module.inner_attn_ln(attended)), atol=1e-12))
        self.assertTrue(torch.equal(module(x)[0], module(x, x, x)[0]))
        self.assertFalse(torch.equal(module(x)[0], module(x, is_causal=True)[0]))
        out.sum().backward()
        self.assertTrue(all(parameter.grad is not None for parameter in module.parameters()))

    def test_warns_of_lists_in_the_other_order(self):
        with self.assertWarnsRegex(UserWarning, "dilated_attention_pytorch's MultiheadDilatedAttention") as caught:
            MultiheadDilatedAttention(64, 8, [1, 2, 4], [16, 32, 64])
        self.assertEqual(caught.filename, __file__)

    def test_batch_second(self):
        first = MultiheadDilatedAttention(64, 4, [16], [1], is_causal=True, bias=False)
        second = MultiheadDilatedAttention(64, 4, [16], [1], is_causal=True, bias=False, batch_first=False)
        second.load_state_dict(first.state_dict())
        (x,) = rows(3, (2, 83, 64))
        self.assertTrue(torch.allclose(second(x.transpose(0, 1))[0].transpose(0, 1), first(x)[0], atol=1e-6))
        for module in (first, second):
            self.assertTrue(torch.allclose(module(x[0])[0], first(x)[0][0], atol=1e-6))

    def test_autocast_and_a_training_step(self):
        module = MultiheadDilatedAttention(64, 4, [16, 48], [1, 3], layer_norm=True)
        optimiser = torch.optim.SGD(module.parameters(), 0.1)
        (x,) = rows(3, (2, 83, 64))
        losses = []
        for _ in range(20):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = (module(x)[0].float() - x).pow(2).mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(float(loss.detach()))
        self.assertLess(losses[-1], losses[0])

    def test_refusals(self):
        x, y = torch.zeros(1, 8, 64), torch.zeros(1, 7, 64)
        module = MultiheadDilatedAttention(64, 4, [8], [1])
        cases = [
            (
                annulus.UnsupportedError,
                "dropout is 0.1; it must be 0",
                lambda: MultiheadDilatedAttention(64, 4, [8], [1], dropout=0.1),
            ),
            (annulus.ArgumentError, "num_heads is 5", lambda: MultiheadDilatedAttention(64, 5, [8], [1])),
            (annulus.ArgumentError, "kv_heads is 3", lambda: MultiheadDilatedAttention(64, 4, [8], [1], kv_heads=3)),
            (
                annulus.UnsupportedError,
                "embed_dim / num_heads is 4",
                lambda: MultiheadDilatedAttention(64, 16, [8], [1]),
            ),
            (
                annulus.ArgumentError,
                "2 segment lengths and 1 dilation",
                lambda: MultiheadDilatedAttention(64, 4, [8, 16], [1]),
            ),
            (
                annulus.UnsupportedError,
                "key_padding_mask",
                lambda: MultiheadDilatedAttention(64, 4, [8], [1])(x, key_padding_mask=x[..., 0] > 0),
            ),
            (annulus.UnsupportedError, "attn_mask is given", lambda: LongNetAttention(64, 4, [8], [1])(x, attn_mask=x)),
            (annulus.UnsupportedError, "training mode", lambda: LongNetAttention(64, 4, [8], [1], dropout=0.1)(x)),
            (TypeError, "key is a ndarray; it must be a torch.Tensor", lambda: module(x, x.numpy())),
            (annulus.UnsupportedError, "query is on meta", lambda: module(x.to("meta"))),
            (
                annulus.UnsupportedError,
                r"parameters are on the device meta, .* to_empty\(",
                lambda: MultiheadDilatedAttention(64, 4, [8], [1], device="meta")(x),
            ),
        ]
        words = {
            "segment_lengths is None; it must be a list": lambda: MultiheadDilatedAttention(64, 4, None, [1]),
            "dilation_rates is 1; it must be a list": lambda: MultiheadDilatedAttention(64, 4, [8], 1),
            r"segment_lengths\[0\] is 8.0; it must be an int": lambda: MultiheadDilatedAttention(64, 4, [8.0], [1]),
            "embed_dim is '64'; it must be an int": lambda: MultiheadDilatedAttention("64", 4, [8], [1]),
            "embed_dim is 0; it must be at least 1": lambda: MultiheadDilatedAttention(0, 4, [8], [1]),
            "num_heads is 4.0; it must be an int": lambda: MultiheadDilatedAttention(64, 4.0, [8], [1]),
            "kv_heads is '2'; it must be an int": lambda: MultiheadDilatedAttention(64, 4, [8], [1], kv_heads="2"),
            "is_causal is 'no'; it must be True": lambda: MultiheadDilatedAttention(64, 4, [8], [1], is_causal="no"),
            "here it is is_causal": lambda: MultiheadDilatedAttention(64, 4, [8], [1], causal=True),
            "is_causal is 'no'; it must be True or False": lambda: module(x, is_causal="no"),
            r"query has shape \[1, 8, 32\]; it must be \[B, N, 64\]": lambda: module(x[..., :32]),
            r"key has shape \[1, 7, 64\]; .* same as query's, \[1, 8, 64\]": lambda: module(x, y),
            r"value has shape \[64\]": lambda: module(x, x, x[0, 0]),
            "segment_length of args is None": lambda: LongNetAttention.from_args(types.SimpleNamespace(), 64, 4),
            "dilated_ratio of args is '1 2'": lambda: LongNetAttention.from_args(
                types.SimpleNamespace(segment_length=[8, 16], dilated_ratio="1 2"), 64, 4
            ),
        }
        cases += [(annulus.ArgumentError, *case) for case in words.items()]
        for error, text, call in cases:
            with self.subTest(text), self.assertRaisesRegex(error, text):
                call()

    def test_longnet_formula(self):
        """Compares outputs and the gradients of all parameters. r divides neither N nor H."""
        segment_length, dilated_ratio = [8, 20, 64], [1, 3, 4]
        for causal in (False, True):
            with self.subTest(causal=causal):
                torch.manual_seed(1)
                module = LongNetAttention(6 * 8, 6, segment_length, dilated_ratio, dtype=torch.float64)
                (x,) = rows(9, (2, 53, 48), dtype=torch.float64)
                weights = torch.randn_like(x)
                q, k, v = (p(x).view(2, 53, 6, 8) for p in (module.q_proj, module.k_proj, module.v_proj))
                mixed = published.attend(q, k, v, list(zip(segment_length, dilated_ratio)), causal).flatten(2)
                wanted = module.out_proj(module.inner_attn_ln(mixed))
                wanted_gradients = torch.autograd.grad((weights * wanted).sum(), module.parameters())
                out, none = module(x, x, x, is_causal=causal)
                self.assertIsNone(none)
                torch.testing.assert_close(out, wanted, rtol=1e-11, atol=1e-12)
                gradients = torch.autograd.grad((weights * out).sum(), module.parameters())
                for found, gradient in zip(gradients, wanted_gradients):
                    torch.testing.assert_close(found, gradient, rtol=1e-9, atol=1e-10)

    def test_longnet_in_its_place(self):
        """The module is made and called as in the published code, and its checkpoints load."""
        args = published.arguments(segment_length="[8, 16]", dilated_ratio=[1, 2], layernorm_eps=1e-6)
        names = list(published.DilatedAttention(args, 64, 4, subln=True).state_dict())
        module = LongNetAttention.from_args(args, 64, 4, dropout=0.1, self_attention=True, subln=True).eval()
        self.assertEqual(list(module.state_dict()), names)
        self.assertEqual(module.inner_attn_ln.eps, 1e-6)
        file = io.BytesIO()
        generator = torch.Generator().manual_seed(1)
        torch.save(
            {
                name: (
                    torch.randn(64, 64, generator=generator)
                    if "proj.weight" in name
                    else torch.randn(64, generator=generator)
                )
                for name in names
            },
            file,
        )
        file.seek(0)
        module.load_state_dict(torch.load(file, weights_only=True))
        (x,) = rows(9, (2, 53, 64))
        wanted = module(x)[0]
        found, _ = module(
            query=x,
            key=x,
            value=x,
            key_padding_mask=torch.zeros(2, 53, dtype=torch.bool),
            attn_mask=None,
            rel_pos=None,
            is_first_step=False,
            incremental_state=None,
            is_causal=False,
        )
        self.assertTrue(torch.equal(found, wanted))
        plain = LongNetAttention.from_args(args, 64, 4, self_attention=True)
        self.assertIsNone(plain.inner_attn_ln)
        printed = published.arguments(segment_length="[np.int64(8), np.int32(16)]", dilated_ratio="[1, np.uint8(2)]")
        self.assertEqual(LongNetAttention.from_args(printed, 64, 4).config, plain.config)  # lists as NumPy 2 prints them
        code = types.SimpleNamespace(segment_length="[np.int64(8), np.prod(16)]", dilated_ratio=[1, 2])
        with self.assertRaisesRegex(annulus.ArgumentError, r"segment_length of args is '.*'; it must be a list of int"):
            LongNetAttention.from_args(code, 64, 4)
        for name in ("multiway", "xpos_rel_pos"):
            with self.assertRaisesRegex(annulus.UnsupportedError, name):
                LongNetAttention.from_args(types.SimpleNamespace(**{**vars(args), name: True}), 64, 4)
        with self.assertRaisesRegex(annulus.UnsupportedError, "encoder_decoder_attention"):
            LongNetAttention.from_args(args, 64, 4, encoder_decoder_attention=True)

    def test_longnet_parameters_in_their_order(self):
        """States that are saved by order, such as an optimizer's, belong to the same parameters."""

        def shapes(module):
            return [(name, tuple(parameter.shape)) for name, parameter in module.named_parameters()]

        for subln in (False, True):
            theirs = published.DilatedAttention(published.arguments(), 64, 4, subln=subln)
            ours = LongNetAttention(64, 4, [8, 16], [1, 2], subln=subln)
            self.assertEqual(shapes(ours), shapes(theirs))
            ours.load_state_dict(theirs.state_dict())
            optimizers = [torch.optim.AdamW(module.parameters(), lr=0.1) for module in (theirs, ours)]

            def step(module, optimizer, seed):
                for place, (_, parameter) in enumerate(sorted(module.named_parameters())):
                    (parameter.grad,) = rows(seed + place, parameter.shape)
                optimizer.step()

            step(theirs, optimizers[0], 1)
            file = io.BytesIO()
            torch.save((theirs.state_dict(), optimizers[0].state_dict()), file)
            file.seek(0)
            weights, state = torch.load(file)
            ours.load_state_dict(weights)
            optimizers[1].load_state_dict(state)
            for module, optimizer in zip((theirs, ours), optimizers):
                step(module, optimizer, 1000)
            for name, parameter in theirs.named_parameters():
                self.assertTrue(torch.equal(ours.get_parameter(name), parameter), name)


class RanksTest(unittest.TestCase):
    def test_ranks_as_threads_equal_one_rank(self):
        for lengths in ((32, 32, 32), (40, 0, 56)):
            for shards in (None, lengths):
                with self.subTest(lengths=lengths, shards=shards):
                    self.compare(lengths, shards)

    def compare(self, lengths, shards):
        """Compares outputs, gradients of the input, and the ranks' sum of the parameters' gradients."""
        torch.manual_seed(1)
        arguments = (64, 4, [16, 96], [1, 4])
        alone = MultiheadDilatedAttention(*arguments, is_causal=True, layer_norm=True, dtype=torch.float64)
        x, weights = rows(9, (2, 96, 64), (2, 96, 64), dtype=torch.float64)
        whole = x.clone().requires_grad_()
        wanted = alone(whole)[0]
        (weights * wanted).sum().backward()
        starts = np.cumsum([0, *lengths])
        results = {}

        def work(end):
            mine = slice(starts[end.rank], starts[end.rank + 1])
            module = MultiheadDilatedAttention(
                *arguments, is_causal=True, layer_norm=True, dtype=torch.float64, process_group=end, shards=shards
            )
            module.load_state_dict(alone.state_dict())
            part = x[:, mine].clone().requires_grad_()
            out = module(part)[0]
            (weights[:, mine] * out).sum().backward()
            results[end.rank] = out.detach(), part.grad, [p.grad for p in module.parameters()]

        together(annulus.Comm.local(3), work)
        parts = [results[rank] for rank in range(3)]
        torch.testing.assert_close(torch.cat([part[0] for part in parts], 1), wanted.detach(), rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(torch.cat([part[1] for part in parts], 1), whole.grad, rtol=1e-9, atol=1e-10)
        for parameter, gradients in zip(alone.parameters(), zip(*(part[2] for part in parts))):
            torch.testing.assert_close(sum(gradients), parameter.grad, rtol=1e-9, atol=1e-10)

    def check_reconnect(self, group):
        """A group's broken communicator stays until reconnect(). The test uses a local one instead of NCCL's."""
        text = annulus.Config(BRANCHES)._text
        cpu, gpu = torch.device("cpu"), types.SimpleNamespace(device=torch.device("cuda", 0), shape=SHAPE)
        arrays = rows(3, SHAPE, KV_SHAPE, KV_SHAPE)
        asked = []  # only_nccl of each communicator

        def from_nccl_id(*_, only_nccl):
            asked.append(only_nccl)
            return annulus.Comm.local(1)[0]

        local = {"nccl_id": bytes, "from_nccl_id": from_nccl_id}
        with unittest.mock.patch.multiple(annulus.Comm, **local):
            number = _ranks.number_of(group, None, gpu, text, (None, None))
            self.assertEqual(_ranks.number_of(group, None, gpu, text, (None, None)), number)
            with self.assertRaises(annulus.ArgumentError):  # leaves the communicator usable
                _ranks.context_of(text, cpu, number).forward(arrays[0], arrays[0], arrays[2])
            wanted, _ = _ranks.context_of(text, cpu, number).forward(*arrays)
            (comm,) = _ranks._by_group.values()
            comm.abort()
            self.assertEqual(_ranks.number_of(group, None, gpu, text, (None, None)), number)
            with self.assertRaises(annulus.CommError):
                _ranks.context_of(text, cpu, number).forward(*arrays)
            gone = weakref.ref(comm)
            del comm
            reconnect(group)
            gc.collect()
            self.assertIsNone(gone())
            with self.assertRaisesRegex(annulus.ArgumentError, "the communicator of this computation is gone"):
                _ranks.context_of(text, cpu, number)
            number = _ranks.number_of(group, None, gpu, text, (None, None))
            found, _ = _ranks.context_of(text, cpu, number).forward(*arrays)
            self.assertTrue(torch.equal(found, wanted))
            for only_nccl in (True, None, False, None):  # does no harm to a communicator that works
                reconnect(group, only_nccl=only_nccl)
                _ranks.number_of(group, None, gpu, text, (None, None))
            self.assertEqual(asked, [False, False, True, True, False, False])
            with self.assertRaisesRegex(annulus.ArgumentError, "only_nccl is 2; it must be"):
                reconnect(group, only_nccl=2)
            reconnect(group)
        with self.assertRaisesRegex(annulus.ArgumentError, "process_group is 'x'; it must be a group"):
            reconnect("x")

    def test_groups_without_gpus(self):
        import torch.distributed as dist

        if not dist.is_available() or not dist.is_gloo_available():
            self.skipTest("needs torch.distributed with gloo")
        with tempfile.TemporaryDirectory() as directory:
            dist.init_process_group("gloo", init_method=f"file://{directory}/meeting", rank=0, world_size=1)
            try:
                q, k, v = rows(3, SHAPE, KV_SHAPE, KV_SHAPE)
                found = dilated_attention(q, k, v, BRANCHES, process_group=dist.group.WORLD)
                self.assertTrue(torch.equal(found, dilated_attention(q, k, v, BRANCHES)))
                self.check_reconnect(dist.group.WORLD)
            finally:
                dist.destroy_process_group()
        with self.assertRaisesRegex(annulus.ArgumentError, "a word for shards needs a process group"):
            dilated_attention(q, k, v, BRANCHES, process_group=annulus.Comm.local(1)[0], shards="gather")


@unittest.skipUnless(torch.cuda.is_available() and annulus.device_count("cuda"), "needs a GPU")
class CudaTest(unittest.TestCase):
    def test_equal_to_the_cpu(self):
        q, k, v, weights = rows(3, SHAPE, KV_SHAPE, KV_SHAPE, SHAPE)
        results = []
        for device in ("cpu", "cuda"):
            moved = [t.detach().to(device).requires_grad_() for t in (q, k, v)]
            out, lse = dilated_attention(*moved, BRANCHES, causal=True, return_lse=True)
            (out * weights.detach().to(device)).sum().backward()
            results.append([t.detach().cpu() for t in (out, lse, *(t.grad for t in moved))])
        for found, wanted in zip(*results):
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)

    def test_stream_follows(self):
        q, k, v = (t.cuda() for t in rows(3, SHAPE, KV_SHAPE, KV_SHAPE))
        wanted = dilated_attention(q, k, v, BRANCHES)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            torch.cuda._sleep(100_000_000)
            late = q + 0
            found = dilated_attention(late, k, v, BRANCHES)
        stream.synchronize()
        self.assertTrue(torch.equal(found, wanted))

    def test_autocast_and_half(self):
        q, k, v = (t.cuda() for t in rows(3, SHAPE, KV_SHAPE, KV_SHAPE))
        with torch.autocast("cuda", dtype=torch.bfloat16):
            out = dilated_attention(q, k, v, BRANCHES)
        self.assertEqual((out.dtype, out.device), (torch.bfloat16, q.device))
        self.assertTrue(torch.equal(out, annulus.attention(q.bfloat16(), k.bfloat16(), v.bfloat16(), BRANCHES)))

    def test_tensors_of_two_devices(self):
        q, k, v = rows(3, SHAPE, KV_SHAPE, KV_SHAPE)
        with self.assertRaisesRegex(annulus.ArgumentError, "k is on cpu; the context is on cuda:0"):
            annulus.attention(q.cuda(), k, v, BRANCHES)


if __name__ == "__main__":
    tap.main()
