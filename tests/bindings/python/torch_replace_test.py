# SPDX-License-Identifier: Apache-2.0
"""replace_longnet_attention() in models with the structure of LongNet's published code: what it changes, leaves and
refuses, and the wrappers and transforms of models afterwards. Also what LongNetAttention saves for backward.

torch_replace_test.py runs itself as `torch_replace_test.py DIRECTORY RANK`.
"""

import contextlib
import copy
import io
import os
import pathlib
import pickle
import re
import sys
import types
import unittest
import warnings

import capi
import tap

try:
    import torch
except ImportError:
    tap.skip_all("needs PyTorch")

import torch.distributed as dist
from torch.utils.checkpoint import checkpoint

import annulus
import published
import slide_model
from processes import run_ranks
from annulus.torch import LongNetAttention, replace_longnet_attention
from annulus.torch._functional import attend

torch.set_num_threads(1)  # the tests have many small tensors
RANKS = 2
LENGTH = 83


def rows(seed, *shape, dtype=torch.float64):
    return torch.from_numpy(capi.numbers(seed, shape, dtype="float64")[0]).to(dtype)


def encoder(dtype=torch.float64, **others):
    torch.manual_seed(1)
    return published.Encoder(published.arguments(**others)).to(dtype)


def gradients(model, x):
    """Computes the output, and the gradients of a loss that is not symmetric in its rows."""
    for parameter in model.parameters():
        parameter.grad = None
    out = model(x)
    weights = rows(5, *out.shape, dtype=out.dtype)
    (out * weights.to(out.device)).sum().backward()
    return out.detach(), [parameter.grad.clone() for parameter in model.parameters()]


class Case(unittest.TestCase):
    def assert_close(self, found, wanted, tolerance=1e-9):
        scale = max(float(tensor.abs().max()) for tensor in wanted[1])
        torch.testing.assert_close(found[0], wanted[0], rtol=tolerance, atol=tolerance)
        for one, other in zip(found[1], wanted[1]):
            torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance * scale)


