# SPDX-License-Identifier: Apache-2.0
"""What a pass over a problem would cost, and which engine would compute it: questions that need no arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Iterable, List, Tuple

from . import _capi
from ._arguments import integer, pick
from ._arrays import DTYPES
from ._call_options import call_options
from ._choices import ENGINES, PASSES
from ._errors import Error, UnsupportedError, check, failure, made
from ._handle import ContextHandle
from .types import Dtype, Engine, Gradient, Pass

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .types import ProblemOptions


def _problem(
    length: int,
    heads: int,
    head_dim: int,
    *,
    kv_heads: int | None = None,
    batch: int = 1,
    dtype: Dtype = "float32",
    query_start: int | None = None,
    query_length: int | None = None,
    sequence_starts: Any = None,
    sequence_lengths: Any = None,
    add: Iterable[Gradient] = (),
    gradient_dtype: Dtype | None = None,
    row_alignment: int = 0,
) -> Any:
    """Makes the C API's annulus_problem of the arguments of Context.estimate()."""
    problem = _capi.annulus_problem()
    problem.dtype = pick("dtype", dtype, DTYPES)
    problem.heads = integer("heads", heads, 32)
    problem.kv_heads = problem.heads if kv_heads is None else integer("kv_heads", kv_heads, 32)
    problem.head_dim = integer("head_dim", head_dim, 32)
    problem.batch = integer("batch", batch)
    problem.sequence_length = integer("length", length)
    if query_length is not None:
        problem.query_length = integer("query_length", query_length)
    elif query_start is not None:
        problem.query_length = problem.sequence_length - integer("query_start", query_start)
    problem.options = call_options(query_start, sequence_starts, sequence_lengths, tuple(add)).struct()
    if gradient_dtype is not None:
        problem.gradient_dtype = pick("gradient_dtype", gradient_dtype, DTYPES)
    problem.row_alignment = integer("row_alignment", row_alignment)
    return problem


def estimate(
    handle: ContextHandle,
    pass_: Pass,
    length: int,
    heads: int,
    head_dim: int,
    branch: int | None = None,
    **problem: Unpack[ProblemOptions],
) -> Any:
    """Returns the C API's annulus_estimate of a pass; branch: as Context.estimate() takes it."""
    found = _capi.annulus_estimate()
    index = _capi.ANNULUS_ALL_BRANCHES if branch is None else integer("branch", branch, 32)
    which, sizes = pick("pass_", pass_, PASSES), _problem(length, heads, head_dim, **problem)
    with handle.lock:
        check(_capi.annulus_estimate_problem(handle.pointer, sizes, which, index, found))
    return found


def estimate_rank(
    handle: ContextHandle,
    pass_: Pass,
    length: int,
    heads: int,
    head_dim: int,
    shards: Any,
    rank: int,
    **problem: Unpack[ProblemOptions],
) -> Any:
    """Returns the C API's annulus_estimate of one rank's part of a pass. shards: the C API's annulus_shards."""
    found = _capi.annulus_estimate()
    which, sizes = pick("pass_", pass_, PASSES), _problem(length, heads, head_dim, **problem)
    with handle.lock:
        check(_capi.annulus_estimate_rank(handle.pointer, sizes, which, shards, rank, found))
    return found


def balance_shards(
    handle: ContextHandle, length: int, heads: int, ranks: int, **problem: Unpack[ProblemOptions]
) -> Tuple[List[int], List[int]]:
    """Returns the lengths and the owners of balanced shards."""
    sizes = _problem(length, heads, 8, **problem)
    with handle.lock:
        status, lengths, owners = _capi.annulus_balance_shards(handle.pointer, sizes, ranks)
    check(status)
    return lengths, owners


def workspace_size(
    handle: ContextHandle, pass_: Pass, length: int, heads: int, head_dim: int, **problem: Unpack[ProblemOptions]
) -> int:
    """Returns the bytes of workspace that a call needs."""
    which, sizes = pick("pass_", pass_, PASSES), _problem(length, heads, head_dim, **problem)
    with handle.lock:
        return made(_capi.annulus_workspace_size(handle.pointer, sizes, which))


def select_engine(
    handle: ContextHandle, pass_: Pass, length: int, heads: int, head_dim: int, **problem: Unpack[ProblemOptions]
) -> str:
    """Returns the name of the engine that would compute a call."""
    which, sizes = pick("pass_", pass_, PASSES), _problem(length, heads, head_dim, **problem)
    with handle.lock:
        return _capi.annulus_engine_name(made(_capi.annulus_select_engine(handle.pointer, sizes, which)))


def why_not(
    handle: ContextHandle,
    engine: Engine,
    pass_: Pass,
    length: int,
    heads: int,
    head_dim: int,
    **problem: Unpack[ProblemOptions],
) -> str | None:
    """Returns why an engine cannot compute a call, or None if it can."""
    which, wanted = pick("pass_", pass_, PASSES), pick("engine", engine, ENGINES)
    sizes = _problem(length, heads, head_dim, **problem)
    with handle.lock:
        error: Error | None = failure(_capi.annulus_check_engine(handle.pointer, sizes, which, wanted))
    if isinstance(error, UnsupportedError):
        return str(error)
    if error is not None:
        raise error
    return None
