# SPDX-License-Identifier: Apache-2.0
"""Where to compute: contexts, and the one-call function over a cache of them."""

from __future__ import annotations

import dataclasses
import functools
import os
import threading
import weakref
from typing import TYPE_CHECKING, Any, Callable, Iterable, Literal, NamedTuple, NoReturn, Sequence, Tuple, TypeVar
from typing import Union, overload

from . import _arrays, _capi, _plain
from ._arguments import host_integers, integer, pick
from ._arrays import CPU, View
from ._comm import Comm
from ._config import ENGINES, BranchLike, Config, branch_of, config_of, listed
from ._ending import check_not_ending
from ._errors import ArgumentError, Error, UnsupportedError, check, failure, made
from ._mistakes import warn, warn_of_call
from ._shards import Shards, shards_of
from ._unknown import refuse
from .types import Dtype, Engine, Exchange, Gradient, KeyRule, Layout, Padding, Pass

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .types import ProblemOptions

__all__ = ["Context", "Estimate", "Traffic", "attention", "attention_mass", "lse_of_flash_attention", "merge"]

Array = TypeVar("Array")

_EXCHANGES: dict[int, Exchange] = {
    _capi.ANNULUS_EXCHANGE_AUTO: "auto",
    _capi.ANNULUS_EXCHANGE_RING: "ring",
    _capi.ANNULUS_EXCHANGE_GATHER: "gather",
}


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


def _read(kind: type, struct: Any, **changed: Any) -> Any:
    names = [field.name for field in dataclasses.fields(kind)]
    return kind(**{name: changed[name] if name in changed else getattr(struct, name) for name in names})


def _device(device: Any) -> Tuple[str, int]:
    """("cpu", 0) or ("cuda", number) of "cpu", "cuda", "cuda:1" or a torch.device."""
    kind, colon, number = str(device).partition(":")
    if kind == "cpu" and not colon:
        return CPU
    if kind == "cuda" and (number.isdecimal() or not colon):
        return "cuda", integer("the number in device", int(number or 0), 32)
    raise ArgumentError(f"device is {str(device)!r}; it must be 'cpu', 'cuda' or 'cuda:' with a number")


def _stream_address(stream: Any) -> int:
    """A CUDA stream, given as an address or as an object of PyTorch or CuPy, as an address."""
    for name in ("cuda_stream", "ptr"):
        stream = getattr(stream, name, stream)
    if hasattr(stream, "__index__"):
        return int(stream)
    raise ArgumentError(
        f"stream is {stream!r}; it must be the address of a CUDA stream, or an object of PyTorch or CuPy that has one"
    )


_PASSES = {
    "forward": _capi.ANNULUS_PASS_FORWARD,
    "backward": _capi.ANNULUS_PASS_BACKWARD,
    "mass": _capi.ANNULUS_PASS_MASS,
}

_ADD_FLAGS = {
    "d_q": _capi.ANNULUS_CALL_ADD_D_Q,
    "d_k": _capi.ANNULUS_CALL_ADD_D_K,
    "d_v": _capi.ANNULUS_CALL_ADD_D_V,
}


class CallOptions(NamedTuple):
    """What a call is given beside its arrays and where they go."""

    query_start: int | None = None
    sequence_starts: list[int] | None = None
    sequence_lengths: list[int] | None = None
    add: Iterable[str] = ()

    def struct(self) -> Any:
        """The C API's."""
        options = _capi.annulus_call_options()
        for name in self.add:
            options.flags |= pick("a name in add", name, _ADD_FLAGS)
        if self.query_start is not None:
            options.flags |= _capi.ANNULUS_CALL_QUERY_WINDOW
            options.query_start = integer("query_start", self.query_start)
        if self.sequence_lengths is not None:
            options.sequence_lengths = self.sequence_lengths
            options.sequence_count = len(self.sequence_lengths)
        if self.sequence_starts is not None:
            options.sequence_starts = self.sequence_starts
            options.sequence_count = len(self.sequence_starts) - 1
        return options


_NO_OPTIONS = CallOptions()