class ReplaceTest(Case):
    def test_outputs_and_gradients(self):
        """H = 16 and several D. The last segment is short, and its length is no multiple of r."""
        for dim, subln in ((16, True), (24, True), (48, True), (48, False), (64, True), (96, True)):
            with self.subTest(dim=dim, subln=subln):
                model = encoder(embed_dim=16 * dim, num_heads=16, encoder_layers=1, subln=subln)
                x = rows(3, 2, LENGTH, 16 * dim)
                wanted = gradients(model, x)
                self.assertEqual(replace_longnet_attention(model).replaced, ["layers.0.self_attn"])
                self.assertIsInstance(model.layers[0].self_attn, LongNetAttention)
                self.assert_close(gradients(model, x), wanted)

    def test_what_is_there_stays(self):
        model = encoder()
        theirs = [layer.self_attn for layer in model.layers]
        parameters, keys = dict(model.named_parameters()), list(model.state_dict())
        optimiser = torch.optim.SGD(model.parameters(), 0.1)
        theirs[0].note = "mine"
        calls = []
        theirs[0].register_forward_hook(lambda *_: calls.append("attention"))
        theirs[0].k_proj.register_forward_hook(lambda *_: calls.append("k_proj"))
        result = replace_longnet_attention(model)
        self.assertEqual(str(result).splitlines()[0], "layers.0.self_attn: DilatedAttention replaced")
        self.assertEqual((len(result.found), result.left), (2, []))
        self.assertEqual(list(model.state_dict()), keys)
        found = dict(model.named_parameters())
        self.assertEqual(list(found), list(parameters))
        self.assertTrue(all(found[name] is parameter for name, parameter in parameters.items()))
        ours = model.layers[0].self_attn
        for name in ("args", "embed_dim", "num_heads", "head_dim", "scaling", "self_attention", "xpos", "note"):
            self.assertIs(getattr(ours, name), getattr(theirs[0], name), name)
        self.assertFalse(ours.encoder_decoder_attention)
        x = rows(3, 1, LENGTH, 64)
        before = model(x)
        self.assertEqual(calls, ["k_proj", "attention"])
        (before * before).sum().backward()
        optimiser.step()
        self.assertFalse(torch.equal(model(x), before))
        self.assertEqual(replace_longnet_attention(model).found, ())  # all modules are replaced

    def test_dry_run_and_undo(self):
        model = encoder()
        modules = dict(model.named_modules())
        result = replace_longnet_attention(model, dry_run=True)
        self.assertEqual(result.replaced, ["layers.0.self_attn", "layers.1.self_attn"])
        self.assertEqual(dict(model.named_modules()), modules)
        result.undo()
        result = replace_longnet_attention(model)
        ours = model.layers[0].self_attn
        model.eval()
        second = model.layers[1].self_attn
        model.layers[1].self_attn = torch.nn.Identity()
        with self.assertRaisesRegex(annulus.ArgumentError, "self_attn of a EncoderLayer is a Identity by now"):
            result.undo()
        self.assertIs(model.layers[0].self_attn, ours)
        model.layers[1].self_attn = second
        for _ in range(2):
            result.undo()
            self.assertEqual(dict(model.named_modules()), modules)
            self.assertFalse(model.layers[0].self_attn.training)

    def test_one_module_in_two_places(self):
        model = encoder()
        model.layers[1].self_attn = model.layers[0].self_attn
        result = replace_longnet_attention(model)
        self.assertEqual(len(result.replaced), 2)
        self.assertIs(model.layers[1].self_attn, model.layers[0].self_attn)
        result.undo()
        self.assertIs(model.layers[1].self_attn, model.layers[0].self_attn)

    def test_what_is_left(self):
        """The result says why, and the other layer is replaced."""

        def split(module):
            module.q_proj.split_position = -1

        def own(module):
            module.bias = torch.nn.Parameter(torch.zeros(1))

        def full(module):
            module.__class__ = type("MultiheadAttention", (torch.nn.Module,), {"forward": module.forward.__func__})

        def args(**others):
            return lambda module: setattr(module, "args", types.SimpleNamespace(**{**vars(module.args), **others}))

        cases = {
            "q_proj is a Linear; multiway is not supported": split,
            "multiway of args is set": args(multiway=True),
            "xpos_rel_pos of args is set": args(xpos_rel_pos=True),
            "it has xpos, relative positions": lambda module: setattr(module, "xpos", torch.nn.Identity()),
            "encoder_decoder_attention is set": lambda module: setattr(module, "encoder_decoder_attention", True),
            "it has parameters of its own, bias": own,
            r"its forward\(\) was replaced": lambda module: setattr(module, "forward", module.forward),
            "it is not known as dilated attention": full,
            "embed_dim / num_heads is 4": lambda module: setattr(module, "num_heads", 16),
            "embed_dim is None; it must be an int": lambda module: delattr(module, "embed_dim"),
            r"dilated_ratio of args\[1\] is 1.5": args(dilated_ratio=[1, 1.5]),
            "dilation is 0": args(dilated_ratio=[1, 0]),
            "2 segment lengths and 1 dilation": args(dilated_ratio=[1]),
        }
        if hasattr(torch.nn.Module, "compile"):
            cases["torch.compile was applied to it by itself"] = lambda module: module.compile(backend="eager")
        for reason, change in cases.items():
            with self.subTest(reason):
                model = encoder()
                odd = model.layers[0].self_attn
                change(odd)
                for dry_run in (True, False):
                    result = replace_longnet_attention(model, dry_run=dry_run)
                    self.assertEqual(result.left, ["layers.0.self_attn"])
                    self.assertEqual(result.replaced, ["layers.1.self_attn"])
                    self.assertRegex(result.found[0].note, reason)
                    self.assertIn("left as it is", str(result))
                self.assertIs(model.layers[0].self_attn, odd)

    def test_a_model_that_is_one(self):
        with self.assertWarnsRegex(UserWarning, r"nothing of this DilatedAttention is replaced: \(the model\): .* itself"):
            result = replace_longnet_attention(encoder().layers[0].self_attn)
        self.assertRegex(str(result), r"\(the model\): .* left as it is; it is the model itself")

    def test_models_without_any(self):
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.MultiheadAttention(8, 1))
        with self.assertWarnsRegex(UserWarning, "nothing of this Sequential is replaced: it has no attention") as caught:
            result = replace_longnet_attention(model)
        self.assertEqual(caught.filename, __file__)
        self.assertEqual(str(result), "no attention module of LongNet's published code")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model = encoder()
            replace_longnet_attention(model)
            replace_longnet_attention(model)  # a second time
        with self.assertRaisesRegex(TypeError, "model is a list; it must be a torch.nn.Module"):
            replace_longnet_attention([model])
        with self.assertRaisesRegex(annulus.ArgumentError, "misplaced_rows is 'x'; it must be None or 'as published'"):
            replace_longnet_attention(model, misplaced_rows="x")

    def test_copies_known_by_what_they_have(self):
        """A class of another name is recognised by dense_to_sparse(), with a list in a string and without a norm."""
        names = {"forward": published.DilatedAttention.forward, "dense_to_sparse": None}
        kind = type("Attention", (torch.nn.Module,), names)
        model = encoder(segment_length="[16, 48]", subln=False)
        for layer in model.layers:
            layer.self_attn.__class__ = kind
            del layer.self_attn.inner_attn_ln
        wanted = encoder(subln=False)
        self.assertEqual(len(replace_longnet_attention(model).replaced), 2)
        x = rows(3, 1, LENGTH, 64)
        self.assertTrue(torch.allclose(model(x), wanted(x)))

    def test_dropout_of_attention_weights(self):
        for change in (lambda module: None, lambda module: setattr(module, "dropout", 0.1)):
            model = encoder(attention_dropout=0.1)
            for layer in model.layers:
                change(layer.self_attn)
            wanted = encoder().eval()
            result = replace_longnet_attention(model)
            self.assertIn(r"dropout of attention weights is 0.1: in eval() mode alone", str(result))
            x = rows(3, 1, LENGTH, 64)
            with self.assertRaisesRegex(annulus.UnsupportedError, "dropout is 0.1 and the module is in training mode"):
                model(x)
            self.assertTrue(torch.allclose(model.eval()(x), wanted(x)))

    def test_misplaced_rows(self):
        """17 and 34 are no multiples of 3 and 4, and the sequence is longer."""
        branches = {"segment_length": [8, 17, 34, 100], "dilated_ratio": [1, 3, 4, 8]}
        x = rows(3, 2, LENGTH, 64)
        wanted = gradients(encoder(**branches), x)
        defined, as_published = encoder(**branches), encoder(**branches)
        note = "beyond 17 positions, where the published code misplaces rows, outputs differ"
        self.assertIn(note, str(replace_longnet_attention(defined)))
        self.assertNotIn(note, str(replace_longnet_attention(as_published, misplaced_rows="as published")))
        self.assert_close(gradients(as_published, x), wanted)
        self.assertFalse(torch.allclose(defined(x), wanted[0], atol=1e-2))
        short = x[:, :17]
        self.assertTrue(torch.allclose(as_published(short), defined(short)))
        self.assertTrue(torch.allclose(encoder(**branches)(short), defined(short)))
        for causal in (False, True):
            module, theirs = as_published.layers[0].self_attn, encoder(**branches).layers[0].self_attn
            self.assertTrue(torch.allclose(module(x, x, x, is_causal=causal)[0], theirs(x, x, x, is_causal=causal)[0]))
        with self.assertRaisesRegex(annulus.UnsupportedError, "sequence_lengths with misplaced_rows"):
            module(x, sequence_lengths=[5, 6])
        words = {"misplaced_rows": "as published"}
        with self.assertRaisesRegex(annulus.ArgumentError, "padding is 'exact'; with misplaced_rows it must be"):
            LongNetAttention(64, 4, [8], [1], padding="exact", **words)
        with self.assertRaisesRegex(annulus.UnsupportedError, "misplaced_rows .* with a process group"):
            LongNetAttention(64, 4, [8], [1], process_group=annulus.Comm.local(1)[0], **words)


