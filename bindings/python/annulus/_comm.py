# SPDX-License-Identifier: Apache-2.0
"""Several ranks that share one sequence."""

from __future__ import annotations

import weakref
from typing import Any, Sequence, Union

from . import _capi
from ._errors import check, made

__all__ = ["Comm"]


class Comm:
    """One rank's end of a communicator. Made by the class methods below, used by `annulus.Context(comm=…)`.

    Each rank holds a contiguous shard of the sequence, and all make the same calls in the same order. One thread at a
    time may use an end, but for abort().
    """

    def __init__(self, handle: Any, kind: str) -> None:
        """Not to be called: the class methods make communicators. kind: "local", "mpi" or "nccl"."""
        self._handle = handle
        self._finalizer = weakref.finalize(self, _capi.annulus_comm_destroy, handle)
        self.kind = kind

    @classmethod
    def local(cls, ranks: int) -> list[Comm]:
        """The ends of a communicator between `ranks` threads of this process; element i is rank i's."""
        return [cls(end, "local") for end in made(_capi.annulus_comm_create_local(ranks))]

    @classmethod
    def mpi(cls, communicator: Any) -> Comm:
        """Over the processes of an mpi4py communicator, or the address of an MPI_Comm. Collective.

        mpi4py must use the MPI library that annulus was built with.
        """
        if not isinstance(communicator, int):
            from mpi4py import MPI

            communicator = MPI._addressof(communicator)
        return cls(made(_capi.annulus_comm_create_mpi(communicator)), "mpi")

    @staticmethod
    def nccl_id() -> bytes:
        """A new NCCL id: what one rank makes and every rank hands to from_nccl_id()."""
        return made(_capi.annulus_nccl_id_create())

    @classmethod
    def from_nccl_id(cls, id: bytes, ranks: int, rank: int, device: int) -> Comm:
        """Rank `rank` of `ranks` over NCCL, on CUDA device number `device`. Collective: waits for the other ranks."""
        return cls(made(_capi.annulus_comm_create_nccl(id, ranks, rank, device)), "nccl")

    @classmethod
    def nccl_devices(cls, devices: Union[int, Sequence[int]]) -> list[Comm]:
        """The ends over several CUDA devices of this process, each for a thread of its own: a number or a list."""
        numbers = None if isinstance(devices, int) else list(devices)
        ranks = devices if numbers is None else len(numbers)
        return [cls(end, "nccl") for end in made(_capi.annulus_comm_create_nccl_devices(ranks, numbers))]

    @classmethod
    def from_nccl(cls, address: int) -> Comm:
        """Uses an existing ncclComm_t, such as cupy's NcclCommunicator.comm, which stays the caller's."""
        return cls(made(_capi.annulus_comm_create_from_nccl(address)), "nccl")

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
        check(_capi.annulus_comm_set_timeout(self._handle, seconds))

    def abort(self) -> None:
        """Breaks the communicator: calls that wait in it, in any thread, raise CommError."""
        check(_capi.annulus_comm_abort(self._handle))

    def __repr__(self) -> str:
        return f"<annulus.Comm {self.kind} rank {self.rank} of {self.size}>"
