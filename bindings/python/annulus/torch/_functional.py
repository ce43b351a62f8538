# SPDX-License-Identifier: Apache-2.0
"""Dilated attention as a differentiable function of PyTorch."""

# Types are no strings here: PyTorch reads the operators' schemas from them.
import dataclasses
from typing import Any, Callable, Iterable, Literal, NoReturn, Optional, Sequence, Tuple, Union, cast, overload

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad

from .. import _passes
from .._arguments import host_integers, integer
from .._arrays import check_ndim
from .._cache import cached_config, given
from .._call_options import call_options, check_layout
from .._config import Branch, BranchLike, Config
from .._errors import ArgumentError, UnsupportedError
from .._shards import Shards
from .._unknown import refuse
from ..types import Engine, KeyRule, Layout, Padding
from . import _flops, _gathered, _ranks

# None before PyTorch 2.1, where nothing is compiled.
_compiler: Any = getattr(torch, "compiler", None)


def _untraced(function: Callable) -> Callable:
    """Returns a function that torch.compile does not trace."""
    return _compiler.disable(function) if hasattr(_compiler, "disable") else function


def _constant(function: Callable) -> Callable:
    """Returns a function that torch.compile calls while it traces, and whose result is a constant of the graph."""
    return _compiler.assume_constant_result(function) if hasattr(_compiler, "assume_constant_result") else function


# --- The two passes on tensors, without derivatives


