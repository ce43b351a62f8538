# SPDX-License-Identifier: Apache-2.0
"""Functions that need no context: attention, attention mass, and the merge of results over different keys."""

from __future__ import annotations

from typing import Any, Iterable, Literal, NoReturn, Tuple, TypeVar, Union, overload

from . import _arrays, _passes
from ._cache import cached_config, cached_context, given
from ._call_options import call_options, check_layout
from ._config import BranchLike, Config
from ._unknown import refuse
from .types import Engine, KeyRule, Layout, Padding

__all__ = ["attention", "attention_mass", "lse_of_flash_attention", "merge"]

Array = TypeVar("Array")


@overload
def attention(
    q: Array,
    k: Any,
    v: Any,
    branches: Union[Config, Iterable[BranchLike], None] = None,
    *,
    causal: bool | None = None,
    padding: Padding | None = None,
    key_rule: KeyRule | None = None,
    head_shard: Tuple[int, int] | None = None,
    scale: float | None = None,
    engine: Engine | None = None,
    allow_tf32: bool | None = None,
    workspace_limit: int | None = None,
    return_lse: Literal[False] = False,
    out: Any = None,
    lse: Any = None,
    query_start: int | None = None,
    sequence_starts: Any = None,
    sequence_lengths: Any = None,
    layout: Layout | None = None,
) -> Array: ...


@overload
def attention(
    q: Array,
    k: Any,
    v: Any,
    branches: Union[Config, Iterable[BranchLike], None] = None,
    *,
    causal: bool | None = None,
    padding: Padding | None = None,
    key_rule: KeyRule | None = None,
    head_shard: Tuple[int, int] | None = None,
    scale: float | None = None,
    engine: Engine | None = None,
    allow_tf32: bool | None = None,
    workspace_limit: int | None = None,
    return_lse: Literal[True],
    out: Any = None,
    lse: Any = None,
    query_start: int | None = None,
    sequence_starts: Any = None,
    sequence_lengths: Any = None,
    layout: Layout | None = None,
) -> Tuple[Array, Array]: ...


@overload
def attention(
    q: Any,
    k: Any,
    v: Any,
    branches: Union[Config, Iterable[BranchLike], None] = None,
    *,
    causal: bool | None = None,
    padding: Padding | None = None,
    key_rule: KeyRule | None = None,
    head_shard: Tuple[int, int] | None = None,
    scale: float | None = None,
    engine: Engine | None = None,
    allow_tf32: bool | None = None,
    workspace_limit: int | None = None,
    return_lse: bool,
    out: Any = None,
    lse: Any = None,
    query_start: int | None = None,
    sequence_starts: Any = None,
    sequence_lengths: Any = None,
    layout: Layout | None = None,
) -> Any: ...


def attention(
    q: Any,
    k: Any,
    v: Any,
    branches: Union[Config, Iterable[BranchLike], None] = None,
    *,
    causal: bool | None = None,
    padding: Padding | None = None,
    key_rule: KeyRule | None = None,
    head_shard: Tuple[int, int] | None = None,
    scale: float | None = None,
    engine: Engine | None = None,
    allow_tf32: bool | None = None,
    workspace_limit: int | None = None,
    return_lse: bool = False,
    out: Any = None,
    lse: Any = None,
    query_start: int | None = None,
    sequence_starts: Any = None,
    sequence_lengths: Any = None,
    layout: Layout | None = None,
    **unknown: NoReturn,
) -> Any:
    """Dilated attention of q [B, Nq, H, D] over k and v [B, N, G, D], where G divides H.

        out = annulus.attention(q, k, v, branches=[(2048, 1), (8192, 4)], causal=True)

    branches: a list of (segment length, dilation), of annulus.Branch or of dicts with its fields, and causal to
        workspace_limit as the options of annulus.Config; or an annulus.Config, which has them all.
    return_lse: return (out, lse), with the logarithm of the softmax's denominators: lse [B, H, Nq], float32 (float64
        for float64).
    out, lse: arrays to write to. Without them results are new arrays of q's library.
    query_start: the global position of q's first row, if q has a part of the N positions (decoding against a cache).
    sequence_starts, sequence_lengths: the sequences that the N rows consist of, see Context.forward().
    layout: "bnhd", the axes above, or "bhnd": q, k, v and out are [B, heads, N, D], as those of PyTorch's
        scaled_dot_product_attention(). Neither is copied. None: "bnhd", with a warning if k looks like [B, heads, N,
        D]. LSE is [B, H, Nq] in both.

    Takes arrays of NumPy, PyTorch, CuPy and JAX, and all others with __dlpack__, __cuda_array_interface__ or a buffer.
    They are float64, float32, bfloat16 or float16, and are not copied. The stride of D must be 1, all other strides may
    be any. The axis B may be left out of all arrays together. The call uses the device and the CUDA stream of the
    inputs. The result has no gradient; annulus.torch.dilated_attention() has one.
    """
    if unknown:
        refuse("annulus.attention()", unknown)
    check_layout(layout, k)
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
    config = cached_config(branches, options)
    with_lse = return_lse or lse is not None
    q, place = _passes.located(q)
    results = _passes.forward(
        cached_context(config, place)._handle,
        q,
        k,
        v,
        out,
        lse,
        with_lse,
        call_options(query_start, sequence_starts, sequence_lengths),
        layout,
    )
    return results if return_lse else results[0]


