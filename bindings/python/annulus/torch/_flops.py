# SPDX-License-Identifier: Apache-2.0
"""The number of floating-point operations of the operators, for torch.utils.flop_counter.FlopCounterMode."""

from __future__ import annotations

from typing import Any, Sequence

import torch

from .._arrays import CPU
from .._cache import cached_context
from .._config import from_text
from ..types import Pass
from . import _ranks


def _flops(
    pass_: Pass,
    q: Sequence[int],
    k: Sequence[int],
    config: str,
    query_start: int | None,
    starts: Sequence[int] | None,
    lengths: Sequence[int] | None,
    ranks: int,
) -> int:
    """Returns the FLOPs of a call on tensors of these shapes. On a rank with several shards, adds up its shards."""
    # The count does not depend on the engine, and a context on a CPU cannot have the engines of CUDA.
    context = cached_context(from_text(config).replace(engine="auto"), CPU)
    heads, head_dim = q[-2:]
    batch = q[0] if len(q) == 4 else 1
    if ranks:
        length, windows = _ranks.rows_of(ranks)
    else:
        length, windows = k[-3], [slice(query_start or 0, (query_start or 0) + q[-3])]
    return round(
        sum(
            context.estimate(
                length,
                heads,
                head_dim,
                pass_=pass_,
                kv_heads=k[-2],
                batch=batch,
                query_start=window.start,
                query_length=window.stop - window.start,
                sequence_starts=starts,
                sequence_lengths=lengths,
            ).flops
            for window in windows
            if window.stop > window.start
        )
    )


def _forward_flops(
    q: Any, k: Any, v: Any, config: str, query_start: Any, starts: Any, lengths: Any, ranks: int, **_: Any
) -> int:
    return _flops("forward", q, k, config, query_start, starts, lengths, ranks)


def _backward_flops(
    d_out: Any,
    d_lse: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
    config: str,
    query_start: Any,
    starts: Any,
    lengths: Any,
    ranks: int,
    **_: Any,
) -> int:
    return _flops("backward", q, k, config, query_start, starts, lengths, ranks)


def _listed(numbers: Any) -> Any:
    return None if numbers is None else numbers.tolist()


def _forward_flops_of_sequences(
    q: Any, k: Any, v: Any, config: str, query_start: Any, starts: Any, lengths: Any, **_: Any
) -> int:
    return _flops("forward", q.shape, k.shape, config, query_start, _listed(starts), _listed(lengths), 0)


def _backward_flops_of_sequences(
    d_out: Any,
    d_lse: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
    config: str,
    query_start: Any,
    starts: Any,
    lengths: Any,
    **_: Any,
) -> int:
    return _flops("backward", q.shape, k.shape, config, query_start, _listed(starts), _listed(lengths), 0)


def register() -> None:
    """Registers the formulas by which FlopCounterMode counts the operators."""
    from torch.utils.flop_counter import register_flop_formula

    operators = torch.ops.annulus
    register_flop_formula(operators.forward)(_forward_flops)
    register_flop_formula(operators.backward)(_backward_flops)
    # These get tensors, not shapes: the count depends on the numbers.
    register_flop_formula(operators.forward_of_sequences, get_raw=True)(_forward_flops_of_sequences)
    register_flop_formula(operators.backward_of_sequences, get_raw=True)(_backward_flops_of_sequences)