def _rows(tensor: Tensor) -> Tensor:
    """Returns a tensor whose last stride is 1, as the library requires. Gradients of sums, for one, need a copy."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _lse_like(q: Tensor) -> Tensor:
    dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    return q.new_empty((*q.shape[:-3], q.shape[-2], q.shape[-3]), dtype=dtype)


def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    config: str,
    query_start: Optional[int],
    sequence_starts: Optional[Sequence[int]],
    sequence_lengths: Optional[Sequence[int]],
    ranks: int,
) -> Tuple[Tensor, Tensor]:
    """Computes forward. Requires that autograd does not record.

    ranks: a number of _ranks.number_of(), or 0.
    """
    handle = _ranks.context_of(config, q.device, ranks)._handle
    options = call_options(query_start, sequence_starts, sequence_lengths)
    return _passes.forward(handle, _rows(q), _rows(k), _rows(v), None, None, True, options, None)


def _backward(
    d_out: Optional[Tensor],
    d_lse: Optional[Tensor],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    config: str,
    query_start: Optional[int],
    sequence_starts: Optional[Sequence[int]],
    sequence_lengths: Optional[Sequence[int]],
    ranks: int,
) -> Tuple[Tensor, Tensor, Tensor]:
    """Computes backward. Requires that autograd does not record.

    ranks: a number of _ranks.number_of(), or 0.
    """
    d_out = torch.zeros_like(out) if d_out is None else _rows(d_out)
    handle = _ranks.context_of(config, q.device, ranks)._handle
    inputs = _rows(q), _rows(k), _rows(v), out, lse, d_out
    options = call_options(query_start, sequence_starts, sequence_lengths)
    return _passes.backward(handle, inputs, d_lse, (None, None, None), options, None)


def _make_operators(suffix: str, compute_forward: Callable, compute_backward: Callable) -> Tuple[Any, Any]:
    """Registers annulus::forward and annulus::backward, with a suffix: operators that torch.compile puts into its
    graphs."""
    forward = torch.library.custom_op(f"annulus::forward{suffix}", torch.no_grad()(compute_forward), mutates_args=())
    backward = torch.library.custom_op(f"annulus::backward{suffix}", torch.no_grad()(compute_backward), mutates_args=())

    @forward.register_fake
    def _(q, *_):
        return q.new_empty(q.shape), _lse_like(q)

    @backward.register_fake
    def _(d_out, d_lse, q, k, v, *_):
        return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)

    return forward, backward


# Before PyTorch 2.4 there are no custom operators.
_have_operators = hasattr(torch.library, "custom_op")
_forward_pass, _backward_pass = (
    _make_operators("", _forward, _backward) if _have_operators else (_forward, torch.no_grad()(_backward))
)


# --- The first derivative, in reverse mode. All others are refused, since PyTorch would take them for zero.


def _no_tangent(ctx: Any, *tangents: Any) -> Any:
    raise UnsupportedError(
        "forward-mode derivatives (torch.func.jvp, jacfwd, linearize, torch.autograd.forward_ad) of dilated attention "
        "are not possible; take first derivatives in reverse mode (backward(), torch.func.grad, vjp, jacrev)"
    )


def _no_second_derivative(ctx: Any, *gradients: Any) -> Any:
    raise UnsupportedError(
        "dilated attention is once differentiable, and a derivative of its gradient was asked for; take the gradient "
        "without create_graph=True, or detach() it where it may count as a constant"
    )


def _made_for_this_version(kind: Any) -> Any:
    """Joins forward() and setup_context() of a Function before PyTorch 2.0, which calls forward() alone."""
    if not hasattr(torch.autograd.Function, "setup_context"):
        compute, keep = kind.forward, kind.setup_context

        def forward(ctx: Any, *inputs: Any) -> Any:
            output = compute(*inputs)
            keep(ctx, inputs, output)
            return output

        kind.forward = staticmethod(forward)
    return kind


def _mapped(function: Any, size: int, in_dims: Tuple, inputs: Tuple) -> Tuple:
    """Computes `function` under torch.func.vmap: folds the mapped axis of length `size` into B, or makes it B if the
    tensors have no B."""
    *others, starts, lengths, ranks = inputs
    if starts is None and lengths is not None:  # one length for each batch entry
        inputs = (*others, starts, [*lengths] * size, ranks)
    pairs = list(zip(inputs, in_dims))
    with_batch = max(t.dim() - (dim is not None) for t, dim in pairs if isinstance(t, Tensor)) > 3

    def fold(t: Any, dim: Optional[int]) -> Any:
        if not isinstance(t, Tensor):
            return t
        t = t.expand(size, *t.shape) if dim is None else t.movedim(dim, 0)
        return t.flatten(0, 1) if with_batch else t

    outputs = function.apply(*(fold(*pair) for pair in pairs))
    if with_batch:
        outputs = tuple(t.unflatten(0, (size, -1)) for t in outputs)
    return outputs, (0,) * len(outputs)


@_made_for_this_version
class _Gradients(torch.autograd.Function):
    @staticmethod
    def forward(*inputs):
        return _backward_pass(*inputs)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def vmap(info, in_dims, *inputs):
        return _mapped(_Gradients, info.batch_size, in_dims, inputs)

    backward = staticmethod(_no_second_derivative)
    jvp = staticmethod(_no_tangent)


@_made_for_this_version
class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(*inputs):
        return _forward_pass(*inputs)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs[:3], *output)
        ctx.options = inputs[3:]

    @staticmethod
    def backward(ctx, d_out, d_lse):
        if d_out is None and d_lse is None:
            return (None,) * 8
        return (*_Gradients.apply(d_out, d_lse, *ctx.saved_tensors, *ctx.options), *(None,) * 5)

    @staticmethod
    def vmap(info, in_dims, *inputs):
        return _mapped(_Attention, info.batch_size, in_dims, inputs)

    jvp = staticmethod(_no_tangent)


_apply = _untraced(_Attention.apply)


# --- A shorter way while nothing but autograd observes operators. The way above costs up to 100 microseconds a call.

_transforms_active: Callable[[], bool] = getattr(torch._C, "_are_functorch_transforms_active", lambda: False)
_dispatch_modes: Callable[[], int] = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 0)


def _is_unobserved() -> bool:
    """Returns whether nothing observes operators: no transform of torch.func, no dispatch mode (such as
    FlopCounterMode), no forward-mode derivative and no tracing."""
    return not (
        _transforms_active() or _dispatch_modes() or forward_ad._current_level >= 0 or torch._C._get_tracing_state()
    )


class _UnobservedAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Any:
        output = _forward(*inputs)
        _Attention.setup_context(ctx, inputs, output)
        return output

    @staticmethod
    def backward(ctx: Any, d_out: Any, d_lse: Any) -> Any:
        if d_out is None and d_lse is None:
            return (None,) * 8
        inputs = (d_out, d_lse, *ctx.saved_tensors, *ctx.options)
        is_plain = not torch.is_grad_enabled() and _is_unobserved()  # not with create_graph or under vmap, for example
        gradients = _backward(*inputs) if is_plain else _Gradients.apply(*inputs)
        return (*gradients, *(None,) * 5)


def _attend_unobserved(*inputs: Any) -> Tuple[Tensor, Tensor]:
    q, k, v = inputs[:3]
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        return _UnobservedAttention.apply(*inputs)
    return _forward(*inputs)


if not _have_operators:  # torch.compile would trace into it
    _attend_unobserved = _untraced(_attend_unobserved)

if _have_operators:
    cast(Any, _forward_pass).register_autograd(_Attention.backward, setup_context=_Attention.setup_context)


def _compiling() -> bool:
    return _have_operators and torch.compiler.is_compiling()


def _makes_graph() -> bool:
    """Returns whether the call becomes an operator of a compiled graph. That would drop tangents of forward mode; a
    Function that is not traced refuses them."""
    return _compiling() and forward_ad._current_level < 0


# Tensors of other classes may observe operators.
_TENSORS = (Tensor, torch.nn.Parameter)


def _attend(*inputs: Any) -> Tuple[Tensor, Tensor]:
    q, k, v = inputs[:3]
    if not _compiling() and type(q) in _TENSORS and type(k) in _TENSORS and type(v) in _TENSORS and _is_unobserved():
        return _attend_unobserved(*inputs)
    if not _makes_graph():
        return _apply(*inputs)
    *others, starts, lengths, ranks = inputs
    if isinstance(starts, Tensor) or isinstance(lengths, Tensor):
        tensors = [None if numbers is None else torch.as_tensor(numbers) for numbers in (starts, lengths)]
        return _forward_pass_of_sequences(*others, *tensors)  # ranks is 0
    return _forward_pass(*inputs)


# --- Sequences that a compiled graph has as tensors, since it does not know their numbers


def _listed(name: str, numbers: Optional[Tensor]) -> Optional[Sequence[int]]:
    return None if numbers is None else host_integers(name, numbers)


def _forward_of_sequences(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    config: str,
    query_start: Optional[int],
    sequence_starts: Optional[Tensor],
    sequence_lengths: Optional[Tensor],
) -> Tuple[Tensor, Tensor]:
    starts, lengths = _listed("sequence_starts", sequence_starts), _listed("sequence_lengths", sequence_lengths)
    return _forward(q, k, v, config, query_start, starts, lengths, 0)


def _backward_of_sequences(
    d_out: Optional[Tensor],
    d_lse: Optional[Tensor],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    config: str,
    query_start: Optional[int],
    sequence_starts: Optional[Tensor],
    sequence_lengths: Optional[Tensor],
) -> Tuple[Tensor, Tensor, Tensor]:
    starts, lengths = _listed("sequence_starts", sequence_starts), _listed("sequence_lengths", sequence_lengths)
    return _backward(d_out, d_lse, q, k, v, out, lse, config, query_start, starts, lengths, 0)


def _make_operator_of_sequences() -> Any:
    """Registers annulus::forward_of_sequences, which takes the sequences as tensors, and its derivative."""
    forward, backward = _make_operators("_of_sequences", _forward_of_sequences, _backward_of_sequences)

    def keep(ctx: Any, inputs: Tuple, output: Tuple) -> None:
        q, k, v, config, query_start, starts, lengths = inputs
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q, k, v, *output, starts, lengths)
        ctx.options = config, query_start

    def differentiate(ctx: Any, d_out: Any, d_lse: Any) -> Tuple:
        if d_out is None and d_lse is None:
            return (None,) * 7
        *tensors, starts, lengths = ctx.saved_tensors
        return (*backward(d_out, d_lse, *tensors, *ctx.options, starts, lengths), *(None,) * 4)

    forward.register_autograd(differentiate, setup_context=keep)
    return forward


_forward_pass_of_sequences: Any = None
if _have_operators:
    _forward_pass_of_sequences = _make_operator_of_sequences()
    _flops.register()


# --- The function


def _autocast_dtype(device: str) -> Optional[torch.dtype]:
    """Returns autocast's dtype for a kind of device, or None if autocast is off."""
    if hasattr(torch, "get_autocast_dtype"):
        return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    if device == "cpu":
        return torch.get_autocast_cpu_dtype() if torch.is_autocast_cpu_enabled() else None
    return torch.get_autocast_gpu_dtype() if torch.is_autocast_enabled() else None


