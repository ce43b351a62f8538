# SPDX-License-Identifier: Apache-2.0
"""Sequence parallelism over a torch.distributed process group gives the results of one rank: with a process for each of
two GPUs, and with two processes on CPUs.

torch_ranks_test.py runs itself as `torch_ranks_test.py DEVICE BACKEND DIRECTORY RANK`.
"""

import contextlib
import re
import sys
import unittest

import tap

try:
    import torch
    import torch.distributed as dist
except ImportError:
    tap.skip_all("needs PyTorch")

import annulus
from processes import run_ranks
from annulus.torch import MultiheadDilatedAttention, _ranks, attention_mass, dilated_attention, reconnect

BRANCHES = [(16, 1), annulus.Branch(0, 3, query="residue")]
RANKS = 2
LENGTH = 1000


def compare(device, group, rank, held, shards, dtype, tolerance):
    """Compares one rank's rows of the output and of the input's gradient, and the sum of all parameter gradients."""
    torch.manual_seed(1)
    options = {"layer_norm": True, "is_causal": True, "device": device, "dtype": dtype}
    arguments = (256, 8, [128, 1024], [1, 4])
    alone = MultiheadDilatedAttention(*arguments, **options)
    split = MultiheadDilatedAttention(*arguments, process_group=group, shards=shards, **options)
    split.load_state_dict(alone.state_dict())
    x, weights = (torch.randn(2, LENGTH, 256, device=device, dtype=dtype) for _ in range(2))

    whole = x.clone().requires_grad_()
    wanted = alone(whole)[0]
    (wanted * weights).sum().backward()
    part = held.cut(x, rank).clone().requires_grad_()
    found = split(part)[0]
    (found * held.cut(weights, rank)).sum().backward()

    def close(one, other, scale=None):
        if scale is None:
            scale = float(other.detach().abs().max()) if other.numel() else 0.0
        torch.testing.assert_close(one, other, rtol=0, atol=tolerance * scale)

    close(found, held.cut(wanted, rank))
    close(part.grad, held.cut(whole.grad, rank))
    # The gradient of the keys' bias is 0 up to rounding, so the tolerance is relative to the largest of all gradients.
    scale = max(float(parameter.grad.abs().max()) for parameter in alone.parameters())
    for one, other in zip(split.parameters(), alone.parameters()):
        total = one.grad.to(torch.promote_types(dtype, torch.float32))  # not every backend knows bfloat16
        dist.all_reduce(total, group=group)
        close(total.to(dtype), other.grad, scale)


@contextlib.contextmanager
def refusal(words, kind=annulus.ArgumentError):
    try:
        yield
    except kind as error:
        assert re.search(words, str(error)), error
    else:
        raise AssertionError(words)


def balance(device, group, rank):
    """With a word instead of shards, the config, the sequences and the rows of all ranks decide the shards."""
    torch.manual_seed(2)
    config = annulus.Config([(0, 1)], causal=True)
    for starts in (None, [0, 601, 1100, 1201, 1264, 1565, 1802, 2102, 2303]):
        whole = [torch.randn(1, 2303, 2, 16, device=device, requires_grad=True) for _ in range(3)]
        wanted = dilated_attention(*whole, config, sequence_starts=starts)
        wanted.square().sum().backward()
        held = annulus.Shards.balanced(config, 2303, RANKS, 2, sequence_starts=starts)
        assert len(held.lengths) > RANKS, held
        mine = [held.cut(x.detach(), rank).requires_grad_() for x in whole]
        found = dilated_attention(*mine, config, process_group=group, shards="balanced", sequence_starts=starts)
        found.square().sum().backward()
        for one, other in zip([found] + [x.grad for x in mine], [wanted] + [x.grad for x in whole]):
            atol = 1e-4 * float(other.detach().abs().max())
            torch.testing.assert_close(one, held.cut(other, rank), rtol=0, atol=atol)
    part = [x[:, : 40 + rank].detach() for x in mine]
    with refusal("rank 0 has 40 of 81 rows; with shards='balanced' it must have the 41"):
        dilated_attention(*part, config, process_group=group, shards="balanced")


def masses(device, group, rank):
    """Each rank gets the mass of its own keys from all ranks' queries, with and without lse, in shards of any kind."""
    torch.manual_seed(3)
    starts = [2, 40, 97]
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 1e-2)):
        q, k, v = (torch.randn(2, 101, heads, 16, device=device, dtype=dtype) for heads in (4, 2, 2))
        for options in ({"causal": True}, {"padding": "zero_keys"}, {"sequence_starts": starts}):
            wanted = attention_mass(q, k, BRANCHES, **options)
            _, lse = dilated_attention(q, k, v, BRANCHES, return_lse=True, **options)
            for shards in (annulus.Shards([30, 71]), annulus.Shards([0, 101]), annulus.Shards.zigzag(101, RANKS)):
                own = [shards.cut(rows, rank) for rows in (q, k)]
                given = shards if shards == annulus.Shards.zigzag(101, RANKS) else None
                for own_lse in (None, shards.cut(lse, rank, axis=-1)):
                    found = attention_mass(*own, BRANCHES, lse=own_lse, process_group=group, shards=given, **options)
                    assert found.dtype == torch.float32 and not found.requires_grad
                    torch.testing.assert_close(found, shards.cut(wanted, rank, axis=-1), rtol=tolerance, atol=tolerance)
    whole = [x.transpose(1, 2) for x in (q, k)]
    own = [annulus.Shards([50, 51]).cut(x, rank, axis=-2) for x in whole]
    torch.testing.assert_close(
        attention_mass(*own, BRANCHES, layout="bhnd", process_group=group),
        annulus.Shards([50, 51]).cut(attention_mass(*whole, BRANCHES, layout="bhnd"), rank, axis=-1),
        rtol=1e-2,
        atol=1e-2,
    )


