# SPDX-License-Identifier: Apache-2.0
"""Measures packed documents on two GPUs: the rate of a GPU over that of one GPU that computes all of them.

131,072 tokens, 16 heads of 128, bfloat16, under a causal mask, in 3, 14 and 60 documents. Dense attention within each
document, and LongNet's branches. Ranks are threads, with even, zigzag and balanced shards.

In each round all contenders run once, in a random order: two calls, then seven timed calls in a row, by the host's
clock from a barrier until the last GPU is done. The table shows medians. PYTHONPATH names the built package
(build/.../bindings/python). It is not part of the test suite. Exit status: 0; 1 if results disagree; 77 without PyTorch
or two GPUs.
"""

import argparse
import random
import statistics
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

try:
    import torch
except ImportError:
    torch = None

TOKENS, HEADS, DIM = 131072, 16, 128
PATTERNS = {"dense": [(0, 1)], "LongNet": [(2048 * 4**i, 4**i) for i in range(5)]}
ROUNDS, CALLS = 5, 7


def lognormal_lengths(median, seed):
    """Returns lengths of documents: many short ones and few long ones. The last one is cut."""
    numbers, left, lengths = random.Random(seed), TOKENS, []
    while left > 0:
        length = max(16, min(left, int(median * numbers.lognormvariate(0, 1))))
        lengths.append(left if left - length < 16 else length)
        left -= lengths[-1]
    return lengths


DOCUMENTS = ([60001, 40000, 31071], lognormal_lengths(7000, 14), lognormal_lengths(1500, 14))


class Rank:
    """One rank's rows on a GPU, and its context."""

    def __init__(self, arrays, config, starts, device, rank=0, comm=None, shards=None):
        import annulus

        self.device, self.starts = torch.device("cuda", device), starts
        cut = (lambda x: shards.cut(x, rank).contiguous()) if shards else (lambda x: x)
        self.q, self.k, self.v, self.d_out = (cut(x).to(self.device) for x in arrays)
        self.context = annulus.Context(config, f"cuda:{device}", comm=comm, shards=shards)
        self.out, self.lse = self.context.forward(self.q, self.k, self.v, sequence_starts=starts)

    def forward(self):
        self.context.forward(self.q, self.k, self.v, out=self.out, lse=self.lse, sequence_starts=self.starts)

    def backward(self):
        return self.context.backward(
            self.q, self.k, self.v, self.out, self.lse, self.d_out, sequence_starts=self.starts)


def on_threads(works):
    """Runs each function on a thread of its own, at the same time. Returns their results."""
    with ThreadPoolExecutor(len(works)) as pool:
        return list(pool.map(lambda work: work(), works))


def seconds(ranks, name):
    """Returns how long a call takes."""
    barrier = threading.Barrier(len(ranks))

    def work(rank):
        with torch.cuda.device(rank.device):
            for calls in (2, CALLS):
                torch.cuda.synchronize()
                barrier.wait()
                start = time.perf_counter()
                for _ in range(calls):
                    getattr(rank, name)()
                torch.cuda.synchronize()
                barrier.wait()
                taken = time.perf_counter() - start
            return taken / CALLS

    return max(on_threads([lambda rank=rank: work(rank) for rank in ranks]))


def ranks_of(shards, arrays, config, starts):
    import annulus

    comms = annulus.Comm.local(2)
    return on_threads(
        [lambda i=i: Rank(arrays, config, starts, i, i, comms[i], shards) for i in range(2)])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--exchange", choices=("auto", "ring", "gather"), default="auto")
    arguments = parser.parse_args()
    if torch is None or torch.cuda.device_count() < 2:
        print("Skipped: PyTorch with two GPUs is needed")
        return 77
    import annulus

    torch.manual_seed(0)
    random.seed(0)
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, CUDA {torch.version.cuda}")
    print(f"{'pattern':10}{'documents':>10}  {'shards':10}{'count':>6}{'one GPU, ms':>16}{'two, ms':>16}{'efficiency':>14}")
    arrays = [torch.randn(1, TOKENS, HEADS, DIM, dtype=torch.bfloat16, device="cuda") for _ in range(4)]
    for pattern, branches in PATTERNS.items():
        config = annulus.Config(branches, causal=True, exchange=arguments.exchange)
        for lengths in DOCUMENTS:
            starts = [0]
            for length in lengths:
                starts.append(starts[-1] + length)
            kinds = {
                "even": annulus.Shards.even(TOKENS, 2),
                "zigzag": annulus.Shards.zigzag(TOKENS, 2),
                "balanced": annulus.Shards.balanced(config, TOKENS, 2, HEADS, sequence_starts=starts),
            }
            contenders = {"one": [Rank(arrays, config, starts, 0)]}
            contenders.update((name, ranks_of(shards, arrays, config, starts)) for name, shards in kinds.items())
            wanted = contenders["one"][0].out
            for name, shards in kinds.items():
                found = shards.join([rank.out.to(wanted.device) for rank in contenders[name]])
                error = ((found.float() - wanted.float()).norm() / wanted.float().norm()).item()
                if not error <= 2**-8:
                    sys.exit(f"{pattern}, {len(lengths)} documents, {name}: results differ by {error:.2g} of the norm")
            times = {(name, work): [] for name in contenders for work in ("forward", "backward")}
            for _ in range(ROUNDS):
                for name, work in random.sample(list(times), len(times)):
                    times[name, work].append(1e3 * seconds(contenders[name], work))
            found = {key: statistics.median(values) for key, values in times.items()}
            one = found["one", "forward"], found["one", "backward"]
            for name, shards in kinds.items():
                two = found[name, "forward"], found[name, "backward"]
                print(f"{pattern:10}{len(lengths):>10}  {name:10}{len(shards.lengths):>6}"
                      f"{one[0]:>8.2f}/{one[1]:<7.2f}{two[0]:>8.2f}/{two[1]:<7.2f}"
                      f"{one[0] / two[0] / 2:>7.2f}/{one[1] / two[1] / 2:.2f}", flush=True)
            del contenders
            torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main())