def call_options(
    query_start: Any, sequence_starts: Any, sequence_lengths: Any, add: Iterable[Any] = ()
) -> CallOptions:
    """CallOptions of what a caller said, those of most calls not made again."""
    if query_start is None and sequence_starts is None and sequence_lengths is None and not add:
        return _NO_OPTIONS
    starts = lengths = None
    if sequence_lengths is not None:
        lengths = host_integers("sequence_lengths", sequence_lengths)
        if len(lengths) == 0:
            raise ArgumentError("sequence_lengths is empty; it must have the length of each sequence")
    if sequence_starts is not None:
        starts = host_integers("sequence_starts", sequence_starts)
        if len(starts) < 2:
            raise ArgumentError(
                f"the length of sequence_starts is {len(starts)}; it must have the start of each sequence, and where "
                "the last one ends"
            )
        if lengths is not None and len(starts) != len(lengths) + 1:
            raise ArgumentError(
                f"sequence_starts has {len(starts)} numbers and sequence_lengths {len(lengths)}; it must have one more, "
                "where the last sequence ends"
            )
    return CallOptions(query_start, starts, lengths, add)


def check_rows(query_start: Any, q_rows: int, k_rows: int) -> None:
    if query_start is None and q_rows != k_rows:
        raise ArgumentError(
            f"q has {q_rows} rows and k has {k_rows}; they must have equally many, or q fewer and query_start say "
            "where among k's its first row stands (arrays of [B, heads, N, D] need layout='bhnd')"
        )


_LAYOUTS = {"bnhd": "bnhd", "bhnd": "bhnd"}
# More heads than any model has: with fewer rows than that, axes have probably been mistaken for one another.
_MANY_HEADS = 128


def check_layout(layout: Any, k: Any) -> None:
    """Refuses other words, and warns where k looks as if it had another layout and none was named."""
    if layout is not None:
        pick("layout", layout, _LAYOUTS)
        return
    shape: Tuple[int, ...] = tuple(getattr(k, "shape", ()))
    if len(shape) in (3, 4) and shape[-2] > _MANY_HEADS and shape[-2] > shape[-3]:
        warn(
            f"k of shape {list(shape)} is taken for {shape[-3]} positions with {shape[-2]} heads; where it is [B, "
            "heads, N, D], as scaled_dot_product_attention() has it, say layout='bhnd', else layout='bnhd'"
        )


class _Turn:
    """Whose turn it is to use a context: a lock, which a forked child starts anew. The thread that held it is not there
    to give it back; the library knows whether it was in a call."""

    _all: weakref.WeakSet[_Turn] = weakref.WeakSet()

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._all.add(self)

    def __enter__(self) -> None:
        check_not_ending()  # where the lock is taken for good
        self.lock.acquire()

    def __exit__(self, *_: Any) -> None:
        self.lock.release()

    @classmethod
    def _after_fork(cls) -> None:
        for turn in cls._all:
            turn.lock = threading.Lock()


os.register_at_fork(after_in_child=_Turn._after_fork)


