# SPDX-License-Identifier: Apache-2.0
"""Where to compute: a config bound to a device."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Iterable, Literal, NoReturn, Sequence, Tuple, TypeVar, Union, overload

from . import _arrays, _capi, _estimates, _passes
from ._arguments import integer, name_of
from ._call_options import call_options, check_layout
from ._choices import EXCHANGES
from ._comm import Comm
from ._config import BranchLike, Config, config_of
from ._ending import check_not_ending
from ._errors import ArgumentError, check, made
from ._handle import ContextHandle, place_of
from ._shards import Shards, shards_of
from ._unknown import refuse
from .types import Engine, Exchange, Gradient, Layout, Pass

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .types import ProblemOptions

__all__ = ["Context", "Estimate", "Traffic"]

Array = TypeVar("Array")


@dataclasses.dataclass(frozen=True)
class Estimate:
    """What one pass of a problem costs one rank.

    pairs: (query, key) pairs over batch, heads and branches.
    flops: floating-point operations of the pass's matrix products.
    tensor_bytes: all arrays that the pass reads and writes.
    workspace_bytes: memory that the call needs besides its arrays.
    sent_bytes, received_bytes: messages to and from other ranks.
    plan_bytes: host memory of the plan itself.
    exchange: how the ranks would exchange rows, "ring" or "gather"; "auto" for one rank.
    received_messages: the number of messages with rows of K and V that the rank's shards receive. Messages with which
        a shard computes at once count as one.
    """

    pairs: float
    flops: float
    tensor_bytes: int
    workspace_bytes: int
    sent_bytes: int
    received_bytes: int
    plan_bytes: int
    exchange: Exchange
    received_messages: int


@dataclasses.dataclass(frozen=True)
class Traffic:
    """What the last call sent to and received from other ranks."""

    sent_bytes: int
    received_bytes: int


def _estimate_of(struct: Any) -> Estimate:
    """Makes an Estimate of the C API's annulus_estimate."""
    fields: dict[str, Any] = {field.name: getattr(struct, field.name) for field in dataclasses.fields(Estimate)}
    return Estimate(**{**fields, "exchange": name_of(struct.exchange, EXCHANGES)})