class AfterwardsTest(Case):
    """Wrappers and transforms of models with replaced modules."""

    def setUp(self):
        self.x = rows(3, 2, LENGTH, 64, dtype=torch.float32)
        self.theirs, self.model = encoder(torch.float32), encoder(torch.float32)
        replace_longnet_attention(self.model)
        self.wanted = gradients(self.theirs, self.x)

    @unittest.skipUnless(hasattr(torch, "func"), "needs PyTorch 2.0, for layer_norm under autocast on CPUs")
    def test_autocast(self):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found, wanted = gradients(self.model, self.x), gradients(self.theirs, self.x)
        self.assert_close(found, wanted, 0.1)
        torch.testing.assert_close(found[0], self.wanted[0], rtol=0.1, atol=0.1)

    @unittest.skipUnless(hasattr(torch.library, "custom_op"), "needs PyTorch 2.4")
    def test_compile(self):
        compiled = torch.compile(self.model, backend="aot_eager", fullgraph=True)
        self.assert_close(gradients(compiled, self.x), self.wanted, 1e-4)
        compiled = torch.compile(encoder(torch.float32), backend="aot_eager")
        self.assertEqual(len(replace_longnet_attention(compiled).replaced), 2)
        self.assert_close(gradients(compiled, self.x), self.wanted, 1e-4)
        alone = encoder(torch.float32)
        alone.layers[0].self_attn = torch.compile(alone.layers[0].self_attn, backend="eager")
        self.assertRegex(replace_longnet_attention(alone).found[0].note, "torch.compile was applied to it by itself")

    @unittest.skipUnless(hasattr(torch.library, "custom_op"), "needs PyTorch 2.4")
    def test_compile_with_misplaced_rows(self):
        model = encoder(torch.float32, segment_length=[17], dilated_ratio=[3])
        wanted = model(self.x)
        replace_longnet_attention(model, misplaced_rows="as published")
        found = torch.compile(model, backend="aot_eager")(self.x)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)

    def test_checkpointing(self):
        for reentrant in (False, True):
            with self.subTest(reentrant=reentrant):
                model = copy.deepcopy(self.model)
                for layer in model.layers:
                    inner = layer.forward
                    layer.forward = lambda *given, inner=inner: checkpoint(inner, *given, use_reentrant=reentrant)
                self.x.requires_grad_()
                self.assert_close(gradients(model, self.x), self.wanted, 1e-4)

    def test_copies_and_pickles(self):
        file = io.BytesIO()
        torch.save(self.model, file)
        file.seek(0)
        loaded = torch.load(file, **({"weights_only": False} if "weights_only" in torch.load.__kwdefaults__ else {}))
        for model in (copy.deepcopy(self.model), pickle.loads(pickle.dumps(self.model)), loaded):
            self.assertIsInstance(model.layers[1].self_attn, LongNetAttention)
            own = {id(parameter) for parameter in self.model.parameters()}
            self.assertTrue(all(id(parameter) not in own for parameter in model.parameters()))
            self.assert_close(gradients(model, self.x), gradients(self.model, self.x), 1e-6)

    def test_checkpoints_go_both_ways(self):
        torch.manual_seed(2)
        other = published.Encoder(self.model.args)
        self.model.load_state_dict(other.state_dict())
        torch.testing.assert_close(self.model(self.x), other(self.x), rtol=1e-4, atol=1e-4)
        self.theirs.load_state_dict(self.model.state_dict())
        torch.testing.assert_close(self.theirs(self.x), other(self.x), rtol=1e-4, atol=1e-4)

    def test_a_state_after_double(self):
        self.model.double()
        found = self.model(self.x.double())
        torch.testing.assert_close(found, self.theirs.double()(self.x.double()))

    @unittest.skipUnless(dist.is_available() and dist.is_gloo_available(), "needs torch.distributed with gloo")
    def test_wrappers_of_two_ranks(self):
        run_ranks(self, __file__, RANKS)