def _destroy(handle: Any, turn: _Turn, comm: Comm | None) -> None:
    if turn.lock.acquire(blocking=False):
        _capi.annulus_context_destroy(handle)
    elif comm is not None:  # the interpreter exits while another thread computes: both stay
        comm._finalizer.detach()


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
        self._place = _device(device)
        if not isinstance(comm, (Comm, type(None))):
            raise ArgumentError(f"comm is {comm!r}; it must be an annulus.Comm, one rank's end of a communicator")
        of_ranks = shards_of(shards)
        if of_ranks is not None and comm is None:
            raise ArgumentError(f"shards is {shards}; it needs comm, the communicator whose ranks hold them")
        kind, number = self._place
        kinds = {"cpu": _capi.ANNULUS_DEVICE_CPU, "cuda": _capi.ANNULUS_DEVICE_CUDA}
        handle = made(_capi.annulus_context_create(kinds[kind], number))
        self._held_handle = handle
        self._turn = _Turn()
        self._was_left = False  # by an interrupted caller, so that a call of it may compute for as long as it takes
        self._finalizer = weakref.finalize(self, _destroy, handle, self._turn, comm)
        self.comm = comm
        self._is_plain = comm is None and self._place == CPU
        self._reach = config._reach
        self._workspace: Any = None
        check(_capi.annulus_context_set_config(handle, config._handle))
        self._threads = integer("threads", threads, 32)
        check(_capi.annulus_context_set_threads(handle, self._threads))
        self._follow = stream is None
        self._stream = 0 if stream is None else _stream_address(stream)
        if stream is not None:
            check(_capi.annulus_context_set_stream(handle, self._stream or None))
        if comm is not None:
            check(_capi.annulus_context_set_comm(handle, comm._handle))
        if of_ranks is not None and comm is not None:
            check(_capi.annulus_context_set_shards(handle, of_ranks._struct(comm.size)))

    @property
    def _handle(self) -> Any:
        check_not_ending()  # where it may be destroyed
        return self._held_handle

    @property
    def config(self) -> Config:
        """What the context computes."""
        with self._turn:
            return config_of(_capi.annulus_context_copy_config(self._handle))

    @property
    def device(self) -> str:
        """ "cpu", or "cuda:" with a number."""
        kind, number = self._place
        return kind if kind == "cpu" else f"{kind}:{number}"

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
        results = self._forward(q, k, v, out, lse, return_lse or lse is not None, options, layout)
        return results if return_lse else results[0]

    def _forward(
        self, q: Any, k: Any, v: Any, out: Any, lse: Any, with_lse: bool, options: CallOptions, layout: Layout | None
    ) -> Tuple[Any, Any]:
        """forward() after its arguments were looked at; lse is None without with_lse."""
        kind = _plain.kind_of((q, k, v), (out, lse)) if self._is_plain else None
        results = kind and self._forward_plain(kind, q, k, v, out, lse, with_lse, options, layout)
        return results or self._forward_view(_arrays.view("q", q), k, v, out, lse, with_lse, options, layout)

    def _forward_plain(
        self,
        kind: _plain.Kind,
        q: Any,
        k: Any,
        v: Any,
        out: Any,
        lse: Any,
        with_lse: bool,
        options: CallOptions,
        layout: Layout | None,
    ) -> Tuple[Any, Any] | None:
        """_forward() of plain arrays; None where one of them is not as it should be."""
        shape = q.shape
        if not 3 <= len(shape) <= 4 or len(k.shape) != len(shape) or len(v.shape) != len(shape):
            return None
        if out is None:
            out = kind.empty(q, shape)
        elif len(out.shape) != len(shape):
            return None
        rows = q, k, v, out
        if layout == "bhnd":
            rows = tuple(array.swapaxes(-3, -2) for array in rows)
            shape = rows[0].shape
        if options.query_start is None and shape[-3] != rows[1].shape[-3]:
            return None
        if with_lse and lse is None:
            lse = kind.empty_lse(q, (*shape[:-3], shape[-2], shape[-3]))
        status = self._call_plain(_capi.forward_of_arrays, (*rows, lse), options)
        if status is None:
            return None
        warn_of_call(self._reach, shape[-2], rows[1].shape[-3], options.sequence_starts, False)
        return out, lse

    def _call_plain(self, function: Callable[..., int], arrays: Tuple[Any, ...], options: CallOptions) -> int | None:
        """The status, 0, of a function of the extension module that reads arrays; None where it could not."""
        struct = None if options is _NO_OPTIONS else options.struct()
        with self._turn:
            try:
                status = function(self._handle, *arrays, struct)
            except BufferError:
                return None
            if status == _capi.ANNULUS_ERROR_ARGUMENT:
                return None  # nothing was written, and the way by views has better words for what is wrong with arrays
            check(status)
            return status

    def _forward_view(
        self,
        like: View,
        k: Any,
        v: Any,
        out: Any,
        lse: Any,
        with_lse: bool,
        options: CallOptions,
        layout: Layout | None,
    ) -> Tuple[Any, Any]:
        """_forward() for a view of q."""
        like = like.laid_out(layout)
        self._check_place(like)
        views = self._inputs(layout, k=k, v=v)
        out, out_view = self._output("out", out, like, like.shape, like.dtype, layout)
        lse_view = None
        if with_lse:
            lse, lse_view = self._lse(lse, like)
        self._run(like, _capi.annulus_forward, [*views, out_view, lse_view], options)
        warn_of_call(
            self._reach, like.shape[-2], views[0].shape[-3], options.sequence_starts, self.comm is not None
        )
        return out, lse

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
        return self._backward((q, k, v, out, lse, d_out, d_lse, d_q, d_k, d_v), options, layout)

    def _backward(self, arrays: Tuple[Any, ...], options: CallOptions, layout: Layout | None) -> Tuple[Any, Any, Any]:
        """backward() after its arguments were looked at, the gradients last."""
        kind = _plain.kind_of(arrays[:6], arrays[6:]) if self._is_plain else None
        results = kind and self._backward_plain(kind, arrays, options, layout)
        return results or self._backward_views(arrays, options, layout)

    def _backward_plain(
        self, kind: _plain.Kind, arrays: Tuple[Any, ...], options: CallOptions, layout: Layout | None
    ) -> Tuple[Any, Any, Any] | None:
        """backward() of plain arrays, the gradients last; None where one of them is not as it should be."""
        q, k, v, out, lse, d_out, d_lse, *gradients = arrays
        gradients = [kind.empty(q, x.shape) if d_x is None else d_x for d_x, x in zip(gradients, arrays)]
        rows = [q, k, v, out, d_out, *gradients]
        for array in rows:
            if not 3 <= len(array.shape) <= 4:
                return None
        if layout == "bhnd":
            rows = [array.swapaxes(-3, -2) for array in rows]
        if options.query_start is None and rows[0].shape[-3] != rows[1].shape[-3]:
            return None
        q, k, v, out, d_out, d_q, d_k, d_v = rows
        status = self._call_plain(_capi.backward_of_arrays, (q, k, v, out, lse, d_out, d_lse, d_q, d_k, d_v), options)
        return None if status is None else tuple(gradients)

    def _backward_views(
        self, arrays: Tuple[Any, ...], options: CallOptions, layout: Layout | None
    ) -> Tuple[Any, Any, Any]:
        """backward() of any arrays, the gradients last."""
        q, k, v, out, lse, d_out, d_lse, *gradients = arrays
        views = self._inputs(layout, q=q, k=k, v=v, out=out)
        like = views[0]
        views += self._inputs(None, lse=lse) + self._inputs(layout, d_out=d_out)
        d_lse_view = None if d_lse is None else self._inputs(None, d_lse=d_lse)[0]
        (d_q, d_q_view), (d_k, d_k_view), (d_v, d_v_view) = (
            self._output(name, array, like, source.shape, like.dtype, layout)
            for name, array, source in zip(("d_q", "d_k", "d_v"), gradients, views)
        )
        self._run(like, _capi.annulus_backward, [*views[1:], d_lse_view, d_q_view, d_k_view, d_v_view], options)
        return d_q, d_k, d_v

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
        return self._mass(_arrays.view("q", q), k, lse, mass, options, layout)

    def _mass(
        self, like: View, k: Any, lse: Any, mass: Any, options: CallOptions, layout: Layout | None
    ) -> Any:
        """attention_mass() for a view of q."""
        if lse is None:
            _, lse = self._forward_view(like, k, k, None, None, True, options, layout)
        like = like.laid_out(layout)
        self._check_place(like)
        (k_view,) = self._inputs(layout, k=k)
        (lse_view,) = self._inputs(None, lse=lse)
        *batch, _, heads, _ = like.shape if len(like.shape) >= 3 else (0, 0, 0)
        rows = k_view.shape[-3] if len(k_view.shape) >= 3 else 0
        mass, mass_view = self._output("mass", mass, like, (*batch, heads, rows), lse_dtype(like.dtype))
        self._run(like, _capi.annulus_attention_mass, [k_view, lse_view, mass_view], options)
        return mass

    def merge(self, parts: Iterable[Tuple[Any, Any]], *, out: Any = None, lse: Any = None) -> Tuple[Any, Any]:
        """Merges results over different keys into those of one call over all of them; see annulus.merge().

        The config is not looked at. With a communicator each rank merges its own rows, alone.
        """
        return self._merge(_views_of_parts(parts), out, lse)

    def _merge(self, parts: list[Tuple[View, View]], out: Any, lse: Any) -> Tuple[Any, Any]:
        """merge() for views of the parts."""
        for part in parts:
            for view in part:
                self._check_place(view)
        like = parts[0][0]
        out, out_view = self._output("out", out, like, like.shape, like.dtype)
        lse, lse_view = self._lse(lse, like)
        views = [*(view for part in parts for view in part), out_view, lse_view]
        outs = [_arrays.tensor(part[0], 4) for part in parts]
        lses = [_arrays.tensor(part[1], 3) for part in parts]
        results = _arrays.tensor(out_view, 4), _arrays.tensor(lse_view, 3)
        handle = self._handle
        self._call(like, views, lambda: _capi.annulus_merge(handle, len(outs), outs, lses, *results, None))
        return out, lse

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
        estimate = _capi.annulus_estimate()
        index = _capi.ANNULUS_ALL_BRANCHES if branch is None else integer("branch", branch, 32)
        which, sizes = pick("pass_", pass_, _PASSES), _problem(length, heads, head_dim, **problem)
        with self._turn:
            check(_capi.annulus_estimate_problem(self._handle, sizes, which, index, estimate))
        return _read(Estimate, estimate, exchange=_EXCHANGES[estimate.exchange])

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
        of_ranks = shards_of(shards)
        struct = _capi.annulus_shards(ranks, 0, None, None) if of_ranks is None else of_ranks._struct(ranks)
        estimate = _capi.annulus_estimate()
        which, sizes = pick("pass_", pass_, _PASSES), _problem(length, heads, head_dim, **problem)
        with self._turn:
            check(_capi.annulus_estimate_rank(self._handle, sizes, which, struct, rank, estimate))
        return _read(Estimate, estimate, exchange=_EXCHANGES[estimate.exchange])

    def workspace_size(
        self, length: int, heads: int, head_dim: int, *, pass_: Pass = "forward", **problem: Unpack[ProblemOptions]
    ) -> int:
        """The bytes of memory that a call needs besides its arrays; arguments as estimate()."""
        which, sizes = pick("pass_", pass_, _PASSES), _problem(length, heads, head_dim, **problem)
        with self._turn:
            return made(_capi.annulus_workspace_size(self._handle, sizes, which))

    def select_engine(
        self,
        length: int,
        heads: int,
        head_dim: int,
        *,
        pass_: Pass = "forward",
        **problem: Unpack[ProblemOptions],
    ) -> str:
        """The engine that would compute a call; arguments as workspace_size(). The call's arrays are as row_alignment says
        and no better; 0: as every engine takes them."""
        which, sizes = pick("pass_", pass_, _PASSES), _problem(length, heads, head_dim, **problem)
        with self._turn:
            return _capi.annulus_engine_name(made(_capi.annulus_select_engine(self._handle, sizes, which)))

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
        which, wanted = pick("pass_", pass_, _PASSES), pick("engine", engine, ENGINES)
        sizes = _problem(length, heads, head_dim, **problem)
        with self._turn:
            error = failure(_capi.annulus_check_engine(self._handle, sizes, which, wanted))
        if isinstance(error, UnsupportedError):
            return str(error)
        if error is not None:
            raise error
        return None

    def set_workspace(self, memory: Any, bytes: int | None = None) -> None:
        """Makes calls use this memory instead of allocating: a contiguous array on the context's device, or an address
        with `bytes`. None: allocate again. An array is kept until then."""
        address, size = memory, 0 if bytes is None else integer("bytes", bytes)
        if size < 0:
            raise ArgumentError(f"bytes is {size}; it must be at least 0")
        if isinstance(memory, int) and bytes is None:
            raise ArgumentError("bytes is None; an address goes with how many bytes lie there")
        if memory is not None and not isinstance(memory, int):
            if bytes is not None:
                raise ArgumentError(f"bytes is {size}; it goes with an address, an array has its own size")
            view = _arrays.writable(_arrays.view("workspace", memory))
            if view.device != self._place:
                raise ArgumentError(f"workspace is on {view.device[0]}; the context is on {self.device}")
            if view.strides != _arrays.contiguous(view.shape):
                raise ArgumentError("workspace is not contiguous")
            size = _arrays.BYTES[view.dtype]
            for length in view.shape:
                size *= length
            address = view.address
        with self._turn:
            check(_capi.annulus_context_set_workspace(self._handle, address, size))
            self._workspace = memory

    @property
    def threads(self) -> int:
        """How many CPU threads a call may use now: what was set, or what the default comes to. 1 on a CUDA device."""
        with self._turn:
            return made(_capi.annulus_context_get_threads(self._handle))

    @property
    def last_engine(self) -> str:
        """The engine that served the last call; "auto" before the first."""
        with self._turn:
            return _capi.annulus_engine_name(made(_capi.annulus_context_last_engine(self._handle)))

    @property
    def last_traffic(self) -> Traffic:
        """What the last call sent to and received from other ranks."""
        traffic = _capi.annulus_traffic()
        with self._turn:
            check(_capi.annulus_context_last_traffic(self._handle, traffic))
        return _read(Traffic, traffic)

    def __repr__(self) -> str:
        return f"<annulus.Context on {self.device}: {self.config!r}>"

    def __reduce__(self) -> Any:
        """Copies, also by pickle, have the config, the device and the threads, and memory of their own."""
        own = {"comm": self.comm is not None, "stream": not self._follow, "workspace": self._workspace is not None}
        for name, is_given in own.items():
            if is_given:
                raise TypeError(
                    f"a Context with {name} given cannot be pickled or copied, for that belongs to this process; pickle "
                    "its config, and make a Context of it where it is to be used"
                )
        return _copied, (self.config, self.device, self._threads)

    def _inputs(self, layout: Layout | None, **arrays: Any) -> list[View]:
        views = [_arrays.view(name, array).laid_out(layout) for name, array in arrays.items()]
        for view in views:
            self._check_place(view)
        return views

    def _check_place(self, view: View) -> None:
        if view.device != self._place:
            kind, number = view.device
            raise ArgumentError(
                f"{view.name} is on {kind if kind == 'cpu' else f'{kind}:{number}'}; the context is on {self.device}"
            )

    def _output(
        self, name: str, array: Any, like: View, shape: Sequence[int], dtype: str, layout: Layout | None = None
    ) -> Tuple[Any, View]:
        """The caller's array or a new one, of a layout, and its view."""
        if array is None:
            exchange = layout == "bhnd" and len(shape) >= 3
            array = like.library.empty(_arrays.exchanged(shape) if exchange else tuple(shape), dtype, like)
            return array, _arrays.view(name, array).laid_out(layout)
        view = _arrays.writable(_arrays.view(name, array)).laid_out(layout)
        self._check_place(view)
        return array, view

    def _lse(self, lse: Any, like: View) -> Tuple[Any, View]:
        *batch, rows, heads, _ = like.shape if len(like.shape) >= 3 else (0, 0, 0)
        return self._output("lse", lse, like, (*batch, heads, rows), lse_dtype(like.dtype))

    def _run(self, like: View, function: Callable[..., int], others: list, given: CallOptions) -> None:
        """Calls the C function with q's view and the others; None is NULL."""
        views = [like, *others]
        tensors = [view and _arrays.tensor(view, 3 if view.name in ("lse", "d_lse", "mass") else 4) for view in views]
        options = given.struct()
        check_rows(given.query_start, like.shape[-3], others[0].shape[-3])
        self._call(like, views, lambda: function(self._handle, *tensors, options))

    def _call(self, like: View, views: list, function: Callable[[], int]) -> None:
        """Calls what calls a C function, ordered on the stream of `like`; `views` keep its arrays alive."""
        stream = self._stream
        if self._follow and self._place != CPU:
            stream = like.library.stream(self._place[1])

        def call() -> Error | None:
            with self._turn:
                status = _capi.ANNULUS_OK
                if stream != self._stream:
                    status = _capi.annulus_context_set_stream(self._handle, stream or None)
                    self._stream = stream if status == _capi.ANNULUS_OK else self._stream
                if status == _capi.ANNULUS_OK:
                    status = function()
                views.clear()  # what they keep alive was needed until here, also where nobody waits for the result
                return failure(status)

        error = self._interruptible(call) if self._may_wait(like) else call()
        if error is not None:
            raise error
        if self._place != CPU:
            like.library.finish(stream, self._place[1])

    def _may_wait(self, like: View) -> bool:
        """Whether a call is one that Ctrl-C should be able to end: it reaches the main thread only."""
        if self._place != CPU or threading.current_thread() is not threading.main_thread():
            return False
        if self.comm is not None:
            return self.comm.kind == "local"
        elements = 1
        for length in like.shape:
            elements *= length
        return elements >= _plain.SHORT_CALL

    def _interruptible(self, call: Callable[[], Error | None]) -> BaseException | None:
        """Runs `call` in a thread of its own, which is left alone when the main thread is interrupted; where no thread can
        be started, in the calling one."""
        outcome: list = []

        def work() -> None:
            try:
                outcome.append(call())
            except BaseException as error:
                outcome.append(error)

        worker = threading.Thread(target=work, name="annulus", daemon=True)
        try:
            try:
                worker.start()
            except RuntimeError:  # the process may have no more threads
                return call()
            while worker.is_alive():
                worker.join(1)  # not for ever: a signal that comes just before the wait does not end it
        except BaseException:
            self._was_left = True
            _capi.annulus_call_begins()  # for good: exit() must not wait for the worker to say so
            if self.comm is not None:
                self.comm.abort()
            raise
        return outcome[0]