def refuse(group, rank):
    """All ranks refuse an error of one rank, and the group stays usable."""
    q = torch.zeros(1, 20, 2, 8)
    for words, arguments, options in (
        ("rank 1 has 20 rows of q and \\[19, 20\\] of k and v", (q, q[:, rank:], q), {}),
        ("rank 0 has .* where rank 1 has", (q, q, q.to(torch.float64) if rank else q), {}),
        ("rank 0 has 20 rows; its shards have 10", (q, q, q), {"shards": [10, 30]}),
        ("shards has 3 lengths; there are 2 ranks", (q, q, q), {"shards": [10, 20, 10]}),
        ("rank 0 has None where rank 1 has .*annulus.Shards", (q, q, q), {"shards": [20, 20] if rank else None}),
    ):
        with refusal(words):
            dilated_attention(*arguments, [(0, 1)], process_group=group, **options)
    lse = torch.zeros(1, 2, 20 - rank)
    for words, arguments, options in (
        ("rank 1 has 20 rows of q and \\[19\\] of k", (q, q[:, rank:]), {}),
        ("rank 1 has 20 rows of q and \\[20, 19\\] of k and lse", (q, q), {"lse": lse}),
        ("rank 0 has .* where rank 1 has", (q, q), {"lse": None if rank else lse}),
        ("rank 0 has 20 rows; its shards have 10", (q, q), {"shards": [10, 30]}),
    ):
        with refusal(words):
            attention_mass(*arguments, [(0, 1)], process_group=group, **options)
    with refusal("query_start with a process group", annulus.UnsupportedError):
        attention_mass(q, q, [(0, 1)], process_group=group, query_start=0)


def work(device, backend, directory, rank):
    if device == "cuda":
        torch.cuda.set_device(rank)
    dist.init_process_group(backend, init_method=f"file://{directory}/meeting", rank=rank, world_size=RANKS)
    group, held = dist.group.WORLD, annulus.Shards([300, 700])
    for shards in (None, [300, 700], "gather"):
        compare(device, group, rank, held, shards, torch.float32, 1e-4)
    balance(device, group, rank)
    masses(device, group, rank)
    others = dist.new_group(list(range(RANKS)))
    compare(device, others, rank, annulus.Shards([500, 500]), None, torch.bfloat16, 3e-2)
    if device == "cuda":
        reconnect(others, only_nccl=True)
        compare(device, others, rank, held, "gather", torch.float32, 1e-4)
    if device == "cpu":
        refuse(group, rank)
        zigzag, one = annulus.Shards.zigzag(LENGTH, RANKS), annulus.Shards([0, LENGTH])
        compare(device, group, rank, zigzag, zigzag, torch.float64, 1e-10)
        compare(device, group, rank, one, None, torch.float64, 1e-10)
    dist.destroy_process_group()
    print("done")


GPUS = min(torch.cuda.device_count(), annulus.device_count("cuda"))


class TorchRanksTest(unittest.TestCase):
    @unittest.skipUnless(GPUS >= RANKS, f"needs {RANKS} GPUs")
    def test_nccl_group(self):
        run_ranks(self, __file__, RANKS, "cuda", "nccl")

    @unittest.skipUnless(GPUS >= RANKS, f"needs {RANKS} GPUs")
    def test_gloo_group(self):
        """The group only sends the id; the rows go over NCCL."""
        run_ranks(self, __file__, RANKS, "cuda", "gloo")

    @unittest.skipUnless(dist.is_available() and dist.is_gloo_available(), "needs torch.distributed with gloo")
    def test_gloo_group_on_cpus(self):
        run_ranks(self, __file__, RANKS, "cpu", "gloo")

    def test_communicator_remembers_the_last_shards(self):
        """Sequences that change at each step give other shards each time, and contexts of their own."""
        (comm,) = annulus.Comm.local(1)

        def number(length):
            return _ranks.number_of(comm, [length], torch.zeros(1, 1, 1, 8), "", (None, None))

        first, second = number(1), number(2)
        self.assertEqual(number(1), first)
        for length in range(3, _ranks._MAX_SHARDS + 2):
            number(length)
        self.assertEqual(number(1), first)
        self.assertNotEqual(number(2), second)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        work(*sys.argv[1:4], int(sys.argv[4]))
    else:
        tap.main()
