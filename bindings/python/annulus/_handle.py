# SPDX-License-Identifier: Apache-2.0
"""The C API's context: who may use it when, on which stream, and how Ctrl-C ends a call."""

from __future__ import annotations

import math
import os
import threading
import weakref
from typing import Any, Callable

from . import _arrays, _capi
from ._arguments import integer
from ._arrays import CPU, Place, View
from ._choices import DEVICE_KINDS
from ._comm import Comm
from ._ending import check_not_ending
from ._errors import ArgumentError, Error, check, failure, made
from ._mistakes import Reach

# A call with fewer elements of q than this is over before anybody could interrupt it.
SHORT_CALL = 1 << 18


def place_of(device: Any) -> Place:
    """Returns ("cpu", 0) or ("cuda", number) for "cpu", "cuda", "cuda:1" or a torch.device."""
    kind, colon, number = str(device).partition(":")
    if kind == "cpu" and not colon:
        return CPU
    if kind == "cuda" and (number.isdecimal() or not colon):
        return "cuda", integer("the number in device", int(number or 0), 32)
    raise ArgumentError(f"device is {str(device)!r}; it must be 'cpu', 'cuda' or 'cuda:' with a number")


def _name(place: Place) -> str:
    """Returns "cpu", or "cuda:" with a number."""
    kind, number = place
    return kind if kind == "cpu" else f"{kind}:{number}"


def _stream_address(stream: Any) -> int:
    """Returns the address of a CUDA stream, which is an address itself or an object of PyTorch or CuPy."""
    for name in ("cuda_stream", "ptr"):
        stream = getattr(stream, name, stream)
    if hasattr(stream, "__index__"):
        return int(stream)
    raise ArgumentError(
        f"stream is {stream!r}; it must be the address of a CUDA stream, or an object of PyTorch or CuPy that has one"
    )


class CallLock:
    """A lock that a thread holds while it uses a context.

    A forked child gets a new lock, since the thread that held the old one does not exist in the child. The library
    itself knows whether a call was running when the process forked.
    """

    _all: weakref.WeakSet[CallLock] = weakref.WeakSet()

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._all.add(self)

    def __enter__(self) -> None:
        check_not_ending()  # then a thread may hold the lock for good
        self.lock.acquire()

    def __exit__(self, *_: Any) -> None:
        self.lock.release()

    @classmethod
    def _after_fork(cls) -> None:
        for one in cls._all:
            one.lock = threading.Lock()


os.register_at_fork(after_in_child=CallLock._after_fork)


def _destroy(pointer: Any, lock: CallLock, comm: Comm | None) -> None:
    if lock.lock.acquire(blocking=False):
        _capi.annulus_context_destroy(pointer)
    elif comm is not None:  # the interpreter exits while another thread computes: context and communicator stay
        comm._finalizer.detach()