def _copied(config: Config, device: str, threads: int) -> Context:
    return Context(config, device, threads=threads)


def pairs_of(parts: Iterable[Tuple[Any, Any]]) -> list[Tuple[Any, Any]]:
    """What merge() is given, as pairs (out, lse)."""
    pairs = list(parts)
    for i, part in enumerate(pairs):
        if not isinstance(part, (tuple, list)) or len(part) != 2:
            raise ArgumentError(f"parts[{i}] is a {type(part).__name__}; it must be a pair, (out, lse)")
    if not 1 <= len(pairs) <= _capi.ANNULUS_MAX_MERGE_PARTS:
        raise ArgumentError(
            f"parts has {len(pairs)} pairs, (out, lse); it must have from 1 to {_capi.ANNULUS_MAX_MERGE_PARTS}"
        )
    return pairs


def _views_of_parts(parts: Iterable[Tuple[Any, Any]]) -> list[Tuple[View, View]]:
    return [
        (_arrays.view(f"out of parts[{i}]", out), _arrays.view(f"lse of parts[{i}]", lse))
        for i, (out, lse) in enumerate(pairs_of(parts))
    ]


def lse_dtype(dtype: str) -> str:
    return "float64" if dtype == "float64" else "float32"


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
    problem = _capi.annulus_problem()
    problem.dtype = pick("dtype", dtype, _arrays.DTYPES)
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
        problem.gradient_dtype = pick("gradient_dtype", gradient_dtype, _arrays.DTYPES)
    problem.row_alignment = integer("row_alignment", row_alignment)
    return problem


