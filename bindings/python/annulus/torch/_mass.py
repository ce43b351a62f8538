# SPDX-License-Identifier: Apache-2.0
"""The attention mass of keys, for PyTorch."""

from typing import Any, Iterable, Literal, NoReturn, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor

from .._cache import given
from .._call_options import check_layout
from .._config import BranchLike, Config
from .._errors import ArgumentError, UnsupportedError
from .._shards import Shards
from .._unknown import refuse
from ..types import Engine, KeyRule, Layout, Padding
from . import _gathered, _ranks
from ._functional import _cast, _check, _exchanged, _numbers, _rows, _untraced, check_tensor, config_text


@_untraced
def attention_mass(
    q: Tensor,
    k: Tensor,
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
    lse: Optional[Tensor] = None,
    query_start: Optional[int] = None,
    sequence_starts: Any = None,
    sequence_lengths: Any = None,
    process_group: Any = None,
    shards: Union[Shards, Sequence[int], Literal["balanced", "gather"], None] = None,
    layout: Optional[Layout] = None,
    **unknown: NoReturn,
) -> Tensor:
    """Computes how much each key is attended to: mass [B, H, N], the sum over the queries of their probabilities.

        out, lse = dilated_attention(q, k, v, branches, return_lse=True)
        mass = attention_mass(q, k, branches, lse=lse)
        class_token_mass = attention_mass(q[:, :1], k, branches, query_start=0)

    lse: the lse of dilated_attention() with the same q, k, branches, options, query_start and sequences. None: a
        forward call computes it first, and its output is dropped.
    query_start: the global position of q's first row, if q has a part of the N positions.
    All else is as dilated_attention() takes it. With process_group the sum is over the queries of all ranks. Each rank
    passes the lse of its own queries, and gets the mass of its own keys.

    Returns float32 (float64 for float64), without a gradient. A head's mass adds up to the number of queries that
    attend to any key, less the probabilities that zero_keys padding takes. mass.mean(-2) is the mean over the heads.
    """
    if unknown:
        refuse("annulus.torch.attention_mass()", unknown)
    check_layout(layout, k)
    if layout == "bhnd":
        q, k = _exchanged("q", q), _exchanged("k", k)
    for name, tensor in (("q", q), ("k", k)):
        _check(name, tensor, q)
    if process_group is None and shards is not None:
        raise ArgumentError(f"shards is {shards!r}; it needs process_group, the ranks that hold them")
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
    text = config_text(branches, options)
    starts, lengths = _numbers("sequence_starts", sequence_starts), _numbers("sequence_lengths", sequence_lengths)
    with torch.no_grad():
        if q.device.type == "cpu" and _ranks.is_group(process_group):
            if query_start is not None:
                raise UnsupportedError("query_start with a process group and tensors on the CPU; leave one of them out")
            if lse is not None:
                check_tensor("lse", lse)
            return _gathered.mass_gathered(_compute_mass, q, k, text, lse, process_group, shards, starts, lengths)
        ranks = 0 if process_group is None else _ranks.number_of(process_group, shards, q, text, (starts, lengths))
        return _compute_mass(q, k, text, lse, query_start, starts, lengths, ranks)


def _compute_mass(
    q: Tensor,
    k: Tensor,
    config: str,
    lse: Optional[Tensor],
    query_start: Optional[int],
    sequence_starts: Optional[Sequence[int]],
    sequence_lengths: Optional[Sequence[int]],
    ranks: int = 0,
) -> Tensor:
    q, k = (_rows(tensor) for tensor in _cast(q, k))
    mass: Tensor = _ranks.context_of(config, q.device, ranks).attention_mass(
        q,
        k,
        lse,
        query_start=query_start,
        sequence_starts=sequence_starts,
        sequence_lengths=sequence_lengths,
        layout="bnhd",
    )
    return mass