def compare_wrapped(wrap, rank):
    """Puts DDP or FSDP around the model, before and after. Compares with one rank that has the rows of both."""
    x = rows(3, RANKS, LENGTH, 64, dtype=torch.float32)
    alone = encoder(torch.float32)
    wanted = alone(x)
    (wanted * wanted).sum().div(RANKS).backward()
    for before in (True, False):
        model = encoder(torch.float32)
        if before:
            replace_longnet_attention(model)
        wrapped, gradients_of = wrap(model)
        if not before:
            result = replace_longnet_attention(wrapped)
            assert len(result.replaced) == 2 and not result.left, result
        found = wrapped(x[rank : rank + 1])
        torch.testing.assert_close(found, wanted[rank : rank + 1], rtol=1e-4, atol=1e-4)
        (found * found).sum().backward()
        scale = max(float(parameter.grad.abs().max()) for parameter in alone.parameters())
        for one, other in zip(gradients_of(), alone.parameters()):
            torch.testing.assert_close(one, other.grad, rtol=0, atol=1e-5 * scale)


def compare_fully_sharded(fully_shard, mesh, rank):
    """Applies fully_shard() to layers with replaced modules, and to such a module alone. Compares with published
    modules, since over gloo some versions of PyTorch give the sum of the ranks' gradients, and others the mean."""
    x = rows(3, RANKS, LENGTH, 64, dtype=torch.float32)[rank : rank + 1]

    def result(replaced, parts):
        model = encoder(torch.float32)
        if replaced == "before":
            replace_longnet_attention(model)
        for part in (*parts(model), model):
            fully_shard(part, mesh=mesh)
        if replaced == "after":
            assert len(replace_longnet_attention(model).replaced) == 2
        out, found = gradients(model, x)
        return out, [gradient.full_tensor() for gradient in found]

    def layers(model):
        return [*model.layers]

    def modules(model):
        return [layer.self_attn for layer in model.layers]

    wanted = result("", layers)
    for found in (result("before", layers), result("after", layers), result("before", modules)):
        torch.testing.assert_close(found[0], wanted[0], rtol=1e-4, atol=1e-4)
        scale = max(float(gradient.abs().max()) for gradient in wanted[1])
        for one, other in zip(found[1], wanted[1]):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-5 * scale)