# --- One call


def cached_context(config: Config, place: Tuple[str, int], threads: int = 0) -> Context:
    """The context that this thread keeps for a config, a device and a number of CPU threads, as long as the config lives."""
    kept = config._contexts.by_place
    key = place, threads
    context = kept.get(key)
    if context is None or context._was_left:
        kind, number = place
        context = kept[key] = Context(config, kind if kind == "cpu" else f"{kind}:{number}", threads=threads)
    return context


@functools.lru_cache(maxsize=256)
def _config(branches: Tuple[BranchLike, ...], options: Tuple[Tuple[str, Any], ...]) -> Config:
    return Config(branches, **dict(options))


def cached_config(branches: Union[Config, Iterable[BranchLike], None], options: dict[str, Any]) -> Config:
    """A config, or the one of branches and options, not made again where it was made before."""
    if isinstance(branches, Config):
        if options:
            raise ArgumentError(f"{', '.join(options)} beside a config; config.replace() changes its options")
        return branches
    branches, values = listed(branches), tuple(options.items())  # type: ignore[arg-type]  # listed() refuses None
    if not _is_hashable(branches):  # of lists or dicts
        branches = tuple(branch_of(branch) for branch in branches)
    return _config(branches, values) if _is_hashable(values) else Config(branches, **options)


