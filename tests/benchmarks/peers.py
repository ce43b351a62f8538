# SPDX-License-Identifier: Apache-2.0
"""Compares annulus' GPU engines with what PyTorch offers for the same attention, on one GPU, in one run.

The peers:
  dense    cuDNN's attention over dense segments. If the case is dense, it is the case itself. Else it is segments of
           2048 in 65,536 tokens, with the case's head dimension and 1024 features; only FLOP rates are compared.
  flash    PyTorch's FlashAttention-2, if the case is dense or a window of dilation 1
  flash3   FlashAttention-3 for the same cases, from a file of its operators (--flash3)
  flash4   FlashAttention's kernels in Python (the package flash-attn-4) for the same cases
  flash-det, flash3-det, flash4-det  the same with deterministic backward; without it the bits differ from call to call
  longnet  LongNet's published procedure, forward. Each branch's rows are padded, cut into segments, gathered, attended
           to by cuDNN and scattered. The branches' outputs are weighted by the softmax of their LSEs.
  longnet-flash  the same over PyTorch's FlashAttention-2
  views    the same branches as strided views, cuDNN's attention on them, outputs merged by LSE; exact gradients
  plain    the same views, with matrix product, softmax and matrix product as separate calls
  matmul   torch.matmul of 8192 x 8192 matrices

Everything is bfloat16, batch 1, block phases. In each round all contenders run once, in a random order, since a
contender that follows a slow one finds a cooler GPU. A contender makes two calls, then seven timed calls in a row, by
CUDA events; one and three if the calls are long. FLOPs are 4 D forward and 10 D backward for each (query, key) pair of
the contender's own problem. Rates are by the median time. The spread is from the fastest to the slowest median of a
round. Memory is what a call takes from PyTorch's allocator, which serves annulus too, beyond its inputs and outputs.

It is not part of the test suite. Exit status: 0; 1 if results disagree; 77 without PyTorch or a GPU.
"""

import argparse
import contextlib
import ctypes
import dataclasses
import functools
import math
import pathlib
import random
import re
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
from c_structs import Branch

try:
    import torch
except ImportError:
    torch = None

DEVICE = "cuda"