def work(directory, rank):
    dist.init_process_group("gloo", init_method=f"file://{directory}/meeting", rank=rank, world_size=RANKS)

    def in_ddp(model):
        wrapped = torch.nn.parallel.DistributedDataParallel(model)
        return wrapped, lambda: [parameter.grad for parameter in wrapped.parameters()]

    compare_wrapped(in_ddp, rank)
    if hasattr(torch, "func"):  # before PyTorch 2.0 FSDP needs GPUs
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

        place = torch.device("cpu")

        def in_fsdp(model):
            for layer in model.layers:
                layer.self_attn = FSDP(layer.self_attn, use_orig_params=True, device_id=place)
            wrapped = FSDP(model, use_orig_params=True, device_id=place)

            def gradients_of():
                with FSDP.summon_full_params(wrapped, with_grads=True):
                    return [parameter.grad.clone() for parameter in wrapped.parameters()]

            return wrapped, gradients_of

        compare_wrapped(in_fsdp, rank)
    fully_shard = getattr(sys.modules.get("torch.distributed.fsdp"), "fully_shard", None)
    if fully_shard is not None:
        mesh = dist.device_mesh.init_device_mesh("cpu", (RANKS,))
        compare_fully_sharded(fully_shard, mesh, rank)
        model = encoder()
        fully_shard(model.layers[0].self_attn, mesh=mesh)
        result = replace_longnet_attention(model)
        assert result.left == ["layers.0.self_attn"] and "fully_shard() was applied" in str(result), result
    dist.destroy_process_group()
    print("done")