class ContextHandle:
    """A context of the C API with a config, a device and a communicator.

    place: the device. lock: held while a thread uses the context. threads: how many CPU threads the caller asked for.
    stream: the caller's, or None: calls run on the current stream of the library that q comes from.
    workspace: what set_workspace() was given; kept, since an array owns its memory.
    reads_plain_arrays: the extension module may read the arrays itself (_plain.py).
    was_left: an interrupted caller left a call behind, so the context may compute for as long as that call takes.
    """

    def __init__(
        self,
        config: Any,
        reach: Reach,
        place: Place,
        *,
        comm: Comm | None = None,
        stream: Any = None,
        threads: Any = 0,
    ) -> None:
        """config: the C API's annulus_config."""
        kind, number = place
        pointer = made(_capi.annulus_context_create(DEVICE_KINDS[kind], number))
        self._pointer = pointer
        self.lock = CallLock()
        weakref.finalize(self, _destroy, pointer, self.lock, comm)
        self.place = place
        self.comm = comm
        self.reach = reach
        self.reads_plain_arrays = comm is None and place == CPU
        self.workspace: Any = None
        self.was_left = False
        check(_capi.annulus_context_set_config(pointer, config))
        self.threads = integer("threads", threads, 32)
        check(_capi.annulus_context_set_threads(pointer, self.threads))
        self.stream = stream
        self._stream = 0 if stream is None else _stream_address(stream)
        if stream is not None:
            check(_capi.annulus_context_set_stream(pointer, self._stream or None))
        if comm is not None:
            check(_capi.annulus_context_set_comm(pointer, comm._handle))

    @property
    def pointer(self) -> Any:
        """The C API's annulus_context. Raises once the interpreter ends, when it may be destroyed."""
        check_not_ending()
        return self._pointer

    @property
    def device(self) -> str:
        """The device as Context's argument: "cpu", or "cuda:" with a number."""
        return _name(self.place)

    def check_place(self, view: View) -> None:
        """Refuses an array on another device."""
        if view.device != self.place:
            raise ArgumentError(f"{view.name} is on {_name(view.device)}; the context is on {self.device}")

    def set_workspace(self, memory: Any, byte_count: Any) -> None:
        """Sets the memory that calls work in: an array, an address with byte_count, or None. See Context."""
        address, size = memory, 0 if byte_count is None else integer("bytes", byte_count)
        if size < 0:
            raise ArgumentError(f"bytes is {size}; it must be at least 0")
        if isinstance(memory, int) and byte_count is None:
            raise ArgumentError("bytes is None; an address goes with how many bytes lie there")
        if memory is not None and not isinstance(memory, int):
            if byte_count is not None:
                raise ArgumentError(f"bytes is {size}; it goes with an address, an array has its own size")
            view = _arrays.writable(_arrays.view("workspace", memory))
            if view.device != self.place:
                raise ArgumentError(f"workspace is on {view.device[0]}; the context is on {self.device}")
            if view.strides != _arrays.contiguous(view.shape):
                raise ArgumentError("workspace is not contiguous")
            size = _arrays.BYTES[view.dtype] * math.prod(view.shape)
            address = view.address
        with self.lock:
            check(_capi.annulus_context_set_workspace(self.pointer, address, size))
            self.workspace = memory

    def run(self, q: View, views: list, function: Callable[[], int]) -> None:
        """Runs `function`, which calls the C API and returns its status. Raises if the status is an error.

        A call on CUDA is ordered on the handle's stream, or on the current stream of q's library. `views` keep the
        call's arrays alive until `function` returns, even if the caller is interrupted earlier.
        """
        stream = self._stream
        if self.stream is None and self.place != CPU:
            stream = q.library.stream(self.place[1])

        def call() -> Error | None:
            with self.lock:
                status = _capi.ANNULUS_OK
                if stream != self._stream:
                    status = _capi.annulus_context_set_stream(self.pointer, stream or None)
                    self._stream = stream if status == _capi.ANNULUS_OK else self._stream
                if status == _capi.ANNULUS_OK:
                    status = function()
                views.clear()
                return failure(status)

        error = self._run_interruptibly(call) if self._is_interruptible(q) else call()
        if error is not None:
            raise error
        if self.place != CPU:
            q.library.finish(stream, self.place[1])

    def _is_interruptible(self, q: View) -> bool:
        """Returns whether Ctrl-C should be able to end a call. Python interrupts the main thread only."""
        if self.place != CPU or threading.current_thread() is not threading.main_thread():
            return False
        if self.comm is not None:
            return self.comm.kind == "local"
        return math.prod(q.shape) >= SHORT_CALL

    def _run_interruptibly(self, call: Callable[[], Error | None]) -> BaseException | None:
        """Runs `call` in a thread of its own, and leaves that thread alone if the main thread is interrupted.

        Runs `call` in the calling thread if no thread can be started.
        """
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
                worker.join(1)  # with a limit: a signal just before an endless wait would not end it
        except BaseException:
            self.was_left = True
            _capi.annulus_call_begins()  # without an end: exit() must not wait for the worker to report one
            if self.comm is not None:
                self.comm.abort()
            raise
        return outcome[0]