class Context:
    """A config bound to a device, with what calls have in common: memory, threads, cached plans.

    config: an annulus.Config, or a list of branches.
    device: "cpu", "cuda" (the first), "cuda:1".
    stream: the CUDA stream that calls are ordered on, as an address or an object of PyTorch or CuPy. None: the current
        stream of the library that q comes from.
    threads: how many CPU threads a call may use; 0: what ANNULUS_NUM_THREADS says, or one for each CPU that the
        process may use.
    comm: makes the calls collective over a communicator's ranks, each with its own shard of the sequence.
    shards: annulus.Shards, or a list with the number of positions of each rank; calls check them. A rank with several
        shards needs annulus.Shards. None: each rank has the positions that its arrays hold, any number of them, and
        workspace_size() assumes the shards of the last call, or shards of equal length.

    Calls from several threads wait for each other; threads with a context each compute at the same time. The GIL is
    released while a call computes. On CUDA a call does not wait for the device. On a CPU Ctrl-C ends a call of the main
    thread at once. The work then goes on in the background, and the arrays that the call writes may change until it is
    finished. Ctrl-C also breaks the communicator; over MPI it acts when the call returns, and breaks nothing.
    """

    def __init__(
        self,
        config: Union[Config, Iterable[BranchLike]],
        device: Any = "cpu",
        *,
        stream: Any = None,
        threads: int = 0,
        comm: Comm | None = None,
        shards: Shards | Sequence[int] | None = None,
    ) -> None:
        check_not_ending()
        config = config if isinstance(config, Config) else Config(config)
        place = place_of(device)
        if not isinstance(comm, (Comm, type(None))):
            raise ArgumentError(f"comm is {comm!r}; it must be an annulus.Comm, one rank's end of a communicator")
        rank_shards = shards_of(shards)
        if rank_shards is not None and comm is None:
            raise ArgumentError(f"shards is {shards}; it needs comm, the communicator whose ranks hold them")
        self._handle = ContextHandle(config._handle, config._reach, place, comm=comm, stream=stream, threads=threads)
        self.comm = comm
        if rank_shards is not None and comm is not None:
            check(_capi.annulus_context_set_shards(self._handle.pointer, rank_shards._struct(comm.size)))

    @property
    def config(self) -> Config:
        """What the context computes."""
        with self._handle.lock:
            return config_of(_capi.annulus_context_copy_config(self._handle.pointer))

    @property
    def device(self) -> str:
        """ "cpu", or "cuda:" with a number."""
        return self._handle.device

    @overload
    def forward(
        self,
        q: Array,
        k: Any,
        v: Any,
        *,
        out: Any = None,
        lse: Any = None,
        return_lse: Literal[True] = True,
        query_start: int | None = None,
        sequence_starts: Any = None,
        sequence_lengths: Any = None,
        layout: Layout | None = None,
    ) -> Tuple[Array, Array]: ...

    @overload
    def forward(
        self,
        q: Array,
        k: Any,
        v: Any,
        *,
        out: Any = None,
        lse: Any = None,
        return_lse: Literal[False],
        query_start: int | None = None,
        sequence_starts: Any = None,
        sequence_lengths: Any = None,
        layout: Layout | None = None,
    ) -> Array: ...

    @overload
    def forward(
        self,
        q: Any,
        k: Any,
        v: Any,
        *,
        out: Any = None,
        lse: Any = None,
        return_lse: bool,
        query_start: int | None = None,
        sequence_starts: Any = None,
        sequence_lengths: Any = None,
        layout: Layout | None = None,
    ) -> Any: ...

    def forward(
        self,
        q: Any,
        k: Any,
        v: Any,
        *,
        out: Any = None,
        lse: Any = None,
        return_lse: bool = True,
        query_start: int | None = None,
        sequence_starts: Any = None,
        sequence_lengths: Any = None,
        layout: Layout | None = None,
        **unknown: NoReturn,
    ) -> Any:
        """Computes the attention of q [B, Nq, H, D] over k and v [B, N, G, D].

        query_start: the global position of q's first row, if q has a part of the N positions; None: q has all of them.
        sequence_starts, sequence_lengths: the sequences that the N rows consist of; None: one for each batch entry.
            starts, as cu_seqlens elsewhere: sequence i has the rows starts[i] to starts[i + 1] - 1 of every batch
            entry, with lengths only the first lengths[i] of them. lengths alone: batch entry b is a sequence of its
            first lengths[b] rows. Segments are counted inside each sequence. Rows outside every sequence have out 0
            and lse -inf. Both are lists, NumPy arrays or CPU tensors of integers.
        out, lse: arrays to write to, [B, Nq, H, D] of q's dtype and [B, H, Nq] of float32 (float64 for float64).
        layout: "bnhd", the axes above; "bhnd": q, k, v and out are [B, H, N, D], as those of PyTorch's
            scaled_dot_product_attention(). Neither is copied. None: "bnhd", with a warning if k looks like [B, H, N,
            D]. lse is [B, H, Nq] in both. Messages name axes by these letters.

        Returns (out, lse), or out alone if return_lse is false; new arrays are of q's library. The axis B may be left
        out of all arrays together.
        """
        if unknown:
            refuse("Context.forward()", unknown)
        check_layout(layout, k)
        options = call_options(query_start, sequence_starts, sequence_lengths)
        results = _passes.forward(self._handle, q, k, v, out, lse, return_lse or lse is not None, options, layout)
        return results if return_lse else results[0]

    def backward(
        self,
        q: Array,
        k: Any,
        v: Any,
        out: Any,
        lse: Any,
        d_out: Any,
        *,
        d_lse: Any = None,
        d_q: Any = None,
        d_k: Any = None,
        d_v: Any = None,
        add: Iterable[Gradient] = (),
        query_start: int | None = None,
        sequence_starts: Any = None,
        sequence_lengths: Any = None,
        layout: Layout | None = None,
        **unknown: NoReturn,
    ) -> Tuple[Array, Array, Array]:
        """Computes the gradients of forward(): of q [B, Nq, H, D], and of k and v [B, N, G, D].

        q, k, v, out, lse: the arrays of a forward call with the same config, query_start and sequences.
        d_out: the gradient of out. d_lse: the gradient of lse [B, H, Nq], or None.
        d_q, d_k, d_v: arrays to write to, each of q's dtype, or of float32 if q is bfloat16 or float16.
        add: names of gradients, such as ("d_k", "d_v"), that are added to their arrays, with one rounding. All other
            arrays are overwritten.
        layout: the layout of all arrays but lse and d_lse, as forward() takes it.

        Returns (d_q, d_k, d_v).
        """
        if unknown:
            refuse("Context.backward()", unknown)
        check_layout(layout, k)
        add = tuple(add)
        for name, array in (("d_q", d_q), ("d_k", d_k), ("d_v", d_v)):
            if array is None and name in add:
                raise ArgumentError(f"add has {name!r}, and {name} is None; it must be the array that is added to")
        options = call_options(query_start, sequence_starts, sequence_lengths, add)
        return _passes.backward(self._handle, (q, k, v, out, lse, d_out), d_lse, (d_q, d_k, d_v), options, layout)

    def attention_mass(
        self,
        q: Array,
        k: Any,
        lse: Any = None,
        *,
        mass: Any = None,
        query_start: int | None = None,
        sequence_starts: Any = None,
        sequence_lengths: Any = None,
        layout: Layout | None = None,
        **unknown: NoReturn,
    ) -> Array:
        """Computes how much each key is attended to: mass [B, H, N], the sum over the queries of their probabilities.

        q [B, Nq, H, D], k [B, N, G, D], lse [B, H, Nq]: the arrays of a forward call with the same config, query_start
            and sequences. Without lse a forward call computes it first, and its output is dropped.
        query_start: the global position of q's first row, if q has a part of the N positions. With one row, the mass
            is that query's probabilities.
        mass: an array to write to, float32 (float64 for float64); None: a new one of q's library.
        sequence_starts, sequence_lengths, layout: as forward() takes them.

        Returns mass. A head's mass adds up to the number of queries that attend to any key, less the probabilities that
        zero_keys padding takes; mass.mean(-2) is the mean over the heads. It costs about as much as a forward call.
        bfloat16 and float16 probabilities may be rounded once before they are added in float32. With a communicator the
        sum is over the queries of all ranks, and each rank gets the mass of its own keys.
        """
        if unknown:
            refuse("Context.attention_mass()", unknown)
        check_layout(layout, k)
        options = call_options(query_start, sequence_starts, sequence_lengths)
        return _passes.attention_mass(self._handle, _arrays.view("q", q), k, lse, mass, options, layout)

    def merge(self, parts: Iterable[Tuple[Any, Any]], *, out: Any = None, lse: Any = None) -> Tuple[Any, Any]:
        """Merges results over different keys into the result of one call over all keys; see annulus.merge().

        Does not read the config. With a communicator each rank merges its own rows, alone.
        """
        return _passes.merge(self._handle, _passes.views_of_parts(parts), out, lse)

    def estimate(
        self,
        length: int,
        heads: int,
        head_dim: int,
        *,
        pass_: Pass = "forward",
        branch: int | None = None,
        **problem: Unpack[ProblemOptions],
    ) -> Estimate:
        """Returns what a pass costs on a sequence of `length` positions, without its data.

        pass_: "forward", "backward" or "mass", the pass of attention_mass(). branch: counts only the pairs and flops of
        that branch. With a communicator `length` counts the positions of all ranks, and the costs are this rank's.

        problem: kv_heads (default: heads), batch (1), dtype ("float32"), query_start (None: the queries are all
        positions), query_length (None: up to the end), sequence_starts and sequence_lengths as forward() takes them,
        add as backward() takes it, gradient_dtype (None: dtype; "float32" if one of d_q, d_k and d_v is) and
        row_alignment: every row of the call's arrays begins at a multiple of that number of bytes (0: not known; see
        annulus_problem in annulus/attention.h).
        """
        return _estimate_of(_estimates.estimate(self._handle, pass_, length, heads, head_dim, branch, **problem))

    def estimate_rank(
        self,
        length: int,
        heads: int,
        head_dim: int,
        *,
        ranks: int,
        rank: int,
        shards: Shards | Sequence[int] | None = None,
        pass_: Pass = "forward",
        **problem: Unpack[ProblemOptions],
    ) -> Estimate:
        """Returns what rank `rank` of `ranks` computes, needs, sends and receives; needs no communicator. shards:
        annulus.Shards, or each rank's length; None: as equal as can be. All else as estimate() takes it."""
        ranks, rank = integer("ranks", ranks, 32), integer("rank", rank, 32)
        cut = shards_of(shards)
        struct = _capi.annulus_shards(ranks, 0, None, None) if cut is None else cut._struct(ranks)
        found = _estimates.estimate_rank(self._handle, pass_, length, heads, head_dim, struct, rank, **problem)
        return _estimate_of(found)

    def workspace_size(
        self, length: int, heads: int, head_dim: int, *, pass_: Pass = "forward", **problem: Unpack[ProblemOptions]
    ) -> int:
        """Returns the bytes of memory that a call needs besides its arrays; arguments as estimate()."""
        return _estimates.workspace_size(self._handle, pass_, length, heads, head_dim, **problem)

    def select_engine(
        self, length: int, heads: int, head_dim: int, *, pass_: Pass = "forward", **problem: Unpack[ProblemOptions]
    ) -> str:
        """Returns the engine that would compute a call whose rows are aligned to row_alignment bytes and no more; 0:
        whose rows suit every engine. Arguments as estimate()."""
        return _estimates.select_engine(self._handle, pass_, length, heads, head_dim, **problem)

    def why_not(
        self,
        engine: Engine,
        length: int,
        heads: int,
        head_dim: int,
        *,
        pass_: Pass = "forward",
        **problem: Unpack[ProblemOptions],
    ) -> str | None:
        """Returns why `engine` cannot compute a call, with all other options as in the config, or None if it can.
        Arguments as select_engine()."""
        return _estimates.why_not(self._handle, engine, pass_, length, heads, head_dim, **problem)

    def set_workspace(self, memory: Any, bytes: int | None = None) -> None:
        """Makes calls use this memory instead of allocating: a contiguous array on the context's device, or an address
        with `bytes`. The context keeps the array. None: calls allocate again."""
        self._handle.set_workspace(memory, bytes)

    @property
    def threads(self) -> int:
        """How many CPU threads a call may use now: the number that was set, or the default. 1 on a CUDA device."""
        with self._handle.lock:
            return made(_capi.annulus_context_get_threads(self._handle.pointer))

    @property
    def last_engine(self) -> str:
        """The engine that computed the last call; "auto" before the first."""
        with self._handle.lock:
            return _capi.annulus_engine_name(made(_capi.annulus_context_last_engine(self._handle.pointer)))

    @property
    def last_traffic(self) -> Traffic:
        """What the last call sent to and received from other ranks."""
        traffic = _capi.annulus_traffic()
        with self._handle.lock:
            check(_capi.annulus_context_last_traffic(self._handle.pointer, traffic))
        return Traffic(traffic.sent_bytes, traffic.received_bytes)

    def __repr__(self) -> str:
        return f"<annulus.Context on {self.device}: {self.config!r}>"

    def __reduce__(self) -> Any:
        """Copies, also by pickle, have the same config, device and number of threads, and memory of their own."""
        for name in ("comm", "stream", "workspace"):
            if getattr(self._handle, name) is not None:
                raise TypeError(
                    f"a Context with {name} given cannot be pickled or copied, for that belongs to this process; pickle "
                    "its config, and make a Context of it where it is to be used"
                )
        return _copied, (self.config, self.device, self._handle.threads)


def _copied(config: Config, device: str, threads: int) -> Context:
    return Context(config, device, threads=threads)
