# SPDX-License-Identifier: Apache-2.0
"""Several ranks that share one sequence."""

from __future__ import annotations

import weakref
from typing import Any, Sequence, Union

from . import _capi
from ._arguments import flag, integer, integers, number
from ._ending import check_not_ending
from ._errors import ArgumentError, Error, check, failure, made

__all__ = ["Comm"]

_NCCL_ID_BYTES = 128


def _count(ranks: Any) -> int:
    ranks = integer("ranks", ranks, 32)
    if ranks < 1:
        raise ArgumentError(f"ranks is {ranks}; it must be at least 1")
    return ranks


def _options(*, creation_timeout: Any = None, may_abort: bool = False, only_nccl: bool = False) -> Any:
    options = _capi.annulus_comm_options()
    if creation_timeout is not None:
        options.creation_timeout = number("creation_timeout", creation_timeout)
        if options.creation_timeout == 0:
            raise ArgumentError("creation_timeout is 0; it must be above 0, or None for 300 seconds")
    if flag("may_abort", may_abort):
        options.flags |= _capi.ANNULUS_COMM_MAY_ABORT
    if flag("only_nccl", only_nccl):
        options.flags |= _capi.ANNULUS_COMM_ONLY_NCCL
    return options


class Comm:
    """One rank's end of a communicator. Made by the class methods below, used by `annulus.Context(comm=…)`.

    Each rank holds one or several shards of the sequence, and all ranks make the same calls in the same order. Contexts
    may share an end and call one after the other; two calls at the same time are an ArgumentError. Any thread may use
    abort() and failure.

    DeclinedError and ArgumentError leave a communicator usable. A CommError breaks it for good, and `failure` says so.
    Then drop it and its contexts, and make a new one together with the remaining ranks.

    only_nccl: the ranks agree and exchange rows by NCCL alone, as between hosts, also where they could use memory of
    one host. One rank that says so is enough.
    """

    def __init__(self, handle: Any, kind: str) -> None:
        """Is not for callers: the class methods make communicators. kind: "local", "mpi" or "nccl"."""
        self._held_handle = handle
        self._finalizer = weakref.finalize(self, _capi.annulus_comm_destroy, handle)
        self.kind = kind

    @classmethod
    def local(cls, ranks: int) -> list[Comm]:
        """Makes the ends of a communicator between `ranks` threads of this process; element i is rank i's."""
        return [cls(end, "local") for end in made(_capi.annulus_comm_create_local(_count(ranks), None))]

    @classmethod
    def mpi(cls, communicator: Any) -> Comm:
        """Makes an end over the processes of an mpi4py communicator, or of an MPI_Comm at an address. Collective.

        Raises UnsupportedError unless mpi4py uses the MPI library that annulus's MPI plugin is linked with.
        """
        if not isinstance(communicator, int):
            from mpi4py import MPI

            if not isinstance(communicator, MPI.Comm):
                raise ArgumentError(
                    f"communicator is {communicator!r}; it must be one of mpi4py, or the address of an MPI_Comm"
                )
            communicator = MPI._addressof(communicator)
        return cls(made(_capi.annulus_comm_create_from_mpi(communicator, None)), "mpi")

    @staticmethod
    def nccl_id() -> bytes:
        """Makes a new NCCL id. One rank makes it, and every rank passes it to from_nccl_id()."""
        return made(_capi.annulus_nccl_id_generate())

    @classmethod
    def from_nccl_id(
        cls,
        id: bytes,
        ranks: int,
        rank: int,
        device: int,
        *,
        creation_timeout: float | None = None,
        only_nccl: bool = False,
    ) -> Comm:
        """Makes the end of rank `rank` of `ranks` over NCCL, on CUDA device number `device`. Collective: waits for the
        other ranks, for at most creation_timeout seconds (None: 300)."""
        if not isinstance(id, bytes) or len(id) != _NCCL_ID_BYTES:
            raise ArgumentError(
                f"id is {id!r:.40}; it must be the {_NCCL_ID_BYTES} bytes that one rank's nccl_id() made"
            )
        numbers = _count(ranks), integer("rank", rank, 32), integer("device", device, 32)
        options = _options(creation_timeout=creation_timeout, only_nccl=only_nccl)
        return cls(made(_capi.annulus_comm_create_nccl(id, *numbers, options)), "nccl")

    @classmethod
    def nccl_devices(
        cls, devices: Union[int, Sequence[int]], *, creation_timeout: float | None = None, only_nccl: bool = False
    ) -> list[Comm]:
        """Makes the ends over several CUDA devices of this process, each for a thread of its own.

        devices: how many, or a list of their numbers. creation_timeout: how many seconds NCCL has to connect them;
        None: 300.
        """
        numbers = None if isinstance(devices, int) else integers("devices", devices, 32)
        ranks = _count(devices if numbers is None else len(numbers))
        options = _options(creation_timeout=creation_timeout, only_nccl=only_nccl)
        return [cls(end, "nccl") for end in made(_capi.annulus_comm_create_nccl_devices(ranks, numbers, options))]

    @classmethod
    def from_nccl(cls, address: int, *, may_abort: bool = False, only_nccl: bool = False) -> Comm:
        """Makes an end over an existing ncclComm_t, such as cupy's NcclCommunicator.comm. It stays the caller's.

        It must come from the libnccl.so.2 that is loaded in the process. may_abort: annulus aborts it when it fails.
        Otherwise, once this object is gone, NCCL's kernels may wait on the GPU until the owner aborts it.
        """
        if not isinstance(address, int):
            raise ArgumentError(f"address is {address!r}; it must be an int, the address of an ncclComm_t")
        options = _options(may_abort=may_abort, only_nccl=only_nccl)
        return cls(made(_capi.annulus_comm_create_from_nccl(address, options)), "nccl")

    @property
    def _handle(self) -> Any:
        check_not_ending()  # then it may be destroyed
        return self._held_handle

    @property
    def size(self) -> int:
        """The number of ranks."""
        return made(_capi.annulus_comm_size(self._handle))

    @property
    def rank(self) -> int:
        """This end's rank, from 0."""
        return made(_capi.annulus_comm_rank(self._handle))

    def set_timeout(self, seconds: float) -> None:
        """Sets how long a call waits for another rank before it fails with CommError; 300 seconds by default."""
        check(_capi.annulus_comm_set_timeout(self._handle, number("seconds", seconds)))

    def abort(self) -> None:
        """Breaks the communicator: calls that wait for a rank, in any thread, raise CommError."""
        check(_capi.annulus_comm_abort(self._handle))

    @property
    def failure(self) -> Error | None:
        """Why the communicator broke, as an exception that is not raised; None if it is usable, as far as this rank
        knows. Over NCCL it may break after a call has returned. Never waits."""
        return failure(made(_capi.annulus_comm_status(self._handle)))

    def __reduce__(self) -> Any:
        raise TypeError(
            "a Comm cannot be pickled or copied, for it is this process's end of a communicator; each process makes its "
            "own, and what is pickled must not hold it"
        )

    def __repr__(self) -> str:
        return f"<annulus.Comm {self.kind} rank {self.rank} of {self.size}>"
