# SPDX-License-Identifier: Apache-2.0
"""Trains a small LongNet on several GPUs to predict the next byte of text files.

    torchrun --nproc-per-node 2 train_longnet.py *.md                                   # both GPUs share each text
    torchrun --nproc-per-node 4 train_longnet.py *.md --sequence-ranks 2 --wrap fsdp    # two texts at a time

The processes form a device mesh [data, sequence]. The processes of a row share each text: each has some of its
positions, and annulus sends keys and values between them. Each row has texts of its own. DDP or FSDP2 keeps the
parameters of all processes alike. Every step prints the loss and the norm of its gradient. Neither depends on the mesh
beyond rounding, except that on CPUs FSDP2 of PyTorch 2.7 multiplies the norm by the number of processes: over gloo it
adds gradients up instead of averaging them.

A process computes on the GPU of its local rank in bfloat16, or on the CPU in float32 if there is no GPU. Needs
PyTorch 2.2 or newer; FSDP2 needs 2.6.
"""
import argparse
import os
import pathlib

import torch
import torch.distributed as dist
from torch import nn

import annulus
from annulus.torch import MultiheadDilatedAttention

WIDTH, HEADS, LAYERS = 256, 8, 4


def main():
    options = parse()
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo")
    try:
        train(options, device)
    finally:
        dist.destroy_process_group()


def train(options, device):
    ranks = dist.get_world_size()
    sequence_ranks = options.sequence_ranks or ranks
    if ranks % sequence_ranks:
        raise SystemExit(f"--sequence-ranks is {sequence_ranks}; it must divide the {ranks} processes")
    rows = ranks // sequence_ranks
    if options.texts % rows:
        raise SystemExit(f"--texts is {options.texts}; it must be a multiple of the {rows} rows of processes")
    mesh = dist.device_mesh.init_device_mesh(device.type, (rows, sequence_ranks), mesh_dim_names=("data", "sequence"))

    torch.manual_seed(1)  # the same weights and texts in every process
    model = LongNet(mesh["sequence"].get_group()).to(device)
    shards = annulus.Shards.balanced(model.config, options.length, sequence_ranks)
    row, column = mesh.get_coordinate()
    positions = shards.cut(torch.arange(options.length, device=device), column, axis=0)
    data = torch.frombuffer(bytearray(b"".join(path.read_bytes() for path in options.files)), dtype=torch.uint8)
    if len(data) <= options.length:
        raise SystemExit(f"--length is {options.length}; it must be less than the {len(data)} bytes of the files")

    trained = wrap(model, options.wrap, device)
    optimizer = torch.optim.AdamW(trained.parameters(), lr=1e-3)
    for step in range(options.steps):
        starts = torch.randint(len(data) - options.length, (options.texts,))[row::rows]
        texts = torch.stack([data[start : start + options.length + 1] for start in starts]).long().to(device)
        tokens, targets = shards.cut(texts[:, :-1], column), shards.cut(texts[:, 1:], column)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            scores = trained(tokens, positions)
        # This process's part of the mean over all bytes of all texts.
        part = nn.functional.cross_entropy(scores.float().transpose(1, 2), targets, reduction="sum")
        part = part / (options.texts * options.length)
        optimizer.zero_grad()
        # DDP and FSDP average the gradients of the processes. The gradient of the mean is the sum of the parts' gradients.
        (part * ranks).backward()
        norm = nn.utils.clip_grad_norm_(trained.parameters(), 1)
        if options.wrap == "fsdp":
            norm = norm.full_tensor()
        optimizer.step()
        loss = part.detach().clone()
        dist.all_reduce(loss)
        if dist.get_rank() == 0:
            print(f"step {step:4}  loss {loss.item():.6f}  gradient {norm.item():.6f}", flush=True)


class LongNet(nn.Module):
    """A causal LongNet over bytes. tokens: int64 [B, n], this process's positions; positions: int64 [n].

    Returns scores of the next byte, [B, n, 256].
    """

    def __init__(self, process_group):
        super().__init__()
        self.embedding = nn.Embedding(256, WIDTH)
        self.layers = nn.ModuleList(Layer(process_group) for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 256)
        self.config = self.layers[0].attention.config

    def forward(self, tokens, positions):
        # Sinusoids of the position in the whole text.
        angles = positions[:, None] * torch.logspace(0, -4, WIDTH // 2, device=positions.device)
        x = self.embedding(tokens) + torch.cat([angles.sin(), angles.cos()], -1)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class Layer(nn.Module):
    """Attention and a perceptron, each of which adds to x, [B, n, WIDTH]."""

    def __init__(self, process_group):
        super().__init__()
        self.attention_norm, self.norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = MultiheadDilatedAttention(
            WIDTH, HEADS, [256, 1024, 4096], [1, 4, 16], is_causal=True, process_group=process_group
        )
        self.perceptron = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        y = self.attention_norm(x)
        x = x + self.attention(y, y, y)[0]
        return x + self.perceptron(self.norm(x))


def wrap(model, way, device):
    """Returns the model with parameters that all processes share: whole in each (ddp), or cut up among them (fsdp)."""
    if way == "ddp":
        return nn.parallel.DistributedDataParallel(model, device_ids=[device] if device.type == "cuda" else None)
    from torch.distributed.fsdp import fully_shard

    everyone = dist.device_mesh.init_device_mesh(device.type, (dist.get_world_size(),))
    for layer in model.layers:
        fully_shard(layer, mesh=everyone)
    fully_shard(model, mesh=everyone)
    return model


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=pathlib.Path, help="the text: all bytes of these files")
    parser.add_argument("--length", type=int, default=16411, help="bytes of a text (default: %(default)s)")
    parser.add_argument("--texts", type=int, default=4, help="texts of a step, of all processes (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=100, help="default: %(default)s")
    parser.add_argument("--sequence-ranks", type=int, help="processes that share a text (default: all)")
    parser.add_argument("--wrap", choices=["ddp", "fsdp"], default="ddp", help="default: %(default)s")
    return parser.parse_args()


if __name__ == "__main__":
    main()