def _is_hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def given(**options: Any) -> dict[str, Any]:
    """The options that a caller set."""
    return {name: value for name, value in options.items() if value is not None}


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
    query_start: the global position of q's first row, where q is a part of the N positions (decoding against a cache).
    sequence_starts, sequence_lengths: the sequences that the N rows consist of, see Context.forward().
    layout: "bnhd", as said here, or "bhnd", where q, k, v and out are [B, heads, N, D], as those of PyTorch's
        scaled_dot_product_attention() are; they are used where they lie in both. None: "bnhd", with a warning where
        that is hardly meant. LSE is [B, H, Nq] in both.

    Arrays of NumPy, PyTorch, CuPy, JAX, or anything with __dlpack__, __cuda_array_interface__ or a buffer: float64,
    float32, bfloat16 or float16, used where they lie, with any strides but that of D, which must be 1. The axis B may
    be left out of all together. Device and CUDA stream follow the inputs. The result has no gradient;
    annulus.torch.dilated_attention() has one.
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
    given_options = call_options(query_start, sequence_starts, sequence_lengths)
    arguments = k, v, out, lse, return_lse or lse is not None, given_options, layout
    kind = _plain.kind_of((q, k, v), (out, lse))
    results = kind and cached_context(config, CPU)._forward_plain(kind, q, *arguments)
    if not results:
        view = _arrays.view("q", q)
        results = cached_context(config, view.device)._forward_view(view, *arguments)
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
    """How much each key is attended to: mass [B, H, N], the sum over the queries of the probabilities they give it.

        out, lse = annulus.attention(q, k, v, branches, return_lse=True)
        mass = annulus.attention_mass(q, k, branches, lse=lse)
        of_class_token = annulus.attention_mass(q[:, :1], k, branches, query_start=0)

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
    return cached_context(config, view.device)._mass(view, k, lse, mass, options, layout)


def merge(parts: Iterable[Tuple[Any, Any]], *, out: Any = None, lse: Any = None) -> Tuple[Any, Any]:
    """Merges results over different keys, for the same queries, into those of one softmax over all the keys.

        near = annulus.attention(q, k, v, [(2048, 1)], return_lse=True)
        far = annulus.attention(q, other_k, other_v, [(0, 8)], return_lse=True)
        out, lse = annulus.merge([near, far])

    parts: pairs (out [B, Nq, H, D], lse [B, H, Nq]), at most 48. LSE is of natural logarithms. Where one is -inf, the
        part counts for nothing, whatever its out holds.
    out, lse: arrays to write to, also those of a part. Without them results are new arrays of the first one's library.

    Returns (out, lse). A key that two parts have counts twice. Gradients: Context.backward() of each part with the
    merged out and lse gives the gradients of its keys, and q's are the sum; annulus.torch.merge() is differentiable.
    """
    views = _views_of_parts(parts)
    # Any config will do: it is not looked at.
    return cached_context(cached_config([(0, 1)], {}), views[0][0].device)._merge(views, out, lse)


def lse_of_flash_attention(lse: Array) -> Array:
    """LSE as FlashAttention-2 gives it, for merge(): with -inf where that has +inf, in rows without keys.

        out, lse, _ = flash_attn_func(q, k, v, return_attn_probs=True)
        out, lse = annulus.torch.merge([(out, annulus.lse_of_flash_attention(lse)), far])

    lse: an array of NumPy, PyTorch, CuPy or JAX. Returns a new one. A true LSE of +inf, of scores that overflow, is not
    told apart.
    """
    array: Any = lse
    result: Array = _arrays.library_of(array).where(array == float("inf"), -array, array)
    return result
