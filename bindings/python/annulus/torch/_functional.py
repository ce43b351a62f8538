# SPDX-License-Identifier: Apache-2.0
"""Dilated attention as a differentiable function of PyTorch."""

# Types are no strings here: PyTorch reads the operators' schemas from them.
from typing import Any, Callable, Iterable, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .._config import BranchLike, Config
from .._context import cached_config, given
from .._errors import UnsupportedError
from . import _ranks

# None before PyTorch 2.1, where nothing is compiled.
_compiler: Any = getattr(torch, "compiler", None)


def _untraced(function: Callable) -> Callable:
    """Not traced by torch.compile."""
    return _compiler.disable(function) if hasattr(_compiler, "disable") else function


def _constant(function: Callable) -> Callable:
    """Called by torch.compile while it traces; the result is a constant of the graph."""
    return _compiler.assume_constant_result(function) if hasattr(_compiler, "assume_constant_result") else function


# --- The two passes on tensors, without derivatives


def _rows(tensor: Tensor) -> Tensor:
    """The library wants the elements of a head side by side; gradients of sums, for one, are not."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _lse_like(q: Tensor) -> Tensor:
    dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    return q.new_empty((*q.shape[:-3], q.shape[-2], q.shape[-3]), dtype=dtype)


def _forward(
    q: Tensor, k: Tensor, v: Tensor, config: str, query_start: Optional[int], ranks: int
) -> Tuple[Tensor, Tensor]:
    _check_device(q)
    with torch.no_grad():
        out, lse = q.new_empty(q.shape), _lse_like(q)
        context = _ranks.context_of(config, q.device, ranks)
        context.forward(_rows(q), _rows(k), _rows(v), out=out, lse=lse, query_start=query_start)
        return out, lse


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
    ranks: int,
) -> Tuple[Tensor, Tensor, Tensor]:
    with torch.no_grad():
        d_out = torch.zeros_like(out) if d_out is None else _rows(d_out)
        context = _ranks.context_of(config, q.device, ranks)
        return context.backward(_rows(q), _rows(k), _rows(v), out, lse, d_out, d_lse=d_lse, query_start=query_start)


def _check_device(q: Tensor) -> None:
    if q.device.type not in ("cpu", "cuda"):
        raise UnsupportedError(f"q is on {q.device}; only the CPU and CUDA devices are possible")


# --- The derivative


class _Attention(torch.autograd.Function):
    """For versions of PyTorch without custom operators (before 2.4)."""

    @staticmethod
    def forward(ctx, q, k, v, config, query_start, ranks):
        out, lse = _forward(q, k, v, config, query_start, ranks)
        _keep(ctx, (q, k, v, config, query_start, ranks), (out, lse))
        return out, lse

    @staticmethod
    @once_differentiable
    def backward(ctx, d_out, d_lse):
        return _gradients(ctx, d_out, d_lse, _backward)


def _keep(ctx: Any, inputs: Tuple, output: Tuple) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[:3], *output)
    ctx.options = inputs[3:]


def _gradients(ctx: Any, d_out: Optional[Tensor], d_lse: Optional[Tensor], backward: Callable) -> Tuple:
    if d_out is None and d_lse is None:
        return (None,) * 6
    return (*backward(d_out, d_lse, *ctx.saved_tensors, *ctx.options), None, None, None)


def _make_operators() -> Callable:
    """Registers annulus::forward and annulus::backward, which torch.compile leaves in its graphs as they are."""
    forward = torch.library.custom_op("annulus::forward", _forward, mutates_args=())
    backward = torch.library.custom_op("annulus::backward", _backward, mutates_args=())

    @forward.register_fake
    def _(q, k, v, config, query_start, ranks):
        return q.new_empty(q.shape), _lse_like(q)

    @backward.register_fake
    def _(d_out, d_lse, q, k, v, out, lse, config, query_start, ranks):
        return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)

    def gradients(ctx, d_out, d_lse):
        return _gradients(ctx, d_out, d_lse, backward)

    forward.register_autograd(gradients, setup_context=lambda ctx, inputs, output: _keep(ctx, inputs, output))
    return forward


_attend: Callable = _make_operators() if hasattr(torch.library, "custom_op") else _Attention.apply


# --- The function


def _autocast_dtype(device: str) -> Optional[torch.dtype]:
    """The dtype that autocast asks for on a kind of device; None where it is off."""
    if hasattr(torch, "get_autocast_dtype"):
        return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    if device == "cpu":
        return torch.get_autocast_cpu_dtype() if torch.is_autocast_cpu_enabled() else None
    return torch.get_autocast_gpu_dtype() if torch.is_autocast_enabled() else None


def _cast(*tensors: Tensor) -> Tuple[Tensor, ...]:
    """As scaled_dot_product_attention under autocast: all but float64 becomes autocast's dtype."""
    dtype = _autocast_dtype(tensors[0].device.type)
    if dtype is None:
        return tensors
    return tuple(t.to(dtype) if t.is_floating_point() and t.dtype != torch.float64 else t for t in tensors)


@_constant
def config_text(branches: Any, options: dict) -> str:
    """What operators are given of branches with options."""
    return cached_config(branches, options)._text


_number_of = _untraced(_ranks.number_of)


def dilated_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    branches: Union[Config, Iterable[BranchLike]],
    *,
    causal: Optional[bool] = None,
    padding: Optional[str] = None,
    scale: Optional[float] = None,
    engine: Optional[str] = None,
    deterministic: Optional[bool] = None,
    allow_tf32: Optional[bool] = None,
    workspace_limit: Optional[int] = None,
    return_lse: bool = False,
    query_start: Optional[int] = None,
    process_group: Any = None,
    shards: Union[Sequence[int], str, None] = None,
) -> Any:
    """Dilated attention of q [B, Nq, H, D] over k and v [B, N, G, D], where G divides H; differentiable.

    branches: a list of (segment length, dilation), of annulus.Branch or of dicts with its fields, and causal to
        workspace_limit as the options of annulus.Config; or an annulus.Config, which has them all.
    return_lse: also return lse [B, H, Nq], the logarithm of the softmax's denominators, float32 (float64 for float64).
        Its gradient counts.
    query_start: the global position of q's first row, where q is a part of the N positions.
    process_group: each rank of this torch.distributed group holds a shard of the sequence in q, k, v and gets its shard
        of the result; gradients of q, k and v are those of the sum of all ranks' losses. Tensors are on a GPU each. An
        annulus.Comm does as well.
    shards: how many positions each rank holds, or "gather" to ask the group at each call; None: equally many.

    Returns out [B, Nq, H, D] in q's dtype, with return_lse (out, lse). The gradient is the true derivative, once
    differentiable. Under autocast q, k and v become autocast's dtype.
    """
    options = given(
        causal=causal,
        padding=padding,
        scale=scale,
        engine=engine,
        deterministic=deterministic,
        allow_tf32=allow_tf32,
        workspace_limit=workspace_limit,
    )
    text = branches._text if isinstance(branches, Config) and not options else config_text(branches, options)
    out, lse = attend(q, k, v, text, query_start, process_group, shards)
    return (out, lse) if return_lse else out


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    config: str,
    query_start: Optional[int] = None,
    process_group: Any = None,
    shards: Union[Sequence[int], str, None] = None,
) -> Tuple[Tensor, Tensor]:
    """(out, lse) of dilated_attention() for the text of a config."""
    ranks = 0 if process_group is None else _number_of(process_group, shards, q)
    return _attend(*_cast(q, k, v), config, query_start, ranks)