@dataclasses.dataclass(frozen=True)
class Window:
    """A branch in which query n attends to the keys n + dilation j for -left <= j <= right."""
    left: int
    right: int
    dilation: int = 1

    def pairs(self, tokens, causal):
        """Returns the number of (query, key) pairs of a head."""
        def on_a_side(steps):
            return sum(min(steps, n // self.dilation) for n in range(tokens))
        return tokens + on_a_side(self.left) + (0 if causal else on_a_side(self.right))


@dataclasses.dataclass(frozen=True)
class Case:
    title: str
    branches: tuple  # of (segment length, dilation), or one Window
    tokens: int
    heads: int
    dim: int
    causal: bool = False
    zero_keys: bool = False

    @property
    def name(self):
        return f"{self.title} H={self.heads} D={self.dim}{' causal' if self.causal else ''}"

    @property
    def is_dense(self):
        return self.window is None and len(self.branches) == 1 and self.branches[0][1] == 1

    @property
    def window(self):
        return self.branches[0] if isinstance(self.branches[0], Window) else None

    @property
    def pairs(self):
        """Returns the number of (query, key) pairs. Padding keys cost nothing."""
        if self.window:
            return self.heads * self.window.pairs(self.tokens, self.causal)
        total = 0
        for length, dilation in self.branches:
            each = -(-self.heads // dilation)  # heads with the same phase
            whole, rest = divmod(self.tokens, min(length, self.tokens))
            for phase, first in enumerate(range(0, self.heads, each)):
                for segments, size in ((whole, min(length, self.tokens)), (1, rest)):
                    n = max(0, -(-(size - phase) // dilation))
                    total += min(each, self.heads - first) * segments * (n * (n + 1) // 2 if self.causal else n * n)
        return total

    @property
    def flops(self):
        return {"forward": 4 * self.dim * self.pairs, "backward": 10 * self.dim * self.pairs}

    def dense(self):
        """Returns the problem of the dense peer."""
        if self.is_dense:
            return self
        return Case("dense", ((2048, 1),), 65536, max(1, 1024 // self.dim), self.dim, self.causal)


LONGNET = tuple((2048 << i, 1 << i) for i in range(6))
GIGAPATH = ((1024, 1), (5792, 2), (32768, 4), (185363, 8), (1048576, 16))
# The dilated cases have about the number of pairs of 2048:1. Some lengths are not multiples of any block.
CASES = [Case(f"{w}:{r}", ((w, r),), tokens, 1024 // dim, dim, causal)
         for w, r, tokens in ((2048, 1, 65536), (2053, 1, 63643), (16384, 1, 65536), (16411, 1, 65644),
                              (32771, 1, 65542), (8192, 4, 262144), (8197, 4, 262304), (32768, 16, 1048576))
         for dim in (64, 128) for causal in (False, True)]
CASES += [Case("LongNet", LONGNET, 262144, heads, dim, causal)
          for heads, dim in ((16, 128), (32, 64)) for causal in (False, True)]
# Each token attends to a short segment around it, and to a few tokens of the whole sequence.
CASES += [Case("1024:1 and 262144:64", ((1024, 1), (262144, 64)), 262144, 16, 64, causal) for causal in (False, True)]
CASES += [Case(f"Prov-GigaPath N={tokens}", GIGAPATH, tokens, 16, 48, zero_keys=True) for tokens in (10001, 70001)]

CASES += [Case(f"window {left} N={tokens}", (Window(left, 0),), tokens, 1024 // dim, dim, True)
          for left in (127, 511, 1023, 4095) for tokens in (65536, 65549) for dim in (64, 128)]
CASES += [Case(f"window 255+255 of {dilation}", (Window(255, 255, dilation),), 65549, 1024 // dim, dim)
          for dilation in (1, 8) for dim in (64, 128)]

# Values of annulus' enumerations.
DEVICE_CUDA, FLOAT32, BFLOAT16, ZERO_KEYS = 2, 2, 3, 1
ENGINES = {"fused": 4, "gemm": 3, "mma": 5}


class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("dtype", ctypes.c_int), ("ndim", ctypes.c_int32),
                ("shape", ctypes.c_int64 * 4), ("stride", ctypes.c_int64 * 4)]

    def __init__(self, tensor):
        dtype = {torch.bfloat16: BFLOAT16, torch.float32: FLOAT32}[tensor.dtype]
        super().__init__(tensor.data_ptr(), dtype, tensor.ndim, tuple(tensor.shape), tuple(tensor.stride()))


ALLOCATE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p)
RELEASE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p)


class Allocator(ctypes.Structure):
    """PyTorch's caching allocator."""
    _fields_ = [("size", ctypes.c_size_t), ("allocate", ALLOCATE), ("release", RELEASE), ("user", ctypes.c_void_p)]

    def __init__(self):
        super().__init__(ctypes.sizeof(Allocator), ALLOCATE(self.give), RELEASE(self.take), None)

    @staticmethod
    def give(user, size, alignment, stream):
        return torch.cuda.caching_allocator_alloc(size, stream=stream or 0)  # an exception gives NULL

    @staticmethod
    def take(user, memory, size, alignment, stream):
        torch.cuda.caching_allocator_delete(memory)


class Annulus:
    """The library on the current device and stream, with one of its engines."""

    def __init__(self, library, engine, case):
        self.library = library
        library.annulus_last_error.restype = ctypes.c_char_p
        config, self.context, self.allocator = ctypes.c_void_p(), ctypes.c_void_p(), Allocator()
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        self.call("config_create", ctypes.byref(config))
        for branch in case.branches:
            make = Branch.window if case.window else Branch.plain
            numbers = dataclasses.astuple(branch) if case.window else branch
            self.call("config_add_branch", config, ctypes.byref(make(*numbers)), None)
        self.call("config_set_causal", config, int(case.causal))
        if case.zero_keys:
            self.call("config_set_padding_rule", config, ZERO_KEYS)
        self.call("config_set_engine", config, ENGINES[engine])
        self.call("context_create", ctypes.byref(self.context), DEVICE_CUDA, torch.cuda.current_device())
        self.call("context_set_config", self.context, config)
        self.call("context_set_stream", self.context, stream)
        self.call("context_set_allocator", self.context, ctypes.byref(self.allocator))
        library.annulus_config_destroy(config)

    def __del__(self):
        self.library.annulus_context_destroy(self.context)

    def call(self, name, *arguments):
        if getattr(self.library, "annulus_" + name)(*arguments) != 0:
            raise RuntimeError(f"annulus_{name}: {self.library.annulus_last_error().decode()}")

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
    """cuDNN on [batch, heads, length, D]. In backward, O and LSE may be over more keys than K has."""

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


@contextlib.contextmanager
def deterministic_algorithms():
    """PyTorch has no argument for a deterministic backward of FlashAttention-2. It asks this setting."""
    torch.utils.deterministic.fill_uninitialized_memory = False  # takes time, and kernels write all results
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


class FlashAttention:
    """PyTorch's FlashAttention-2 on [batch, heads, length, D]."""

    def __init__(self, causal, deterministic=False):
        self.causal, self.setting = causal, deterministic_algorithms if deterministic else contextlib.nullcontext
        self.kept = None  # from forward to backward: two arrays of sequence lengths, two largest lengths, the seed

    def forward(self, q, k, v):
        out, lse, *kept = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, self.causal, False)
        self.kept = kept[:6]
        return out, lse

    def backward(self, q, k, v, out, lse, d_out):
        with self.setting():
            return torch.ops.aten._scaled_dot_product_flash_attention_backward(
                d_out, q, k, v, out, lse.contiguous(), *self.kept[:4], 0.0, self.causal, *self.kept[4:])


class WindowedFlashAttention3:
    """FlashAttention-3's operators on [batch, length, heads, D], with a window."""

    def __init__(self, causal, left=-1, right=-1, deterministic=False):
        self.options = {"is_causal": causal, "window_size_left": left, "window_size_right": right}
        self.deterministic = deterministic

    def forward(self, q, k, v):
        out, lse, *_ = torch.ops.flash_attn_3.fwd(q, k, v, num_splits=1, **self.options)
        return out, lse

    def backward(self, q, k, v, out, lse, d_out):
        return torch.ops.flash_attn_3.bwd(
            d_out, q, k, v, out, lse.contiguous(), deterministic=self.deterministic, **self.options)[:3]


class WindowedFlashAttention4:
    """FlashAttention's CuTe kernels on [batch, length, heads, D], with a window. They are compiled when first called."""

    def __init__(self, causal, left=None, right=None, deterministic=False):
        from flash_attn.cute import interface

        self.interface, self.deterministic = interface, deterministic
        self.options = {"causal": causal and left is None, "window_size_left": left, "window_size_right": right}

    def forward(self, q, k, v):
        return self.interface._flash_attn_fwd(q, k, v, return_lse=True, **self.options)[:2]

    def backward(self, q, k, v, out, lse, d_out):
        return self.interface._flash_attn_bwd(
            q, k, v, out, d_out, lse.contiguous(), deterministic=self.deterministic, **self.options)[:3]


class ByLength:
    """A peer that takes [batch, length, heads, D], on [batch, heads, length, D]."""

    def __init__(self, peer):
        self.peer = peer

    def forward(self, q, k, v):
        out, lse = self.peer.forward(*(x.transpose(1, 2) for x in (q, k, v)))
        return out.transpose(1, 2), lse

    def backward(self, q, k, v, out, lse, d_out):
        rows = (x.transpose(1, 2) for x in (q, k, v, out))
        return [x.transpose(1, 2) for x in self.peer.backward(*rows, lse, d_out.transpose(1, 2))]


class WindowedFlashAttention:
    """PyTorch's FlashAttention-2 on [batch, length, heads, D], with a window."""

    def __init__(self, causal, left, right, deterministic=False):
        self.causal, self.setting = causal, deterministic_algorithms if deterministic else contextlib.nullcontext
        self.options = {"window_size_left": left, "window_size_right": right}
        self.kept = None  # the seed, from forward to backward

    def forward(self, q, k, v):
        out, lse, *kept = torch.ops.aten._flash_attention_forward(
            q, k, v, None, None, q.shape[1], k.shape[1], 0.0, self.causal, False, **self.options)
        self.kept = kept[:2]
        return out, lse

    def backward(self, q, k, v, out, lse, d_out):
        with self.setting():
            return torch.ops.aten._flash_attention_backward(
                d_out, q, k, v, out, lse.contiguous(), None, None, q.shape[1], k.shape[1], 0.0, self.causal, *self.kept,
                **self.options)


class PlainAttention:
    """Attention in separate calls, in chunks of the batch: the scores of a chunk take at most a gibibyte."""

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
    """Dilated attention by an attention over dense segments. Segments must divide N, and dilations the segments."""

    def __init__(self, attention, branches):
        self.attention, self.branches = attention, branches
        self.dense = len(branches) == 1 and branches[0][1] == 1

    def parts(self, heads):
        for length, dilation in self.branches:
            each = -(-heads // dilation)  # heads with the same phase
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


class LongNet:
    """Dilated attention as in LongNet's published code: a copy for each step, and gradients by autograd. No gradients
    pass through the weights of the branches."""

    exact_gradients = False

    def __init__(self, attention, branches):
        self.attention, self.branches = attention, branches
        self.graph = None

    def branch(self, q, k, v, length, dilation):
        """Returns O [1, N, H, D] and LSE [1, H, N] of one branch. Rows that are not in the branch have 0 and
        -infinity."""
        tokens, heads, dim = q.shape[1:]
        length = min(length, tokens)
        segments, slots = -(-tokens // length), -(-length // dilation)
        head = torch.arange(heads, device=q.device)
        phase = head // -(-heads // dilation)

        def sparse(x):
            x = torch.nn.functional.pad(x[0], (0, 0, 0, 0, 0, segments * length - tokens))
            x = torch.nn.functional.pad(x.view(segments, length, heads, dim),
                                        (0, 0, 0, 0, 0, slots * dilation - length))
            return x.view(segments, slots, dilation, heads, dim)[:, :, phase, head].transpose(1, 2).contiguous()

        def dense(x, fill):
            whole = torch.full((segments, slots, dilation, *x.shape[2:]), fill, dtype=x.dtype, device=x.device)
            whole[:, :, phase, head] = x
            return whole.flatten(1, 2)[:, :length].flatten(0, 1)[:tokens].unsqueeze(0)

        o, l = self.attention.forward(sparse(q), sparse(k), sparse(v))
        return dense(o.transpose(1, 2), 0), dense(l.transpose(1, 2), -math.inf).transpose(1, 2)

    def forward(self, q, k, v):
        parts = [self.branch(q, k, v, *branch) for branch in self.branches]
        if len(parts) == 1:
            return parts[0]
        lses = torch.stack([l for _, l in parts]).detach()
        weights = torch.softmax(lses, 0)
        out = 0
        for (o, _), weight in zip(parts, weights):
            out = out + o * weight.transpose(1, 2).unsqueeze(-1).to(o.dtype)
        return out, torch.logsumexp(lses, 0)

    def backward(self, q, k, v, out, lse, d_out):
        if self.graph is None:
            leaves = [x.detach().requires_grad_() for x in (q, k, v)]
            self.graph = leaves, self.forward(*leaves)[0]
        leaves, out = self.graph
        return torch.autograd.grad(out, leaves, d_out, retain_graph=True)


class Matmul:
    """The product of two 8192 x 8192 matrices."""

    FLOPS = 2 * 8192 ** 3

    def __init__(self):
        self.factors = [torch.randn(8192, 8192, dtype=torch.bfloat16, device=DEVICE) for _ in range(2)]

    def forward(self, *_):
        return (torch.matmul(*self.factors),)

    backward = forward


WINDOW_PEERS = {"flash": WindowedFlashAttention, "flash3": WindowedFlashAttention3, "flash4": WindowedFlashAttention4,
                "flash-det": functools.partial(WindowedFlashAttention, deterministic=True),
                "flash3-det": functools.partial(WindowedFlashAttention3, deterministic=True),
                "flash4-det": functools.partial(WindowedFlashAttention4, deterministic=True)}


def dense_peer(name, causal):
    if name in ("flash", "flash-det"):
        return FlashAttention(causal, deterministic=name == "flash-det")
    return ByLength(WINDOW_PEERS[name](causal))


LONGNET_PEERS = {"longnet": CudnnAttention, "longnet-flash": FlashAttention}


class Inputs:
    def __init__(self, case):
        self.qkv = [torch.randn(1, case.tokens, case.heads, case.dim, dtype=torch.bfloat16, device=DEVICE)
                    for _ in range(3)]
        self.d_out = torch.randn_like(self.qkv[0])


@dataclasses.dataclass
class Contender:
    name: str
    peer: object  # has forward(q, k, v) and perhaps backward(q, k, v, out, lse, d_out)
    inputs: Inputs
    results: tuple
    flops: dict  # {pass: FLOPs}
    tolerance: float = None  # for its results beside the engines'; None: it computes another problem
    has_backward: bool = False

    def work(self, name):
        if name == "forward":
            return lambda: self.peer.forward(*self.inputs.qkv)
        return lambda: self.peer.backward(*self.inputs.qkv, *self.results, self.inputs.d_out)


def contenders(library, case, engines, peers, forward_only):
    """Returns the contenders that can run on this machine. Compares the results of each with an earlier contender's."""
    inputs = Inputs(case)
    found = []

    def add(name, make, of=inputs, flops=case.flops, tolerance=2 ** -6):
        try:
            peer = make()
            contender = Contender(name, peer, of, peer.forward(*of.qkv), flops, tolerance)
            torch.cuda.synchronize()
        except (ImportError, RuntimeError) as error:
            print(f"{case.name}: {name} cannot run: {error}", file=sys.stderr)
            return
        try:
            if not forward_only and hasattr(peer, "backward"):
                contender.work("backward")()
                contender.has_backward = True
        except RuntimeError as error:
            print(f"{case.name}: {name} without backward: {error}", file=sys.stderr)
        if tolerance is not None:
            check_results(case, contender, [c for c in found if c.tolerance is not None])
        found.append(contender)

    for engine in engines:
        add(engine, lambda: Annulus(library, engine, case))
    for name in peers:
        if name == "dense":
            dense = case.dense()
            same = {} if dense is case else {"of": Inputs(dense), "flops": dense.flops, "tolerance": None}
            add(name, lambda: Composition(CudnnAttention(dense.causal), dense.branches), **same)
        elif name in WINDOW_PEERS and case.is_dense:
            add(name, lambda: Composition(dense_peer(name, case.causal), case.branches))
        elif name in WINDOW_PEERS and case.window and case.window.dilation == 1:
            add(name, lambda: WINDOW_PEERS[name](case.causal, case.window.left, case.window.right))
        elif case.window:
            pass  # the other peers have no windows
        elif name in LONGNET_PEERS and not case.is_dense:
            add(name, lambda: LongNet(LONGNET_PEERS[name](case.causal), case.branches))
        elif name in ("views", "plain") and not case.zero_keys:
            # A bfloat16 has 8 bits. The plain composition also rounds its scores to 8 bits.
            attention, tolerance = {"views": (CudnnAttention, 2 ** -6), "plain": (PlainAttention, 2 ** -4)}[name]
            add(name, lambda: Composition(attention(case.causal), case.branches), tolerance=tolerance)
        elif name == "matmul":
            add(name, Matmul, flops={"forward": Matmul.FLOPS, "backward": Matmul.FLOPS}, tolerance=None)
    return found


def extra_bytes(work):
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    results = work()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before - sum(x.numel() * x.element_size() for x in results)


def timed(work, calls):
    """Returns the seconds of each of `calls` calls in a row."""
    events = [torch.cuda.Event(enable_timing=True) for _ in range(calls + 1)]
    events[0].record()
    for event in events[1:]:
        work()
        event.record()
    events[-1].synchronize()
    return [a.elapsed_time(b) / 1e3 for a, b in zip(events, events[1:])]


def disagreement(found, wanted):
    """Returns the largest relative error of a tensor, in its norm."""
    def finite(x, nan):
        return x.float().nan_to_num(nan=nan, neginf=0)  # an LSE without keys is -infinity

    return max((torch.linalg.vector_norm(finite(f, math.inf) - finite(w, 0)) /
                torch.linalg.vector_norm(finite(w, 0))).item() for f, w in zip(found, wanted))


def check_results(case, contender, others):
    """Ends the program if the contender's results differ from the first other contender's, and its gradients from the
    first other contender's that has exact gradients."""
    def check(other, found, wanted):
        error = disagreement(found, wanted)
        if not error <= contender.tolerance:
            sys.exit(f"{case.name}: {contender.name} and {other.name} disagree by {error:.2g} of the norm")

    for other in others[:1]:
        check(other, contender.results, other.results)
    def has_gradients(c):
        return c.has_backward and getattr(c.peer, "exact_gradients", True)

    for other in [c for c in others if has_gradients(c) and has_gradients(contender)][:1]:
        check(other, contender.work("backward")(), other.work("backward")())


@dataclasses.dataclass
class Line:
    case: str
    pass_name: str
    rates: dict  # {contender: FLOP/s}
    spreads: dict
    memory: dict  # bytes

    def print(self, file):
        for name, rate in self.rates.items():
            ratio = f"{rate / self.rates['dense']:.2f}" if "dense" in self.rates else "-"
            print(f"{self.case:32} {self.pass_name:9}{name:11}{rate / 1e12:8.1f} TFLOP/s, {ratio} of dense, spread "
                  f"{100 * self.spreads[name]:.1f} %, {self.memory[name] / 2 ** 20:.0f} MiB", file=file, flush=True)


def measure(case, pass_name, taking_part, rounds):
    large = max(c.flops[pass_name] for c in taking_part) > 6e12
    warm_up, calls = (1, 3) if large else (2, 7)
    memory = {c.name: extra_bytes(c.work(pass_name)) for c in taking_part}
    seconds = {c.name: [] for c in taking_part}
    for _ in range(rounds):
        for contender in random.sample(taking_part, len(taking_part)):
            work = contender.work(pass_name)
            for _ in range(warm_up):
                work()
            seconds[contender.name].append(timed(work, calls))
    medians = {name: statistics.median(t for round_times in values for t in round_times)
               for name, values in seconds.items()}
    round_medians = {name: [statistics.median(round_times) for round_times in values]
                     for name, values in seconds.items()}
    return Line(case.name, pass_name, {c.name: c.flops[pass_name] / medians[c.name] for c in taking_part},
                {name: (max(values) - min(values)) / medians[name] for name, values in round_medians.items()}, memory)


def print_table(lines, names):
    print("TFLOP/s and ratios to dense")
    print(f"{'case':32} {'pass':9}" + "".join(f"{name:>15}" for name in names))
    for line in lines:
        cells = []
        for name in names:
            rate, dense = line.rates.get(name), line.rates.get("dense")
            ratio = f"{rate / dense:.2f}" if rate and dense and name != "dense" else ""
            cells.append(f"{f'{rate / 1e12:.1f}' if rate else '-':>9}{ratio:>6}")
        print(f"{line.case:32} {line.pass_name:9}{''.join(cells)}".rstrip())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", help="path of libannulus.so, built with CUDA")
    parser.add_argument("--engine", action="append", choices=ENGINES, help="may be given twice (default: fused)")
    parser.add_argument("--peer", action="append",
                        choices=("dense", *WINDOW_PEERS, *LONGNET_PEERS, "views", "plain", "matmul"),
                        help="may be given several times (default: dense, longnet)")
    parser.add_argument("--flash3", metavar="FILE", help="library that registers torch.ops.flash_attn_3, for flash3")
    parser.add_argument("--only", metavar="REGEX", default="", help="cases with such names, as in '^2048.*D=64'")
    parser.add_argument("--rounds", type=int, default=6, help="default 6")
    parser.add_argument("--forward-only", action="store_true")
    if torch is None or not torch.cuda.is_available():
        parser.print_help()
        print("\nCases:", *(case.name for case in CASES), sep="\n  ")
        print("\nSkipped:", "no PyTorch here" if torch is None else "PyTorch finds no GPU here")
        return 77
    arguments = parser.parse_args()
    library = ctypes.CDLL(arguments.library)
    engines, peers = arguments.engine or ["fused"], arguments.peer or ["dense", "longnet"]
    cases = [case for case in CASES if re.search(arguments.only, case.name)]
    if not cases:
        parser.error("no case has such a name")
    if any(name.startswith("flash3") for name in peers):
        if not arguments.flash3:
            parser.error("the peers flash3 and flash3-det need --flash3 FILE")
        torch.ops.load_library(arguments.flash3)
    torch.manual_seed(0)
    random.seed(0)
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, CUDA {torch.version.cuda}, "
          f"cuDNN {torch.backends.cudnn.version()}")
    lines = []
    for case in cases:
        found = contenders(library, case, engines, peers, arguments.forward_only)
        for pass_name in ("forward", "backward"):
            taking_part = [c for c in found if pass_name == "forward" or c.has_backward]
            if taking_part:
                lines.append(measure(case, pass_name, taking_part, arguments.rounds))
                lines[-1].print(sys.stderr)
        del found, taking_part
        torch.cuda.empty_cache()
    print_table(lines, [*engines, *peers])
    return 0


if __name__ == "__main__":
    sys.exit(main())