class ModuleTest(unittest.TestCase):
    """The properties of LongNetAttention on which a replaced module relies."""

    def test_first_values(self):
        """Initial values are those of the published constructor. Its reset_parameters() has another distribution."""
        for subln in (False, True):
            made = []
            for make in (published.DilatedAttention, LongNetAttention.from_args):
                torch.manual_seed(4)
                made.append(make(published.arguments(), 64, 4, self_attention=True, subln=subln))
            theirs, ours = made
            self.assertEqual(list(theirs.state_dict()), list(ours.state_dict()))
            for name, parameter in theirs.named_parameters():
                self.assertTrue(torch.equal(ours.get_parameter(name), parameter), name)
        before = {name: parameter.clone() for name, parameter in ours.named_parameters()}
        torch.manual_seed(4)
        ours.reset_parameters()
        torch.manual_seed(4)
        for name, gain in (("k_proj", 0.5**0.5), ("v_proj", 0.5**0.5), ("q_proj", 0.5**0.5), ("out_proj", 1)):
            wanted = torch.nn.init.xavier_uniform_(torch.empty(64, 64), gain=gain)
            self.assertTrue(torch.equal(ours.get_parameter(f"{name}.weight"), wanted), name)
        self.assertEqual(float(ours.out_proj.bias.detach().abs().max()), 0)
        for name in ("k_proj.bias", "v_proj.bias", "q_proj.bias", "inner_attn_ln.weight"):
            self.assertTrue(torch.equal(ours.get_parameter(name), before[name]), name)

    def test_attributes(self):
        args = published.arguments()
        theirs = published.DilatedAttention(args, 64, 4, self_attention=True)
        ours = LongNetAttention.from_args(args, 64, 4, self_attention=True)
        for module in (ours, LongNetAttention(64, 4, [16, 48], [1, 3])):
            for name in ("embed_dim", "num_heads", "head_dim", "scaling", "self_attention", "xpos"):
                self.assertEqual(getattr(module, name), getattr(theirs, name), name)
            self.assertFalse(module.encoder_decoder_attention)
            self.assertEqual((module.args.segment_length, module.args.dilated_ratio), ([16, 48], [1, 3]))
        self.assertIs(ours.args, args)

    def test_several_sequences(self):
        """Packed and padded sequences have the results that each has alone."""
        module = LongNetAttention(64, 4, [16, 48], [1, 3], dtype=torch.float64)
        starts = [0, 30, 31, LENGTH]
        x = rows(3, 2, LENGTH, 64)
        packed, _ = module(x[:1], sequence_starts=starts)
        for start, end in zip(starts, starts[1:]):
            torch.testing.assert_close(packed[:, start:end], module(x[:1, start:end])[0])
        padded, _ = module(x, x, x, sequence_lengths=torch.tensor([LENGTH, 20]))
        torch.testing.assert_close(padded[0], module(x[0])[0])
        torch.testing.assert_close(padded[1, :20], module(x[1, :20])[0])

    @unittest.skipUnless(hasattr(torch, "func"), "needs PyTorch 2.0")
    def test_several_sequences_by_a_hook(self):
        """Sequences are passed to the modules of a model without arguments for them."""
        starts = [0, 30, 31, LENGTH]
        x = rows(3, 2, LENGTH, 64)
        model = encoder()
        replace_longnet_attention(model)
        wanted = [model(x[:1, start:end]) for start, end in zip(starts, starts[1:])]

        def with_starts(module, given, named):
            return given, {**named, "sequence_starts": starts}

        for layer in model.layers:
            layer.self_attn.register_forward_pre_hook(with_starts, with_kwargs=True)
        torch.testing.assert_close(model(x[:1]), torch.cat(wanted, 1))


