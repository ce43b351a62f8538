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
    sent_bytes, received_bytes: to and from other ranks.
    plan_bytes: host memory of the plan itself.
    exchange: what "auto" comes to; "auto" where there is one rank.
    """

    pairs: float
    flops: float
    tensor_bytes: int
    workspace_bytes: int
    sent_bytes: int
    received_bytes: int
    plan_bytes: int
    exchange: Exchange


@dataclasses.dataclass(frozen=True)
class Traffic:
    """What the last call sent to and received from other ranks."""

    sent_bytes: int
    received_bytes: int


def _estimate_of(struct: Any) -> Estimate:
    """Makes an Estimate of the C API's annulus_estimate."""
    names = [field.name for field in dataclasses.fields(Estimate) if field.name != "exchange"]
    numbers = {name: getattr(struct, name) for name in names}
    return Estimate(**numbers, exchange=name_of(struct.exchange, EXCHANGES))  # type: ignore[arg-type]


class Context:
    """A config bound to a device, with what calls have in common: memory, threads, cached plans.

    config: an annulus.Config, or a list of branches.
    device: "cpu", "cuda" (the first), "cuda:1".
    stream: the CUDA stream that calls are ordered on, as an address or an object of PyTorch or CuPy. None: the current
        stream of the library that q comes from.
    threads: how many CPU threads a call may use; 0: what ANNULUS_NUM_THREADS says, or one for each CPU that the
        process may use.
    comm: makes the calls collective over a communicator's ranks, each with its own shard of the sequence.
    shards: annulus.Shards, which a rank with several needs, or the number of positions of each rank, which calls then
        check; None: each has what its arrays hold, of any lengths. workspace_size() knows of no others than these, or
        equal ones.

    Calls from several threads wait for each other; contexts of their own let threads compute at the same time. The GIL
    is released while a call computes. On CUDA a call does not wait for the device. On a CPU Ctrl-C ends a call of the
    main thread at once; what was begun is finished in the background, so the arrays that the call writes may change
    until then. With a communicator Ctrl-C breaks that (MPI's excepted, where it acts when the call returns).
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

        query_start: the global position of q's first row, where q is a part of the N positions; None: it is all.
        sequence_starts, sequence_lengths: the sequences that the N rows consist of; None: one for each batch entry.
            starts, as cu_seqlens elsewhere: sequence i has the rows starts[i] to starts[i + 1] - 1 of every batch
            entry, with lengths only the first lengths[i] of them. lengths alone: batch entry b is a sequence of its
            first lengths[b] rows. Branches count inside each sequence; rows of none have out 0 and lse -inf. Lists,
            NumPy arrays or CPU tensors of integers.
        out, lse: arrays to write to, [B, Nq, H, D] of q's dtype and [B, H, Nq] of float32 (float64 for float64).
        layout: "bnhd", as said here; "bhnd": q, k, v and out have their axes as scaled_dot_product_attention() has
            them, [B, H, N, D], and are used where they lie all the same; None: "bnhd", with a warning where that is
            hardly meant. lse is [B, H, Nq] in both. Messages name axes by these letters.

        Returns (out, lse), or out alone where return_lse is false; new arrays are of q's library. The axis B may be
        left out of all arrays together.
        """
        if unknown:
            refuse("Context.forward()", unknown)
        check_layout(layout, k)
        options = call_options(query_start, sequence_starts, sequence_lengths)
        with_lse = return_lse or lse is not None
        results = _passes.forward(self._handle, q, k, v, out, lse, with_lse, options, layout)
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

        q, k, v, out, lse: of a forward call with the same config, query_start and sequences. d_out: the gradient of out.
        d_lse: the gradient of lse [B, H, Nq], or None. d_q, d_k, d_v: arrays to write to, each of q's dtype or, where that
        is bfloat16 or float16, of float32. add: the names of those that the gradient is added to, with one rounding, such
        as ("d_k", "d_v"); the others are overwritten. layout: as forward() takes it, of all arrays but lse and d_lse.

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

        q [B, Nq, H, D], k [B, N, G, D], lse [B, H, Nq]: of a forward call with the same config, query_start and
            sequences. lse None: it is computed first, by a forward call whose output is not kept.
        query_start: the queries are those of q alone, a part of the N positions: one row tells what it looks at.
        mass: an array to write to, float32 (float64 for float64); None: a new one of q's library.
        sequence_starts, sequence_lengths, layout: as forward() takes them.

        Returns mass. Of a head it adds up to the number of queries that attend to anything, less what zero_keys padding
        takes; over the heads take mass.mean(-2). It costs about as much as a forward call; bfloat16 and float16
        probabilities may be rounded once before they are added in float32. With a communicator the queries are those of
        all ranks, and each rank gets the mass of its own keys.
        """
        if unknown:
            refuse("Context.attention_mass()", unknown)
        check_layout(layout, k)
        options = call_options(query_start, sequence_starts, sequence_lengths)
        return _passes.attention_mass(self._handle, _arrays.view("q", q), k, lse, mass, options, layout)

    def merge(self, parts: Iterable[Tuple[Any, Any]], *, out: Any = None, lse: Any = None) -> Tuple[Any, Any]:
        """Merges results over different keys into those of one call over all of them; see annulus.merge().

        The config is not looked at. With a communicator each rank merges its own rows, alone.
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
        """What a pass costs on a sequence of `length` positions, without its data. pass_: "forward", "backward" or "mass",
        that of attention_mass(). branch: pairs and flops are that branch's share. With a communicator the sequence is
        that of all ranks, and the answer is for this one.

        problem: kv_heads (default: heads), batch (1), dtype ("float32"), query_start (None: the queries are all positions)
        and query_length (None: to the end), sequence_starts and sequence_lengths as forward() takes them, add as
        backward() takes it, gradient_dtype (None: dtype; "float32" where one of d_q, d_k and d_v is), and row_alignment:
        the bytes of which the address of every row of the call's arrays is a multiple (0: not known; see annulus_problem
        in annulus/attention.h).
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
        """What rank `rank` of `ranks` computes, needs, sends and receives; the context needs no communicator. shards:
        annulus.Shards, or each rank's length; None: as equal as can be. The rest as estimate()."""
        ranks, rank = integer("ranks", ranks, 32), integer("rank", rank, 32)
        found = shards_of(shards)
        struct = _capi.annulus_shards(ranks, 0, None, None) if found is None else found._struct(ranks)
        return _estimate_of(
            _estimates.estimate_rank(self._handle, pass_, length, heads, head_dim, struct, rank, **problem)
        )

    def workspace_size(
        self, length: int, heads: int, head_dim: int, *, pass_: Pass = "forward", **problem: Unpack[ProblemOptions]
    ) -> int:
        """The bytes of memory that a call needs besides its arrays; arguments as estimate()."""
        return _estimates.workspace_size(self._handle, pass_, length, heads, head_dim, **problem)

    def select_engine(
        self, length: int, heads: int, head_dim: int, *, pass_: Pass = "forward", **problem: Unpack[ProblemOptions]
    ) -> str:
        """The engine that would compute a call; arguments as workspace_size(). The call's arrays are as row_alignment says
        and no better; 0: as every engine takes them."""
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
        """Why `engine` cannot compute a call, with all else as the config says; None where it can. Arguments as
        select_engine()."""
        return _estimates.why_not(self._handle, engine, pass_, length, heads, head_dim, **problem)

    def set_workspace(self, memory: Any, bytes: int | None = None) -> None:
        """Makes calls use this memory instead of allocating: a contiguous array on the context's device, or an address
        with `bytes`. None: allocate again. An array is kept until then."""
        self._handle.set_workspace(memory, bytes)

    @property
    def threads(self) -> int:
        """How many CPU threads a call may use now: what was set, or what the default comes to. 1 on a CUDA device."""
        with self._handle.lock:
            return made(_capi.annulus_context_get_threads(self._handle.pointer))

    @property
    def last_engine(self) -> str:
        """The engine that served the last call; "auto" before the first."""
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
        """Copies, also by pickle, have the config, the device and the threads, and memory of their own."""
        handle = self._handle
        own = {
            "comm": self.comm is not None,
            "stream": not handle.follows_library,
            "workspace": handle.workspace is not None,
        }
        for name, is_given in own.items():
            if is_given:
                raise TypeError(
                    f"a Context with {name} given cannot be pickled or copied, for that belongs to this process; pickle "
                    "its config, and make a Context of it where it is to be used"
                )
        return _copied, (self.config, self.device, handle.threads)


def _copied(config: Config, device: str, threads: int) -> Context:
    return Context(config, device, threads=threads)
