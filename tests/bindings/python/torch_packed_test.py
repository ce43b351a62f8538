# SPDX-License-Identifier: Apache-2.0
"""encode_slides(): slides of different lengths in one run of an encoder, compared with one slide at a time, in float64."""

import unittest

import capi
import tap

try:
    import torch
except ImportError:
    tap.skip_all("needs PyTorch")

from torch.utils.checkpoint import checkpoint

import annulus
import published
import slide_model
from annulus.torch import encode_slides, replace_longnet_attention

torch.set_num_threads(1)
LENGTHS = (1, 83, 16, 47, 200)


def model_of(**others):
    torch.manual_seed(1)
    model = slide_model.SlideModel(published.arguments(**others)).double()
    replace_longnet_attention(model)
    return model


def slides(dtype=torch.float64):
    tiles = [torch.from_numpy(capi.numbers(n, (1, n, 24), dtype="float64")[0]).to(dtype) for n in LENGTHS]
    coordinates = [torch.arange(2 * n).reshape(1, n, 2) * 7 % 20 * 256.0 for n in LENGTHS]
    return tiles, coordinates


def checkpointed(model, reentrant):
    for layer in model.encoder.layers:
        inner = layer.forward
        layer.forward = lambda *given, inner=inner: checkpoint(inner, *given, use_reentrant=reentrant)
    return model