def _cast(*tensors: Tensor) -> Tuple[Tensor, ...]:
    """Casts all tensors but float64 to autocast's dtype, as scaled_dot_product_attention() does."""
    dtype = _autocast_dtype(tensors[0].device.type)
    if dtype is None:
        return tensors
    return tuple(t.to(dtype) if t.is_floating_point() and t.dtype != torch.float64 else t for t in tensors)


@_constant
def _text_of(branches: Any, options: dict) -> str:
    return cached_config(branches, options)._text


_BRANCH_FIELDS = [field.name for field in dataclasses.fields(Branch)]


def config_text(branches: Any, options: dict) -> str:
    """Returns the text of the config of branches with options, which the operators take."""
    if _compiling() and isinstance(branches, (list, tuple)):  # a Branch cannot be a constant of a graph, a dict can
        branches = [
            {name: getattr(branch, name) for name in _BRANCH_FIELDS} if isinstance(branch, Branch) else branch
            for branch in branches
        ]
    return _text_of(branches, options)


_number_of = _untraced(_ranks.number_of)
_attend_gathered = _untraced(_gathered.attend_gathered)


@overload
def dilated_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    branches: Union[Config, Iterable[BranchLike]],
    *,
    causal: Optional[bool] = None,
    padding: Optional[Padding] = None,
    key_rule: Optional[KeyRule] = None,
    head_shard: Optional[Tuple[int, int]] = None,
    scale: Optional[float] = None,
    engine: Optional[Engine] = None,
    allow_tf32: Optional[bool] = None,
    workspace_limit: Optional[int] = None,
    return_lse: Literal[False] = False,
    query_start: Optional[int] = None,
    sequence_starts: Any = None,
    sequence_lengths: Any = None,
    process_group: Any = None,
    shards: Union[Shards, Sequence[int], Literal["balanced", "gather"], None] = None,
    layout: Optional[Layout] = None,
) -> Tensor: ...


