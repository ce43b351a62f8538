# SPDX-License-Identifier: Apache-2.0
"""replace_longnet_attention(process_group=...): two processes on CPUs that share each slide train as one does, in float64.

torch_shared_test.py runs itself as `torch_shared_test.py DIRECTORY RANK`.
"""

import copy
import sys
import unittest

import capi
import tap

try:
    import torch
    import torch.distributed as dist
except ImportError:
    tap.skip_all("needs PyTorch")

from torch.utils.checkpoint import checkpoint

import annulus
import published
import slide_model
from annulus.torch import encode_slides, replace_longnet_attention
from processes import run_ranks

RANKS = 2


def slide(seed, length):
    tiles = torch.from_numpy(capi.numbers(seed, (1, length, 24), dtype="float64")[0])
    return tiles, torch.arange(2 * length).reshape(1, length, 2) * 7 % 20 * 256.0


def model_of(process_group=None, **others):
    torch.manual_seed(1)
    model = slide_model.SlideModel(published.arguments(**others)).double()
    replace_longnet_attention(model, process_group=process_group)
    return model


def train(model, lengths=(83, 2, 200, 1, 47), **named):
    """Returns the losses, the gradients of the first step and the parameters of an optimizer after a few steps."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-3)
    losses, first = [], None
    for step, length in enumerate(lengths):
        optimizer.zero_grad()
        outputs = model(*slide(step, length), **named)
        loss = sum((n + 1) * (out * torch.linspace(-1, 1, 64).double()).sum().sin() for n, out in enumerate(outputs))
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
        first = first or [p.grad.clone() for p in model.parameters() if p.grad is not None]
    return losses, first, [p.detach().clone() for p in model.parameters()]


def compare(change=lambda model: model, **named):
    """Compares training on both ranks with training on one."""
    found, wanted = (train(change(model_of(group)), **named) for group in (dist.group.WORLD, None))
    torch.testing.assert_close(torch.tensor(found[0]), torch.tensor(wanted[0]), rtol=1e-8, atol=1e-8)
    scale = max(float(gradient.abs().max()) for gradient in wanted[1])
    assert len(found[1]) == len(wanted[1])
    for one, other in zip(found[1], wanted[1]):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10 * scale)
    check_same_on_all_ranks(found[2])


def check_same_on_all_ranks(tensors):
    for tensor in tensors:
        theirs = [torch.empty_like(tensor) for _ in range(RANKS)]
        dist.all_gather(theirs, tensor)
        assert torch.equal(*theirs)


def checkpointed(model):
    for number, layer in enumerate(model.encoder.layers):
        inner = layer.forward
        layer.forward = lambda *given, inner=inner, number=number: checkpoint(inner, *given, use_reentrant=number == 0)
    return model


def frozen_before(model):
    model.patch_embed.requires_grad_(False)
    model.cls_token.requires_grad_(False)
    return model


class Adapted(torch.nn.Module):
    """A projection with an adapter of rank 2, as LoRA makes it after the replacement."""

    def __init__(self, projection):
        super().__init__()
        self.projection = projection.requires_grad_(False)
        self.down = torch.nn.Parameter(torch.linspace(-1, 1, 2 * 64).reshape(2, 64).double())
        self.up = torch.nn.Parameter(torch.linspace(1, 2, 64 * 2).reshape(64, 2).double())

    def forward(self, x):
        return self.projection(x) + x @ self.down.T @ self.up.T


def adapted(model):
    model.requires_grad_(False)
    for layer in model.encoder.layers:
        layer.self_attn.q_proj = Adapted(layer.self_attn.q_proj)
    return model


def check_dropout():
    """The ranks' rows get different numbers, and everything after the encoder the same ones."""
    model = model_of(dist.group.WORLD).train()
    model.encoder.layers[0].fc1 = torch.nn.Sequential(model.encoder.layers[0].fc1, torch.nn.Dropout(0.5))
    seen = []
    model.encoder.layers[0].fc1[1].register_forward_hook(lambda module, given, output: seen.append(output == 0))
    torch.manual_seed(5)
    check_same_on_all_ranks([torch.cat(model(*slide(3, 63))), torch.cat(model(*slide(3, 63))), torch.rand(8)])
    zeros = seen[0].to(torch.uint8)
    theirs = [torch.empty_like(zeros) for _ in range(RANKS)]
    dist.all_gather(theirs, zeros)
    assert not torch.equal(*theirs) and not torch.equal(*seen)