def attention_mass(
    q: Array,
    k: Any,
    branches: Union[Config, Iterable[BranchLike], None] = None,
    *,
    causal: bool | None = None,
    padding: Padding | None = None,
    key_rule: KeyRule | None = None,
    head_shard: Tuple[int, int] | None = None,
    scale: float | None = None,
    engine: Engine | None = None,
    allow_tf32: bool | None = None,
    workspace_limit: int | None = None,
    lse: Any = None,
    mass: Any = None,
    query_start: int | None = None,
    sequence_starts: Any = None,
    sequence_lengths: Any = None,
    layout: Layout | None = None,
    **unknown: NoReturn,
) -> Array:
    """Computes how much each key is attended to: mass [B, H, N], the sum over the queries of their probabilities.

        out, lse = annulus.attention(q, k, v, branches, return_lse=True)
        mass = annulus.attention_mass(q, k, branches, lse=lse)
        class_token_mass = annulus.attention_mass(q[:, :1], k, branches, query_start=0)

    q, k, lse, mass, query_start, sequence_starts, sequence_lengths, layout: as Context.attention_mass() takes them.
    branches, causal to workspace_limit: as annulus.attention() takes them.
    """
    if unknown:
        refuse("annulus.attention_mass()", unknown)
    check_layout(layout, k)
    config = cached_config(
        branches,
        given(
            causal=causal,
            padding=padding,
            key_rule=key_rule,
            head_shard=head_shard,
            scale=scale,
            engine=engine,
            allow_tf32=allow_tf32,
            workspace_limit=workspace_limit,
        ),
    )
    view = _arrays.view("q", q)
    options = call_options(query_start, sequence_starts, sequence_lengths)
    return _passes.attention_mass(cached_context(config, view.device)._handle, view, k, lse, mass, options, layout)


def merge(parts: Iterable[Tuple[Any, Any]], *, out: Any = None, lse: Any = None) -> Tuple[Any, Any]:
    """Merges results over different keys, for the same queries, into the result of one softmax over all the keys.

        near = annulus.attention(q, k, v, [(2048, 1)], return_lse=True)
        far = annulus.attention(q, other_k, other_v, [(0, 8)], return_lse=True)
        out, lse = annulus.merge([near, far])

    parts: pairs (out [B, Nq, H, D], lse [B, H, Nq]), at most 48. LSE is of natural logarithms. If a row's LSE is -inf,
        the part counts for nothing in that row, whatever its out holds.
    out, lse: arrays to write to, which may be a part's. Without them results are new arrays of the library of the first
        part.

    Returns (out, lse). A key that is in two parts counts twice. Gradients: Context.backward() on a part, with the
    merged out and lse, gives the gradients of the part's keys and values and its summand of q's gradient.
    annulus.torch.merge() is differentiable.
    """
    views = _passes.views_of_parts(parts)
    any_config = cached_config([(0, 1)], {})  # merging does not read the config
    return _passes.merge(cached_context(any_config, views[0][0].device)._handle, views, out, lse)


def lse_of_flash_attention(lse: Array) -> Array:
    """Makes the LSE of FlashAttention-2 ready for merge(): replaces +inf, its value for rows without keys, by -inf.

        out, lse, _ = flash_attn_func(q, k, v, return_attn_probs=True)
        out, lse = annulus.torch.merge([(out, annulus.lse_of_flash_attention(lse)), far])

    lse: an array of NumPy, PyTorch, CuPy or JAX. Returns a new array. Also replaces a true LSE of +inf, which comes from
    scores that overflow.
    """
    array: Any = lse
    result: Array = _arrays.library_of(array).where(array == float("inf"), -array, array)
    return result
