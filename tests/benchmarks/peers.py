# SPDX-License-Identifier: Apache-2.0
"""annulus' engine gemm beside what PyTorch offers for the same attention, on one GPU, in one run.

The peers, each computing O, LSE and the true gradients of the same branches:
  cuDNN  strided views of a branch, segments folded into the batch, cuDNN's attention on them, outputs merged by LSE
  plain  the same views, with matrix product, softmax and matrix product as separate calls
  GEMM   torch.matmul of 8192 x 8192 matrices, the yardstick
Everything is bfloat16, batch 1, block phases. The contenders take turns; times are medians of CUDA events. FLOPs are
4 D forward and 10 D backward for each (query, key) pair. Memory is what a call takes from PyTorch's allocator, which
serves annulus too, above its inputs and outputs.

It is no part of the test suite. Exit status: 0; 1 when results disagree; 77 without PyTorch or a GPU.
"""

import argparse
import ctypes
import functools
import math
import statistics
import sys

try:
    import torch
except ImportError:
    torch = None

LONGNET = [(2048 << i, 1 << i) for i in range(6)]
# Name, branches (segment length, dilation), tokens, heads, head dimension, causal.
CASES = [(f"{w}:{r}", [(w, r)], tokens, 16, dim, causal)
         for dim in (64, 128) for causal in (False, True) for w, r, tokens in ((2048, 1, 65536), (8192, 4, 262144))]
CASES += [("LongNet", LONGNET, 262144, 16, 128, causal) for causal in (False, True)]

# Of annulus' enumerations.
DEVICE_CUDA, ENGINE_GEMM, FLOAT32, BFLOAT16 = 2, 3, 2, 3


class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("dtype", ctypes.c_int), ("rank", ctypes.c_int32),
                ("shape", ctypes.c_int64 * 4), ("stride", ctypes.c_int64 * 4)]

    def __init__(self, tensor):
        dtype = {torch.bfloat16: BFLOAT16, torch.float32: FLOAT32}[tensor.dtype]
        super().__init__(tensor.data_ptr(), dtype, tensor.ndim, tuple(tensor.shape), tuple(tensor.stride()))


ALLOCATE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p)
RELEASE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)


class Allocator(ctypes.Structure):
    """PyTorch's caching allocator."""
    _fields_ = [("size", ctypes.c_size_t), ("allocate", ALLOCATE), ("release", RELEASE), ("user", ctypes.c_void_p)]

    def __init__(self):
        super().__init__(ctypes.sizeof(Allocator), ALLOCATE(self.give), RELEASE(self.take), None)

    @staticmethod
    def give(user, size, alignment, stream):
        return torch.cuda.caching_allocator_alloc(size, stream=stream or 0)  # an exception gives NULL

    @staticmethod
    def take(user, memory, size, stream):
        torch.cuda.caching_allocator_delete(memory)


class Annulus:
    """The library on the current device and stream, with the engine gemm."""

    def __init__(self, library, branches, causal):
        self.library = library
        library.annulus_last_error.restype = ctypes.c_char_p
        config, self.context, self.allocator = ctypes.c_void_p(), ctypes.c_void_p(), Allocator()
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        self.call("config_create", ctypes.byref(config))
        for length, dilation in branches:
            self.call("config_add_branch", config, ctypes.c_int64(length), ctypes.c_int64(dilation), None)
        self.call("config_set_causal", config, int(causal))
        self.call("config_set_engine", config, ENGINE_GEMM)
        self.call("context_create", ctypes.byref(self.context), DEVICE_CUDA, torch.cuda.current_device())
        self.call("context_set_config", self.context, config)
        self.call("context_set_stream", self.context, stream)
        self.call("context_set_allocator", self.context, ctypes.byref(self.allocator))
        library.annulus_config_destroy(config)

    def close(self):
        self.library.annulus_context_destroy(self.context)

    def call(self, name, *arguments):
        if getattr(self.library, "annulus_" + name)(*arguments) != 0:
            sys.exit(f"annulus_{name}: {self.library.annulus_last_error().decode()}")

    def run(self, name, *tensors):
        self.call(name, self.context, *(t if t is None else ctypes.byref(Tensor(t)) for t in tensors), None)

    def forward(self, q, k, v):
        out = torch.empty_like(q)
        lse = torch.empty(q.shape[0], q.shape[2], q.shape[1], device=q.device)
        self.run("forward", q, k, v, out, lse)
        return out, lse

    def backward(self, q, k, v, out, lse, d_out):
        gradients = [torch.empty_like(t) for t in (q, k, v)]
        self.run("backward", q, k, v, out, lse, d_out, None, *gradients)
        return gradients