def check_refused(kind, reason, work):
    try:
        work()
    except kind as error:
        assert reason in str(error), error
    else:
        raise AssertionError(f"not refused: {reason}")


def check_refusals(rank):
    model = model_of(dist.group.WORLD)
    check_refused(
        annulus.ArgumentError,
        "rank 0 calls the encoder with rows of shape [1, 9, 64] and rank 1 with [1, 10, 64]",
        lambda: model(*slide(1, 8 + rank)),
    )
    check_refused(annulus.UnsupportedError, "has a process group", lambda: encode_slides(model, *zip(slide(1, 8))))
    torch.testing.assert_close(model(*slide(1, 8))[0], model_of()(*slide(1, 8))[0])

    torch.manual_seed(1)
    model = slide_model.SlideModel(published.arguments()).double()
    modules = dict(model.named_modules())
    model.encoder.layers[1].self_attn.forward = print
    words = "attention is left that needs all rows of a slide: encoder.layers.1.self_attn: DilatedAttention left"
    share = {"process_group": dist.group.WORLD}
    check_refused(annulus.UnsupportedError, words, lambda: replace_longnet_attention(model, **share))
    del model.encoder.layers[1].self_attn.forward
    model.encoder.full = torch.nn.MultiheadAttention(8, 1)
    check_refused(annulus.UnsupportedError, "which mixes all rows", lambda: replace_longnet_attention(model, **share))
    del model.encoder.full
    assert dict(model.named_modules()) == modules and "forward" not in vars(model.encoder)
    part = copy.deepcopy(model.encoder.layers[0])
    replace_longnet_attention(part)
    model.encoder.layers[0] = part
    words = "the encoder has a LongNetAttention without it"
    check_refused(annulus.UnsupportedError, words, lambda: replace_longnet_attention(model, **share))
    check_refused(
        annulus.ArgumentError,
        "process_group is 3; it must be None or a group of torch.distributed",
        lambda: replace_longnet_attention(model, process_group=3),
    )


def check_undo():
    torch.manual_seed(1)
    model = slide_model.SlideModel(published.arguments()).double()
    before = dict(model.named_modules())
    assert replace_longnet_attention(model, process_group=dist.group.WORLD, dry_run=True).replaced
    assert "forward" not in vars(model.encoder)
    result = replace_longnet_attention(model, process_group=dist.group.WORLD)
    model(*slide(1, 8))[0].sum().backward()
    result.undo()
    assert dict(model.named_modules()) == before and "forward" not in vars(model.encoder)
    gradients = []
    for one in (model, model_of()):
        one.zero_grad()
        one(*slide(1, 8))[0].sum().backward()
        gradients.append(one.encoder.layers[0].fc1.weight.grad)
    torch.testing.assert_close(*gradients)


def work(directory, rank):
    dist.init_process_group("gloo", init_method=f"file://{directory}/meeting", rank=rank, world_size=RANKS)
    torch.set_num_threads(1)
    for named in ({}, {"all_layer_embed": True}, {"pool": True}):
        compare(**named)
    for change in (checkpointed, frozen_before, adapted):
        compare(change)
    check_dropout()
    check_refusals(rank)
    check_undo()
    dist.destroy_process_group()
    print("done")


@unittest.skipUnless(dist.is_available() and dist.is_gloo_available(), "needs torch.distributed with gloo")
class SharedTest(unittest.TestCase):
    def test_two_ranks(self):
        run_ranks(self, __file__, RANKS)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        work(sys.argv[1], int(sys.argv[2]))
    else:
        tap.main()