@unittest.skipUnless(torch.cuda.is_available() and annulus.device_count("cuda"), "needs a GPU")
class CudaTest(Case):
    """Encoders in training: float16 under autocast on a GPU, compared with float64 on the CPU."""

    def check(self, sizes, change=lambda model: model):
        x = rows(3, 2, LENGTH, sizes["embed_dim"])
        wanted = gradients(encoder(**sizes), x)
        model = encoder(torch.float32, **sizes).cuda()
        replace_longnet_attention(model)
        with torch.autocast("cuda", dtype=torch.float16):
            out, found = gradients(change(model), x.float().cuda())
        self.assert_close((out.cpu().double(), [gradient.cpu().double() for gradient in found]), wanted, 0.01)

    def test_sizes(self):
        for dim in (16, 24, 48, 64, 96):
            with self.subTest(dim=dim):
                self.check({"embed_dim": 16 * dim, "num_heads": 16, "encoder_layers": 1})

    def test_checkpointing(self):
        def checkpointed(model):
            for layer in model.layers:
                inner = layer.forward
                layer.forward = lambda *given, inner=inner: checkpoint(inner, *given, use_reentrant=False)
            return model

        self.check({"embed_dim": 64}, checkpointed)

    @unittest.skipUnless(hasattr(torch.library, "custom_op"), "needs PyTorch 2.4")
    def test_compile(self):
        self.check({"embed_dim": 64}, lambda model: torch.compile(model, backend="aot_eager", fullgraph=True))


class HostTest(unittest.TestCase):
    def test_calls_of_functions(self):
        """Limits the function calls of a forward beyond its projections and its attention. On a slide of a thousand
        tiles the GPU waits for the host."""
        module = LongNetAttention(64, 4, [16, 48], [1, 3])
        x = torch.zeros(1, LENGTH, 64)
        q = x.view(1, LENGTH, 4, 16)

        def calls_of(work):
            count = 0

            def seen(frame, event, argument):
                nonlocal count
                count += event in ("call", "c_call")

            work()  # fills the caches
            sys.setprofile(seen)
            try:
                work()
            finally:
                sys.setprofile(None)
            return count

        def projections():
            module.q_proj(x), module.k_proj(x), module.v_proj(x), module.out_proj(module.inner_attn_ln(x))

        with torch.no_grad():
            attention = calls_of(lambda: attend(q, q, q, module.config._text))
            own = calls_of(lambda: module(x, x, x)) - attention - calls_of(projections)
        self.assertLess(own, 50)


