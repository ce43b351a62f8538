# SPDX-License-Identifier: Apache-2.0
"""Types for checkers such as mypy: the words that arguments may be, and the dicts that functions take."""

from __future__ import annotations

from typing import Any, Iterable, Literal, Tuple, TypedDict, Union

__all__ = [
    "BranchDict",
    "ConfigChanges",
    "ConfigOptions",
    "DeviceKind",
    "Dtype",
    "Engine",
    "Exchange",
    "Gradient",
    "KeyRule",
    "Kind",
    "Layout",
    "Order",
    "Padding",
    "Pass",
    "Phase",
    "ProblemOptions",
    "Query",
]

Engine = Literal["auto", "reference", "cpu", "gemm", "fused", "mma"]
DeviceKind = Literal["cpu", "cuda"]
Phase = Literal["block", "interleave"]
Query = Literal["dilated", "residue", "every"]
Order = Literal["linear", "hilbert"]
Kind = Literal["segments", "window", "global"]
Padding = Literal["exact", "zero_keys"]
KeyRule = Literal["each_branch", "once"]
Exchange = Literal["auto", "ring", "gather"]
Dtype = Literal["float64", "float32", "bfloat16", "float16"]
Gradient = Literal["d_q", "d_k", "d_v"]
Pass = Literal["forward", "backward", "mass"]
# The axes of q, k, v, their gradients and out: [B, N, heads, D] or [B, heads, N, D].
Layout = Literal["bnhd", "bhnd"]


class _BranchLength(TypedDict):
    segment_length: int


class BranchDict(_BranchLength, total=False):
    """A Branch as a dict."""

    dilation: int
    heads: Union[Tuple[int, int], None]
    phase: Union[Phase, int]
    query: Query
    order: Order
    grid_width: int
    kind: Kind
    left: int
    right: int
    first_global: int
    global_count: int
    global_queries: bool


class ConfigOptions(TypedDict, total=False):
    """What annulus.Config takes beside branches."""

    causal: bool
    padding: Padding
    key_rule: KeyRule
    head_shard: Union[Tuple[int, int], None]
    scale: Union[float, None]
    engine: Engine
    allow_tf32: bool
    workspace_limit: int
    exchange: Exchange


class ConfigChanges(ConfigOptions, total=False):
    """What annulus.Config.replace() takes."""

    branches: Iterable[Any]


class ProblemOptions(TypedDict, total=False):
    """What Context.estimate() takes beside the sizes."""

    kv_heads: Union[int, None]
    batch: int
    dtype: Dtype
    query_start: Union[int, None]
    query_length: Union[int, None]
    sequence_starts: Any
    sequence_lengths: Any
    add: Iterable[Gradient]
    gradient_dtype: Union[Dtype, None]
    row_alignment: int
