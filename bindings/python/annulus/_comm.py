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


def _options(*, creation_timeout: Any = None, may_abort: bool = False) -> Any:
    options = _capi.annulus_comm_options()
    if creation_timeout is not None:
        options.creation_timeout = number("creation_timeout", creation_timeout)
        if options.creation_timeout == 0:
            raise ArgumentError("creation_timeout is 0; it must be above 0, or None for 300 seconds")
    if flag("may_abort", may_abort):
        options.flags = _capi.ANNULUS_COMM_MAY_ABORT
    return options


class Comm:
    """One rank's end of a communicator. Made by the class methods below, used by `annulus.Context(comm=…)`.

    Each rank holds a contiguous shard of the sequence, and all make the same calls in the same order. Contexts may share
    an end and call one after the other; a call beside another is an ArgumentError. Any thread may use abort() and failure.

    DeclinedError and ArgumentError leave a communicator usable. After a CommError it is broken for good (failure says
    so): let go of it and of its contexts, and make a new one together with the ranks that are left.
    """

    def __init__(self, handle: Any, kind: str) -> None:
        """Not to be called: the class methods make communicators. kind: "local", "mpi" or "nccl"."""
        self._held_handle = handle
        self._finalizer = weakref.finalize(self, _capi.annulus_comm_destroy, handle)
        self.kind = kind

    @classmethod
    def local(cls, ranks: int) -> list[Comm]:
        """The ends of a communicator between `ranks` threads of this process; element i is rank i's."""
        return [cls(end, "local") for end in made(_capi.annulus_comm_create_local(_count(ranks), None))]

    @classmethod
    def mpi(cls, communicator: Any) -> Comm:
        """Over the processes of an mpi4py communicator, or the address of an MPI_Comm. Collective.

        mpi4py must use the MPI library that annulus's part for MPI is linked with; else UnsupportedError.
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
        """A new NCCL id: what one rank makes and every rank hands to from_nccl_id()."""
        return made(_capi.annulus_nccl_id_generate())

    @classmethod
    def from_nccl_id(
        cls, id: bytes, ranks: int, rank: int, device: int, *, creation_timeout: float | None = None
    ) -> Comm:
        """Rank `rank` of `ranks` over NCCL, on CUDA device number `device`. Collective: waits for the other ranks, for
        at most creation_timeout seconds (None: 300)."""
        if not isinstance(id, bytes) or len(id) != _NCCL_ID_BYTES:
            raise ArgumentError(
                f"id is {id!r:.40}; it must be the {_NCCL_ID_BYTES} bytes that one rank's nccl_id() made"
            )
        numbers = _count(ranks), integer("rank", rank, 32), integer("device", device, 32)
        options = _options(creation_timeout=creation_timeout)
        return cls(made(_capi.annulus_comm_create_nccl(id, *numbers, options)), "nccl")

    @classmethod
    def nccl_devices(cls, devices: Union[int, Sequence[int]], *, creation_timeout: float | None = None) -> list[Comm]:
        """The ends over several CUDA devices of this process, each for a thread of its own: a number or a list.

        creation_timeout: how many seconds NCCL has to connect them; None: 300.
        """
        numbers = None if isinstance(devices, int) else integers("devices", devices, 32)
        ranks = _count(devices if numbers is None else len(numbers))
        options = _options(creation_timeout=creation_timeout)
        return [cls(end, "nccl") for end in made(_capi.annulus_comm_create_nccl_devices(ranks, numbers, options))]

    @classmethod
    def from_nccl(cls, address: int, *, may_abort: bool = False) -> Comm:
        """Uses an existing ncclComm_t, such as cupy's NcclCommunicator.comm, which stays the caller's.

        It must be of the libnccl.so.2 that is loaded in the process. may_abort: annulus aborts it when it fails; else
        NCCL's kernels may wait on the GPU until its owner does, once this object is gone.
        """
        if not isinstance(address, int):
            raise ArgumentError(f"address is {address!r}; it must be an int, the address of an ncclComm_t")
        return cls(made(_capi.annulus_comm_create_from_nccl(address, _options(may_abort=may_abort))), "nccl")

    @property
    def _handle(self) -> Any:
        check_not_ending()  # where it may be destroyed
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
        """How long a call waits for another rank before it fails with CommError: 300 seconds unless set."""
        check(_capi.annulus_comm_set_timeout(self._handle, number("seconds", seconds)))

    def abort(self) -> None:
        """Breaks the communicator: calls that wait in it, in any thread, raise CommError."""
        check(_capi.annulus_comm_abort(self._handle))

    @property
    def failure(self) -> Error | None:
        """Why the communicator broke, an exception that is not raised; None where it is usable, as far as this rank
        knows. Over NCCL it may break after a call has returned. Never waits."""
        return failure(made(_capi.annulus_comm_status(self._handle)))

    def __reduce__(self) -> Any:
        raise TypeError(
            "a Comm cannot be pickled or copied, for it is this process's end of a communicator; each process makes its "
            "own, and what is pickled must not hold it"
        )

    def __repr__(self) -> str:
        return f"<annulus.Comm {self.kind} rank {self.rank} of {self.size}>"