@overload
def dilated_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    branches: Union[Config, Iterable[BranchLike]],
    *,
    causal: Optional[bool] = None,
    padding: Optional[Padding] = None,
    key_rule: Optional[KeyRule] = None,
    head_shard: Optional[Tuple[int, int]] = None,
    scale: Optional[float] = None,
    engine: Optional[Engine] = None,
    allow_tf32: Optional[bool] = None,
    workspace_limit: Optional[int] = None,
    return_lse: Literal[True],
    query_start: Optional[int] = None,
    sequence_starts: Any = None,
    sequence_lengths: Any = None,
    process_group: Any = None,
    shards: Union[Shards, Sequence[int], Literal["balanced", "gather"], None] = None,
    layout: Optional[Layout] = None,
) -> Tuple[Tensor, Tensor]: ...


@overload
def dilated_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    branches: Union[Config, Iterable[BranchLike]],
    *,
    causal: Optional[bool] = None,
    padding: Optional[Padding] = None,
    key_rule: Optional[KeyRule] = None,
    head_shard: Optional[Tuple[int, int]] = None,
    scale: Optional[float] = None,
    engine: Optional[Engine] = None,
    allow_tf32: Optional[bool] = None,
    workspace_limit: Optional[int] = None,
    return_lse: bool,
    query_start: Optional[int] = None,
    sequence_starts: Any = None,
    sequence_lengths: Any = None,
    process_group: Any = None,
    shards: Union[Shards, Sequence[int], Literal["balanced", "gather"], None] = None,
    layout: Optional[Layout] = None,
) -> Any: ...