class CudnnAttention:
    """cuDNN on [batch, heads, length, D]: O and LSE, and the gradients where O and LSE are those of more keys."""

    def __init__(self, causal):
        self.causal = causal
        self.lse_rank = None

    def forward(self, q, k, v):
        out, lse, *_ = torch.ops.aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, self.causal, False)
        self.lse_rank = lse.ndim
        return out, lse.reshape(q.shape[:3])

    def backward(self, q, k, v, out, lse, d_out):
        lse = lse.contiguous()
        if self.lse_rank == 4:  # some versions of PyTorch
            lse = lse.unsqueeze(-1)
        no_seed = torch.empty(0, dtype=torch.int64, device=q.device)
        return torch.ops.aten._scaled_dot_product_cudnn_attention_backward(
            d_out, q, k, v, out, lse, no_seed, no_seed, None, None, None, q.shape[2], k.shape[2], 0.0, self.causal)


class PlainAttention:
    """The same in separate calls, in chunks of the batch that keep each matrix of scores within a gibibyte."""

    SCORES = 1 << 29

    def __init__(self, causal):
        self.causal = causal

    def chunks(self, q):
        step = max(1, self.SCORES // (q.shape[1] * q.shape[2] ** 2))
        return (slice(i, i + step) for i in range(0, q.shape[0], step))

    def scores(self, q, k):
        s = torch.matmul(q * q.shape[-1] ** -0.5, k.transpose(2, 3))
        if self.causal:
            s.masked_fill_(torch.ones(s.shape[2:], dtype=torch.bool, device=s.device).triu_(1), -math.inf)
        return s

    def forward(self, q, k, v):
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        lse = torch.empty(q.shape[:3], device=q.device)
        for i in self.chunks(q):
            s = self.scores(q[i], k[i])
            p = torch.softmax(s, -1)
            lse[i] = s.amax(-1).float() - p.amax(-1).float().log()
            out[i] = torch.matmul(p, v[i])
        return out, lse

    def backward(self, q, k, v, out, lse, d_out):
        gradients = [torch.empty(q.shape, dtype=q.dtype, device=q.device) for _ in range(3)]
        scale = q.shape[-1] ** -0.5
        for i in self.chunks(q):
            p = self.scores(q[i], k[i]).sub_(lse[i].unsqueeze(-1)).exp_()
            delta = (out[i].float() * d_out[i]).sum(-1, keepdim=True)
            d_s = torch.matmul(d_out[i], v[i].transpose(2, 3)).sub_(delta).mul_(p)
            gradients[0][i] = torch.matmul(d_s, k[i]).mul_(scale)
            gradients[1][i] = torch.matmul(d_s.transpose(2, 3), q[i]).mul_(scale)
            gradients[2][i] = torch.matmul(p.transpose(2, 3), d_out[i])
        return gradients


class Part:
    """The heads of one phase of a branch: views of [1, N, H, D] and [1, H, N] as batches of segments."""

    def __init__(self, length, dilation, phase, heads):
        self.length, self.places, self.heads = length, slice(phase, None, dilation), heads

    def rows(self, x):
        return x.view(-1, self.length, *x.shape[2:])[:, self.places, self.heads].transpose(1, 2)

    def statistics(self, x):
        return x.view(x.shape[1], -1, self.length)[self.heads, :, self.places].transpose(0, 1)


class Composition:
    """Dilated attention out of an attention over dense segments. Segments divide N, dilations divide segments."""

    def __init__(self, attention, branches):
        self.attention, self.branches = attention, branches
        self.dense = len(branches) == 1 and branches[0][1] == 1

    def parts(self, heads):
        for length, dilation in self.branches:
            each = -(-heads // dilation)  # of a phase
            for phase, first in enumerate(range(0, heads, each)):
                yield Part(length, dilation, phase, slice(first, first + each))

    def sum_dtype(self, x):
        return x.dtype if len(self.branches) == 1 else torch.float32

    def forward(self, q, k, v):
        parts = list(self.parts(q.shape[2]))
        if self.dense:
            out, lse = self.attention.forward(*(parts[0].rows(x) for x in (q, k, v)))
            return out.transpose(1, 2).reshape(q.shape), lse.transpose(0, 1).reshape(1, q.shape[2], -1)
        out = torch.zeros_like(q, dtype=self.sum_dtype(q))
        lse = torch.full((1, q.shape[2], q.shape[1]), -math.inf, device=q.device)
        for part in parts:
            o, l = self.attention.forward(*(part.rows(x) for x in (q, k, v)))
            old_out, old_lse = part.rows(out), part.statistics(lse)
            if len(self.branches) == 1:
                old_out.copy_(o)
                old_lse.copy_(l)
            else:
                new = torch.logaddexp(old_lse, l)
                old_out.mul_((old_lse - new).exp_().unsqueeze(-1)).addcmul_(o, (l - new).exp_().unsqueeze(-1))
                old_lse.copy_(new)
        return out.to(q.dtype), lse

    def backward(self, q, k, v, out, lse, d_out):
        def gradients(part):
            return self.attention.backward(*(part.rows(x) for x in (q, k, v, out)), part.statistics(lse),
                                           part.rows(d_out))

        parts = list(self.parts(q.shape[2]))
        if self.dense:
            return [g.transpose(1, 2).reshape(q.shape) for g in gradients(parts[0])]
        sums = [torch.zeros_like(x, dtype=self.sum_dtype(x)) for x in (q, k, v)]
        for part in parts:
            for total, gradient in zip(sums, gradients(part)):
                part.rows(total).add_(gradient)
        return [total.to(q.dtype) for total in sums]


def extra_bytes(work):
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    results = work()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before - sum(x.numel() * x.element_size() for x in results)


def median_seconds(works, repeats, warm_up=3):
    """Every piece of work in its turn, round after round."""
    seconds = {name: [] for name in works}
    for i in range(warm_up + repeats):
        for name, work in works.items():
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            work()
            stop.record()
            stop.synchronize()
            if i >= warm_up:
                seconds[name].append(start.elapsed_time(stop) / 1e3)
    return {name: statistics.median(values) for name, values in seconds.items()}


def disagreement(found, wanted):
    """The largest relative error of a tensor."""
    def finite(x, nan):
        return x.float().nan_to_num(nan=nan, neginf=0)  # an LSE without keys is -infinity

    return max((torch.linalg.vector_norm(finite(f, math.inf) - finite(w, 0)) /
                torch.linalg.vector_norm(finite(w, 0))).item() for f, w in zip(found, wanted))


def pairs(branches, tokens, heads, causal):
    """(query, key) pairs: segments divide N and dilations divide segments."""
    lengths = [(w, w // r) for w, r in branches]
    return heads * sum(tokens // w * (n * (n + 1) // 2 if causal else n * n) for w, n in lengths)


def check_peer(name, peer, inputs, results, gradients, tolerance):
    """Whether the peer can compute the case; ends the program where it computes something else."""
    *qkv, d_out = inputs
    try:
        forward = disagreement(peer.forward(*qkv), results)
        backward = disagreement(peer.backward(*qkv, *results, d_out), gradients)
    except RuntimeError as error:
        print(f"{name} cannot run: {error}", file=sys.stderr)
        return False
    if not max(forward, backward) <= tolerance:
        sys.exit(f"annulus and {name} disagree: {forward:.2g} forward, {backward:.2g} backward of the norm")
    return True


def measure(library, branches, tokens, heads, dim, causal, repeats):
    """For forward, backward and both: the rates of the contenders in FLOP/s and the bytes they take."""
    *qkv, d_out = (torch.randn(1, tokens, heads, dim, dtype=torch.bfloat16, device="cuda") for _ in range(4))
    annulus = Annulus(library, branches, causal)
    results = annulus.forward(*qkv)
    gradients = annulus.backward(*qkv, *results, d_out)
    contenders = {"annulus": annulus}
    # A bfloat16 has 8 bits; the plain composition rounds its scores to them, too.
    for name, attention, tolerance in (("cuDNN", CudnnAttention, 2 ** -6), ("plain", PlainAttention, 2 ** -4)):
        peer = Composition(attention(causal), branches)
        if check_peer(name, peer, (*qkv, d_out), results, gradients, tolerance):
            contenders[name] = peer
    del gradients

    a, b, c = (torch.randn(8192, 8192, dtype=torch.bfloat16, device="cuda") for _ in range(3))
    flops, seconds, table = {}, {}, []
    for name, factor, call in (("forward", 4, lambda x: x.forward(*qkv)),
                               ("backward", 10, lambda x: x.backward(*qkv, *results, d_out))):
        works = {key: functools.partial(call, contender) for key, contender in contenders.items()}
        memory = {key: extra_bytes(work) for key, work in works.items()}
        seconds[name] = median_seconds({**works, "GEMM": lambda: torch.matmul(a, b, out=c)}, repeats)
        flops[name] = {"GEMM": 2 * 8192 ** 3, **{key: factor * dim * pairs(branches, tokens, heads, causal)
                                                 for key in works}}
        table.append((name, {key: flops[name][key] / value for key, value in seconds[name].items()}, memory))
    table.append(("both", {key: sum(of[key] for of in flops.values()) / sum(of[key] for of in seconds.values())
                           for key in flops["forward"]}, {}))
    annulus.close()
    return table


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", help="path of libannulus.so, built with CUDA")
    parser.add_argument("--repeats", type=int, default=10, help="timed rounds after 3 others (default 10)")
    if torch is None or not torch.cuda.is_available():
        parser.print_help()
        print("\nSkipped:", "no PyTorch here" if torch is None else "PyTorch finds no GPU here")
        return 77
    arguments = parser.parse_args()
    library = ctypes.CDLL(arguments.library)
    torch.manual_seed(0)
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, CUDA {torch.version.cuda}, "
          f"cuDNN {torch.backends.cudnn.version()}; TFLOP/s, ratios of annulus' rate, extra memory in MiB")
    names = ("annulus", "cuDNN", "plain", "GEMM")
    columns = [*names, *("/" + name for name in names[1:]), *(name + " MiB" for name in names[:3])]
    print(f"{'case':30} {'pass':9}" + "".join(f"{column:>12}" for column in columns))
    for name, branches, tokens, heads, dim, causal in CASES:
        title = f"{name}{' causal' if causal else ''}, H={heads} D={dim}"
        for pass_name, rates, memory in measure(library, branches, tokens, heads, dim, causal, arguments.repeats):
            cells = [rates[key] / 1e12 if key in rates else None for key in names]
            cells += [rates["annulus"] / rates[key] if key in rates else None for key in names[1:]]
            digits = [1] * 4 + [2] * 3 + [0] * 3
            cells += [memory[key] / 2 ** 20 if key in memory else None for key in names[:3]]
            print(f"{title:30} {pass_name:9}" + "".join(
                f"{'-' if cell is None else format(cell, f'.{n}f'):>12}" for cell, n in zip(cells, digits)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
