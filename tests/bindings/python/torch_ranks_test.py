# SPDX-License-Identifier: Apache-2.0
"""Sequence parallelism over a torch.distributed process group: a process for each of two GPUs, against one GPU.

torch_ranks_test.py runs itself as `torch_ranks_test.py BACKEND DIRECTORY RANK`.
"""

import subprocess
import sys
import tempfile
import unittest

import tap

try:
    import torch
    import torch.distributed as dist
except ImportError:
    tap.skip_all("needs PyTorch")

import annulus
from annulus.torch import MultiheadDilatedAttention

RANKS = 2
LENGTH = 1000


def compare(group, rank, lengths, shards, dtype, tolerance):
    """One rank's rows of the output and of the input's gradient, and the sum of all ranks' parameter gradients."""
    torch.manual_seed(1)
    options = {"layer_norm": True, "is_causal": True, "device": "cuda", "dtype": dtype}
    arguments = (256, 8, [128, 1024], [1, 4])
    alone = MultiheadDilatedAttention(*arguments, **options)
    split = MultiheadDilatedAttention(*arguments, process_group=group, shards=shards, **options)
    split.load_state_dict(alone.state_dict())
    x, weights = (torch.randn(2, LENGTH, 256, device="cuda", dtype=dtype) for _ in range(2))
    mine = slice(sum(lengths[:rank]), sum(lengths[: rank + 1]))

    whole = x.clone().requires_grad_()
    wanted = alone(whole)[0]
    (wanted * weights).sum().backward()
    part = x[:, mine].clone().requires_grad_()
    found = split(part)[0]
    (found * weights[:, mine]).sum().backward()

    def close(one, other, scale=None):
        scale = float(other.detach().abs().max()) if scale is None else scale
        torch.testing.assert_close(one, other, rtol=0, atol=tolerance * scale)

    close(found, wanted[:, mine])
    close(part.grad, whole.grad[:, mine])
    # The gradient of the keys' bias is 0 but for rounding: the largest of all gradients is the measure.
    scale = max(float(parameter.grad.abs().max()) for parameter in alone.parameters())
    for one, other in zip(split.parameters(), alone.parameters()):
        dist.all_reduce(one.grad, group=group)
        close(one.grad, other.grad, scale)


def work(backend, directory, rank):
    torch.cuda.set_device(rank)
    dist.init_process_group(backend, init_method=f"file://{directory}/meeting", rank=rank, world_size=RANKS)
    for shards in (None, [300, 700], "gather"):
        compare(dist.group.WORLD, rank, [300, 700], shards, torch.float32, 1e-4)
    compare(dist.new_group(list(range(RANKS))), rank, [500, 500], None, torch.bfloat16, 3e-2)
    dist.destroy_process_group()
    print("done")


class TorchRanksTest(unittest.TestCase):
    def test_nccl_group(self):
        self.run_ranks("nccl")

    def test_gloo_group(self):
        """The group only carries the id; the rows go over NCCL all the same."""
        self.run_ranks("gloo")

    def run_ranks(self, backend):
        with tempfile.TemporaryDirectory() as directory:
            ranks = [
                subprocess.Popen(
                    [sys.executable, __file__, backend, directory, str(rank)],
                    text=True,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                )
                for rank in range(RANKS)
            ]
            try:
                outcomes = [rank.communicate(timeout=240) for rank in ranks]
            finally:
                for rank in ranks:
                    rank.kill()
            for (out, err), rank in zip(outcomes, ranks):
                self.assertEqual((rank.returncode, out), (0, "done\n"), err[-4000:])


if __name__ == "__main__":
    if len(sys.argv) > 1:
        work(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    elif min(torch.cuda.device_count(), annulus.device_count("cuda")) < RANKS:
        tap.skip_all(f"needs {RANKS} GPUs")
    else:
        tap.main()
