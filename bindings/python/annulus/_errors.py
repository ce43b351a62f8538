# SPDX-License-Identifier: Apache-2.0
"""Exceptions for the statuses of the C API."""

from __future__ import annotations

from . import _capi
from ._words import in_python

__all__ = [
    "ArgumentError",
    "CommError",
    "CudaError",
    "DeclinedError",
    "Error",
    "OutOfMemoryError",
    "UnsupportedError",
    "WorkspaceError",
]


class Error(Exception):
    """A call of libannulus failed. The text names the argument, its value and what it may be.

    status: the C API's number (annulus_status); name: its name, such as "argument" or "nccl".
    """

    status: int = _capi.ANNULUS_ERROR_INTERNAL

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        if status is not None:
            self.status = status

    @property
    def name(self) -> str:
        """The status's name."""
        return _capi.annulus_status_name(self.status)


class ArgumentError(Error, ValueError):
    """An argument is not what it may be."""

    status = _capi.ANNULUS_ERROR_ARGUMENT


class UnsupportedError(Error, NotImplementedError):
    """Legal, but the chosen engine, device or build cannot do it."""

    status = _capi.ANNULUS_ERROR_UNSUPPORTED


class OutOfMemoryError(Error, MemoryError):
    """An allocation failed."""

    status = _capi.ANNULUS_ERROR_MEMORY


class WorkspaceError(Error):
    """The context's workspace, or the config's workspace_limit, is too small.

    bytes: how much the call would have needed.
    """

    status = _capi.ANNULUS_ERROR_WORKSPACE
    bytes: int = 0


class CudaError(Error):
    """CUDA or cuBLAS failed."""

    status = _capi.ANNULUS_ERROR_CUDA


class CommError(Error):
    """Another rank failed or did not come in time, or NCCL or MPI failed."""

    status = _capi.ANNULUS_ERROR_COMM


class DeclinedError(Error):
    """Another rank could not do its part. Nothing was written, and the communicator stays usable."""

    status = _capi.ANNULUS_ERROR_DECLINED


_BY_STATUS = {
    _capi.ANNULUS_ERROR_ARGUMENT: ArgumentError,
    _capi.ANNULUS_ERROR_UNSUPPORTED: UnsupportedError,
    _capi.ANNULUS_ERROR_MEMORY: OutOfMemoryError,
    _capi.ANNULUS_ERROR_CUDA: CudaError,
    _capi.ANNULUS_ERROR_CUBLAS: CudaError,
    _capi.ANNULUS_ERROR_COMM: CommError,
    _capi.ANNULUS_ERROR_NCCL: CommError,
    _capi.ANNULUS_ERROR_MPI: CommError,
    _capi.ANNULUS_ERROR_WORKSPACE: WorkspaceError,
    _capi.ANNULUS_ERROR_DECLINED: DeclinedError,
}


def failure(status: int) -> Error | None:
    """What a status that the calling thread has just got stands for: the exception, not raised, or None."""
    if status == _capi.ANNULUS_OK:
        return None
    error = _BY_STATUS.get(status, Error)(in_python(_capi.annulus_last_error()), status)
    if isinstance(error, WorkspaceError):
        error.bytes = _capi.annulus_last_error_bytes()
    return error


def check(status: int) -> None:
    """Raises what a status of the calling thread's last call stands for."""
    error = failure(status)
    if error is not None:
        raise error


def made(status_and_value):
    """The value that a C function wrote, or the exception for its status."""
    status, value = status_and_value
    check(status)
    return value