def dilated_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    branches: Union[Config, Iterable[BranchLike]],
    *,
    causal: Optional[bool] = None,
    padding: Optional[Padding] = None,
    key_rule: Optional[KeyRule] = None,
    head_shard: Optional[Tuple[int, int]] = None,
    scale: Optional[float] = None,
    engine: Optional[Engine] = None,
    allow_tf32: Optional[bool] = None,
    workspace_limit: Optional[int] = None,
    return_lse: bool = False,
    query_start: Optional[int] = None,
    sequence_starts: Any = None,
    sequence_lengths: Any = None,
    process_group: Any = None,
    shards: Union[Shards, Sequence[int], Literal["balanced", "gather"], None] = None,
    layout: Optional[Layout] = None,
    **unknown: NoReturn,
) -> Any:
    """Dilated attention of q [B, Nq, H, D] over k and v [B, N, G, D], where G divides H; differentiable.

    branches: a list of (segment length, dilation), of annulus.Branch or of dicts with its fields, and causal to
        workspace_limit as the options of annulus.Config; or an annulus.Config, which has them all.
    return_lse: also return lse [B, H, Nq], the logarithm of the softmax's denominators, float32 (float64 for float64).
        Its gradient counts.
    query_start: the global position of q's first row, if q has a part of the N positions.
    sequence_starts, sequence_lengths: the sequences that the N rows consist of, as annulus.Context.forward() takes
        them: starts (cu_seqlens) for packed sequences, lengths alone for padded batch entries. They are integers in
        host memory: lists, NumPy arrays or CPU tensors. With process_group they count the rows of all ranks, and every
        rank passes the same numbers.
    process_group: each rank of this torch.distributed group passes its shard of the sequence in q, k and v and gets its
        shard of the result. Gradients of q, k and v are those of the sum of all ranks' losses. Each rank's tensors are
        on a GPU of its own. To try a program without GPUs they may be on the CPU; then every rank gathers all keys and
        values. An annulus.Comm may stand for the group.
    shards: with process_group, how the ranks share the sequence. annulus.Shards, which a rank with several shards
        needs, or a list with the number of positions of each rank, are checked. A word makes the ranks tell one another
        how many rows they have: "gather" is one shard for each rank; "balanced" are the shards of
        annulus.Shards.balanced() for this config and these sequences, by which the caller must have cut the rows. None:
        each rank has one shard, with the positions that its tensors hold.
    layout: "bnhd", the axes above, or "bhnd": q, k, v, out and their gradients are [B, heads, N, D], as those of
        scaled_dot_product_attention(). Neither is copied. None: "bnhd", with a warning if k looks like [B, heads, N,
        D]. lse is [B, H, Nq] in both.

    Returns out [B, Nq, H, D] in q's dtype, with return_lse (out, lse). The gradient is the true derivative. It exists
    once and in reverse mode: by backward(), torch.autograd.grad, torch.func.grad, vjp and jacrev. torch.func.vmap works
    with and without them (torch.func needs PyTorch 2.0). Forward mode (torch.func.jvp, jacfwd) and derivatives of the
    gradient raise UnsupportedError. Under autocast q, k and v are cast to autocast's dtype. On a CPU the call uses
    torch.get_num_threads() threads, or the number in the environment variable ANNULUS_NUM_THREADS.
    """
    if unknown:
        refuse("annulus.torch.dilated_attention()", unknown)
    if layout is not None or not _compiling():  # while compiling, shapes may be symbols
        check_layout(layout, k)
    if layout == "bhnd":
        q, k, v = (_exchanged(name, tensor) for name, tensor in (("q", q), ("k", k), ("v", v)))
    options = given(
        causal=causal,
        padding=padding,
        key_rule=key_rule,
        head_shard=head_shard,
        scale=scale,
        engine=engine,
        allow_tf32=allow_tf32,
        workspace_limit=workspace_limit,
    )
    text = branches._text if isinstance(branches, Config) and not options else config_text(branches, options)
    out, lse = attend(
        q,
        k,
        v,
        text,
        query_start,
        process_group,
        shards,
        sequence_starts=sequence_starts,
        sequence_lengths=sequence_lengths,
    )
    if layout == "bhnd":
        out = out.transpose(-3, -2)
    return (out, lse) if return_lse else out