class PageTest(unittest.TestCase):
    @unittest.skipUnless(hasattr(torch, "func"), "needs PyTorch 2.0")
    def test_python_of_the_page(self):
        """Each block of doc/slides.md prints what the page says, with a new encoder; changed encoders work. slides_test.py
        has the blocks with maps."""
        page = pathlib.Path(os.environ["ANNULUS_SOURCE"], "doc/slides.md").read_text(encoding="utf-8")
        blocks = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
        blocks = [block for block in blocks if "annulus.slides" not in block]
        wanted = re.search(r"^```text\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)[1]
        names, printed = {}, io.StringIO()
        names["tiles"] = [rows(n, 1, n, 24, dtype=torch.float32) for n in (300, 7, 120)]
        names["coordinates"] = [torch.zeros(1, n.shape[1], 2) for n in names["tiles"]]
        with contextlib.redirect_stdout(printed):
            for block in blocks:
                if "encode_slides" in block:
                    model = slide_model.SlideModel(published.arguments())
                    names["slide_encoder"] = model
                elif "slide_encoder" in block:
                    names["slide_encoder"] = torch.nn.Module()
                    names["slide_encoder"].encoder = encoder(torch.float32)
                exec(block, names)
        modules = "['encoder.layers.0.self_attn', 'encoder.layers.1.self_attn']"
        self.assertEqual(printed.getvalue(), wanted + f"{modules} []\n")
        self.assertEqual(names["out"].shape, (1, 3001, 16, 48))
        for output, *slide in zip(names["outputs"], names["tiles"], names["coordinates"]):
            torch.testing.assert_close(output[0], model(*slide)[0], rtol=1e-4, atol=1e-4)

    def run_block(self, page, word):
        """Runs the one Python block of `page` that has `word`. Returns its names and what it printed."""
        text = pathlib.Path(os.environ["ANNULUS_SOURCE"], page).read_text(encoding="utf-8")
        blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        (block,) = (block for block in blocks if word in block)
        names, printed = {"slide_encoder": encoder(torch.float32)}, io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(block, names)
        return names, printed.getvalue()

    def test_one_line_of_readme(self):
        _, printed = self.run_block("README.md", "replace_longnet_attention")
        self.assertIn("DilatedAttention replaced", printed)

    def test_from_args_of_python_page(self):
        """It has Prov-GigaPath's five branches."""
        names, _ = self.run_block("doc/python.md", "from_args")
        wanted = annulus.Config.gigapath()
        self.assertEqual(names["attention"].config.branches, wanted.branches)
        self.assertEqual(names["attention"].config.padding, wanted.padding)


class SavedTest(unittest.TestCase):
    """The bytes for each position that are saved for backward, without the parameters' memory."""

    def saved_bytes(self, call, length, parameters):
        """Counts the bytes of saved tensors, each piece of memory once."""
        pieces = {}
        storage_of = getattr(torch.Tensor, "untyped_storage", torch.Tensor.storage)  # before PyTorch 2.0
        own = {storage_of(parameter).data_ptr() for parameter in parameters}

        def pack(tensor):
            storage = storage_of(tensor)
            if storage.data_ptr() not in own:
                pieces[storage.data_ptr()] = storage  # kept, so that no other tensor gets its address
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            out = call(length)
        self.assertTrue(out.requires_grad)
        return sum(storage.nbytes() for storage in pieces.values())

    def per_position(self, call, module):
        """Returns the growth with the length; weights in autocast's dtype, for one, do not grow."""
        short, long = (self.saved_bytes(call, length, module.parameters()) for length in (64, 96))
        return (long - short) / 32

    def check_modules(self, wanted):
        """Checks one branch and several, without and with the norm. wanted: a function of width, heads and norm."""
        width, heads = 128, 4
        for branches in ([(16, 1)], [(16, 1), (32, 2), (0, 4)]):
            for subln in (False, True):
                module = LongNetAttention(width, heads, *zip(*branches), subln=subln)
                x = rows(3, 1, 96, width, dtype=torch.float32)

                def call(length):
                    return module(*[x[:, :length].clone()] * 3)[0]

                self.assertEqual(self.per_position(call, module), wanted(width, heads, subln))

    def test_bytes_of_a_position(self):
        """The docstring counts x, q, k, v, out, the normalised out, lse, and the norm's statistics."""
        self.check_modules(lambda width, heads, subln: 4 * (5 + subln) * width + 4 * heads + subln * 8)

    @unittest.skipUnless(hasattr(torch, "func"), "needs PyTorch 2.0, for layer_norm under autocast on CPUs")
    def test_bytes_under_autocast(self):
        """Counts the same in 16 bits, and the norm's input in float32, which then is another array than the output."""
        with torch.autocast("cpu", dtype=torch.bfloat16):
            self.check_modules(
                lambda width, heads, subln: (2 * (5 + subln) + 4 * subln) * width + 4 * heads + subln * 8
            )

    @unittest.skipUnless(hasattr(torch, "func"), "needs PyTorch 2.0, for layer_norm under autocast on CPUs")
    def test_bytes_of_an_encoder_layer(self):
        """Checks the number in doc/slides.md, under autocast with an inner layer of four times the width and no
        dropout. The page says 66 widths: on a GPU autocast's norm of the inner layer saves float32, 8 bytes a number
        more."""
        width, heads = 128, 4
        layer = encoder(torch.float32, embed_dim=width, num_heads=heads, encoder_ffn_embed_dim=4 * width).layers[0]
        model = torch.nn.ModuleList([layer])
        replace_longnet_attention(model)
        x = rows(3, 1, 96, width, dtype=torch.float32)

        def call(length):
            return layer(x[:, :length].clone(), None)

        with torch.autocast("cpu", dtype=torch.bfloat16):
            self.assertEqual(self.per_position(call, model), 58 * width + 4 * heads + 4 * 8)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        work(sys.argv[1], int(sys.argv[2]))
    else:
        tap.main()
