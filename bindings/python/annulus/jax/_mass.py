# SPDX-License-Identifier: Apache-2.0
"""The attention mass of keys, for JAX."""

from __future__ import annotations

from typing import Any, Iterable, NoReturn, Tuple, Union

import jax

from .._arrays import exchanged, lse_dtype
from .._cache import given
from .._config import BranchLike, Config
from .._errors import ArgumentError
from .._unknown import refuse
from ..types import Engine, KeyRule, Layout, Padding
from . import _calls
from ._attention import call_of, check_array, checked_rows, with_batch


def attention_mass(
    q: Any,
    k: Any,
    branches: Union[Config, Iterable[BranchLike]],
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
    query_start: int | None = None,
    sequence_starts: Any = None,
    sequence_lengths: Any = None,
    layout: Layout | None = None,
    **unknown: NoReturn,
) -> Any:
    """Computes how much each key is attended to: mass [B, H, N], the sum over the queries of their probabilities.

        out, lse = attention(q, k, v, branches, return_lse=True)
        mass = attention_mass(q, k, branches, lse=lse)

    lse: the lse of attention() with the same q, k, branches, options, query_start and sequences. None: a forward call
        computes it first.
    All else is as attention() takes it.

    Returns float32 (float64 for float64), without a gradient.
    """
    if unknown:
        refuse("annulus.jax.attention_mass()", unknown)
    rows = checked_rows({"q": q, "k": k})
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
    call = call_of(q, k, branches, options, query_start, sequence_starts, sequence_lengths, layout)
    if lse is None:
        statistics = []
    else:
        check_array("lse", lse, 3)
        lse = jax.numpy.asarray(lse)
        shape = (exchanged(q.shape) if layout == "bhnd" else q.shape)[:-1]
        wanted, dtype = (*shape[:-2], shape[-1], shape[-2]), lse_dtype(rows[0].dtype.name)
        if (lse.shape, lse.dtype.name) != (wanted, dtype):
            raise ArgumentError(
                f"lse has shape {list(lse.shape)} and dtype {lse.dtype.name}; it must have {list(wanted)} and {dtype}, as "
                "attention() returns it"
            )
        statistics = [with_batch(lse, 3)]
    q_rows, k_rows, *statistics = map(jax.lax.stop_gradient, _calls.placed_alike([*rows, *statistics]))
    if not statistics:
        _, *statistics = _calls.forward(q_rows, k_rows, k_rows, call=call)
    (mass,) = _calls.mass(q_rows, k_rows, *statistics, call=call)
    return mass[0] if q.ndim == 3 else mass