def _exchanged(name: str, tensor: Any) -> Tensor:
    """Returns a tensor [B, heads, N, D] as [B, N, heads, D]."""
    check_tensor(name, tensor)
    check_ndim(name, tensor.dim())
    return tensor.transpose(-3, -2)


def check_tensor(name: str, tensor: Any) -> None:
    if type(tensor).__name__ == "DTensor":
        raise UnsupportedError(
            f"{name} is a DTensor; pass its local part, {name}.to_local(), and where that has some of the heads, say which "
            "by head_shard=(first, total)"
        )
    if not isinstance(tensor, Tensor):
        raise TypeError(
            f"{name} is a {type(tensor).__name__}; it must be a torch.Tensor (annulus.attention() takes arrays of "
            "other libraries)"
        )
    if tensor.device.type not in ("cpu", "cuda"):
        raise UnsupportedError(f"{name} is on {tensor.device}; it must be on the CPU or a CUDA device")


def _check(name: str, tensor: Any, q: Tensor) -> None:
    """Refuses a tensor that operators and autograd would accept, or refuse with unclear messages."""
    if (
        type(tensor) is Tensor
        and ((tensor.is_cpu and q.is_cpu) or (tensor.is_cuda and q.is_cuda and tensor.get_device() == q.get_device()))
        and tensor.layout is torch.strided
        and 3 <= tensor.dim() <= 4
    ):
        if not tensor.is_nested:
            return  # the usual case; the checks below find nothing in it
    check_tensor(name, tensor)
    if tensor.device != q.device:
        raise ArgumentError(f"{name} is on {tensor.device}, q on {q.device}; they must be on the same device")
    if tensor.layout != torch.strided or tensor.is_nested:
        raise UnsupportedError(f"{name} is a sparse or nested tensor; it must be a plain dense one")
    check_ndim(name, tensor.dim())


_numbers_of = _untraced(host_integers)


def _numbers(name: str, values: Any, may_be_tensor: bool = False) -> Any:
    """Returns sequence_starts or sequence_lengths as the operators take them: a list, or in a graph also a tensor."""
    if values is None or (_compiling() and isinstance(values, (list, tuple))):  # they may hold symbols
        return values
    if may_be_tensor and _makes_graph() and isinstance(values, (Tensor, np.ndarray)):
        return torch.as_tensor(values)
    return _numbers_of(name, values)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    config: str,
    query_start: Optional[int] = None,
    process_group: Any = None,
    shards: Union[Shards, Sequence[int], str, None] = None,
    sequence_starts: Any = None,
    sequence_lengths: Any = None,
) -> Tuple[Tensor, Tensor]:
    """Computes (out, lse) of dilated_attention(). config: its text."""
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        _check(name, tensor, q)
    if query_start is not None and not _compiling():  # while compiling, it may be a symbol
        query_start = integer("query_start", query_start)
    if process_group is None and shards is not None:
        raise ArgumentError(f"shards is {shards!r}; it needs process_group, the ranks that hold them")
    is_alone = process_group is None
    starts = _numbers("sequence_starts", sequence_starts, is_alone)
    lengths = _numbers("sequence_lengths", sequence_lengths, is_alone)
    if q.device.type == "cpu" and _ranks.is_group(process_group):
        if query_start is not None:
            raise UnsupportedError("query_start with a process group and tensors on the CPU; leave one of them out")
        return _attend_gathered(attend, q, k, v, config, process_group, shards, starts, lengths)
    ranks = 0 if process_group is None else _number_of(process_group, shards, q, config, (starts, lengths))
    return _attend(*_cast(q, k, v), config, query_start, starts, lengths, ranks)