class PackedTest(unittest.TestCase):
    def loss(self, outputs):
        """Is not symmetric in the slides, in layers or in numbers."""
        flat = [layer for output in outputs for layer in output]
        weights = [torch.from_numpy(capi.numbers(n, layer.shape, dtype="float64")[0]) for n, layer in enumerate(flat)]
        return sum((layer * weight.to(layer.dtype)).sum() for layer, weight in zip(flat, weights))

    def compare(self, model, tolerance=1e-10, **named):
        """Compares outputs and gradients with those of one slide at a time."""
        tiles, coordinates = slides(next(model.parameters()).dtype)
        results = []
        for packed in (True, False):
            for parameter in model.parameters():
                parameter.grad = None
            if packed:
                outputs = encode_slides(model, tiles, coordinates, **named)
            else:
                outputs = [model(*slide, **named) for slide in zip(tiles, coordinates)]
            self.loss(outputs).backward()
            gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
            results.append(([layer for output in outputs for layer in output], gradients))
        for one, other in zip(results[0][0], results[1][0]):
            torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)
        self.assert_gradients(*(gradients for _, gradients in results), tolerance)

    def assert_gradients(self, found, wanted, tolerance):
        self.assertEqual(len(found), len(wanted))
        scale = max(float(gradient.abs().max()) for gradient in wanted)
        for one, other in zip(found, wanted):
            torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance * scale)

    def test_exact(self):
        """Class tokens, positions, all layers and the mean of the rows are the model's own code."""
        model = model_of()
        for named in ({}, {"all_layer_embed": True}, {"pool": True}):
            with self.subTest(named):
                self.compare(model, **named)

    def test_the_encoder_runs_once_and_without_padding(self):
        model = model_of()
        seen = []
        model.encoder.layers[0].register_forward_hook(lambda module, given, output: seen.append(output.shape))
        encode_slides(model, *slides())
        self.assertEqual(seen, [(1, sum(LENGTHS) + len(LENGTHS), 64)])

    def test_checkpointing(self):
        """A checkpointed layer computes again in backward, where the call is over."""
        for reentrant in (False, True):
            with self.subTest(reentrant=reentrant):
                self.compare(checkpointed(model_of(), reentrant))

    def test_two_batches_before_backward(self):
        """All have the same number of rows, as has a call for one slide, whose backward comes last."""
        model = checkpointed(model_of(), True)
        plain = model_of()
        tiles, coordinates = slides()
        whole = torch.cat(tiles, 1), torch.cat(coordinates, 1)

        def loss(model, encode):
            rows = sum(LENGTHS) + len(LENGTHS) - 1  # and a class token
            alone = model(torch.cat([whole[0]] * 2, 1)[:, :rows], torch.cat([whole[1]] * 2, 1)[:, :rows])
            there = encode(model, tiles, coordinates)
            back = encode(model, tiles[::-1], coordinates[::-1])
            return self.loss([*there, alone, *back])

        loss(model, encode_slides).backward()
        loss(plain, lambda model, *slides: [model(*slide) for slide in zip(*slides)]).backward()
        self.assert_gradients([p.grad for p in model.parameters()], [p.grad for p in plain.parameters()], 1e-10)

    def test_frozen_parts(self):
        for parts in (("patch_embed",), ("encoder",), ("patch_embed", "cls_token")):
            with self.subTest(parts):
                model = checkpointed(model_of(), False)
                for name, parameter in model.named_parameters():
                    parameter.requires_grad_(not name.startswith(parts))
                self.compare(model)

    def test_no_state_is_left(self):
        """After backward for some leaves only, and after an error, the model works for one slide again."""
        model = checkpointed(model_of(), False)
        tiles, coordinates = slides()
        rows = sum(LENGTHS) + len(LENGTHS) - 1
        whole = torch.cat([*tiles, *tiles], 1)[:, :rows], torch.cat([*coordinates, *coordinates], 1)[:, :rows]
        wanted = model(*whole)[0]
        loss = self.loss(encode_slides(model, tiles, coordinates))
        torch.autograd.grad(loss, model.encoder.layers[1].fc2.weight)
        torch.testing.assert_close(model(*whole)[0], wanted)
        model.encoder.layers[1].fc2.weight.data = torch.zeros(3, 3, dtype=torch.float64)
        with self.assertRaises(RuntimeError):
            encode_slides(model, tiles, coordinates)
        for module in model.modules():
            self.assertNotIn("_packed", vars(module))
        self.assertNotIn("forward", vars(model.encoder))

    def test_without_gradients(self):
        model = model_of().requires_grad_(False)
        for output in encode_slides(model, *slides()):
            self.assertFalse(output[0].requires_grad)
        with torch.inference_mode():
            wanted = [model(*slide)[0] for slide in zip(*slides())]
            for output, alone in zip(encode_slides(model, *slides()), wanted):
                torch.testing.assert_close(output[0], alone)
        self.assertEqual(encode_slides(model, [], []), [])

    @unittest.skipUnless(hasattr(torch, "func"), "needs PyTorch 2.0, for layer_norm under autocast on CPUs")
    def test_autocast(self):
        model = model_of().float()
        tiles, coordinates = slides(torch.float32)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            packed = encode_slides(model, tiles, coordinates)
        for output, slide in zip(packed, zip(tiles, coordinates)):
            torch.testing.assert_close(output[0].float(), model(*slide)[0], rtol=0.1, atol=0.1)

    def test_one_layer_and_an_encoder_alone(self):
        self.compare(model_of(encoder_layers=1))
        encoder = model_of().encoder
        rows = [torch.from_numpy(capi.numbers(n, (1, n, 64), dtype="float64")[0]) for n in LENGTHS]
        for found, x in zip(encode_slides(encoder, [None] * len(rows), rows), rows):
            torch.testing.assert_close(found["encoder_out"], encoder(None, x)["encoder_out"])

    def test_refusals(self):
        model = model_of()
        tiles, coordinates = slides()

        def check(reason, model=model, inputs=(tiles, coordinates), kind=annulus.UnsupportedError):
            with self.assertRaisesRegex(kind, reason):
                encode_slides(model, *inputs)

        check("model is a list; it must be a torch.nn.Module", [], kind=TypeError)
        check("there are no inputs", inputs=(), kind=annulus.ArgumentError)
        check(r"inputs\[0\] is a Tensor; it must be a list", inputs=(tiles[0], coordinates), kind=TypeError)
        check(r"inputs\[0\] has 5 slides and inputs\[1\] 4", inputs=(tiles, coordinates[1:]), kind=annulus.ArgumentError)
        two = [torch.cat([tiles[0]] * 2)], [torch.cat([coordinates[0]] * 2)]
        check("slide 0 is a batch of 2 for the Encoder; it must be one slide", inputs=two, kind=annulus.ArgumentError)
        check("the SlideModel has no LongNetAttention; call", slide_model.SlideModel(published.arguments()))
        check("the Sequential has no LongNetAttention", torch.nn.Sequential())

        def changed(change):
            model = model_of()
            change(model)
            return model

        def mixed(model):
            model.encoder.layers[1].self_attn = slide_model.SlideModel(published.arguments()).encoder.layers[0].self_attn

        check("layers.1.self_attn of the Encoder is a DilatedAttention, which mixes all rows", changed(mixed))
        full = changed(lambda model: setattr(model.encoder, "full", torch.nn.MultiheadAttention(8, 1)))
        check("full of the Encoder is a MultiheadAttention, which mixes all rows", full)
        positions = changed(lambda model: setattr(model.encoder, "embed_positions", torch.nn.Embedding(9, 64)))
        check("the encoder, a Encoder, has embed_positions or relative_position", positions)
        group = changed(
            lambda model: setattr(model.encoder.layers[0].self_attn, "process_group", annulus.Comm.local(1)[0])
        )
        check("the attention has a process group", group)
        twice = changed(lambda model: setattr(model, "runs", 2))
        check("the SlideModel calls its encoder more than once", twice)
        check("the SlideModel does not call its encoder, a Encoder", changed(lambda model: setattr(model, "runs", 0)))
        grows = changed(lambda model: setattr(model.encoder, "adds_rows", True))
        check(r"attention gets rows of shape \[1, 353\] where encode_slides\(\) packed \[1, 352\]", grows)
        result = changed(lambda model: setattr(model.encoder, "pools", True))
        check("the Encoder returns no tensor .* with its 352 rows", result)
        odd = changed(lambda model: setattr(model, "extra", lambda x: {"extra": x.shape[1]}))
        check("argument 'extra' of the Encoder is neither a tensor", odd)
        odd = changed(lambda model: setattr(model, "extra", lambda x: {f"extra{x.shape[1]}": 1}))
        check("with other arguments for other slides", odd)
        starts = changed(
            lambda model: setattr(
                model.encoder.layers[0],
                "forward",
                lambda x, mask, layer=model.encoder.layers[0]: layer.self_attn(x, sequence_starts=[0, x.shape[1]])[0],
            )
        )
        check("sequence_starts or sequence_lengths is given within encode_slides", starts, kind=annulus.ArgumentError)


if __name__ == "__main__":
    tap.main()
