# SPDX-License-Identifier: Apache-2.0
"""Exceptions for the statuses of the C API."""

from __future__ import annotations

from . import _capi
from ._words import in_python

__all__ = [
    "ArgumentError",
    "CommError",
    "CommLibraryError",
    "DeclinedError",
    "DeviceError",
    "Error",
    "OutOfMemoryError",
    "UnsupportedError",
    "WorkspaceError",
]


class Error(Exception):
    """A call of libannulus failed. The text names the argument, its value and what it may be.

    status: the C API's number (annulus_status); name: its name, such as "argument" or "device". Below 100 nothing was
        written; from 100 on results may be partly written.
    library: whose failure it was, "cuda", "cublas", "nccl" or "mpi"; "" where none of them failed.
    code: what that library's function returned.
    """

    status: int = _capi.ANNULUS_ERROR_INTERNAL
    library: str = ""
    code: int = 0

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


class DeviceError(Error):
    """CUDA or cuBLAS failed. Results may be partly written."""

    status = _capi.ANNULUS_ERROR_DEVICE


class CommError(Error):
    """Another rank failed or did not come in time. Results may be partly written."""

    status = _capi.ANNULUS_ERROR_COMM


class CommLibraryError(CommError):
    """NCCL or MPI failed. Results may be partly written."""

    status = _capi.ANNULUS_ERROR_COMM_LIBRARY


class DeclinedError(Error):
    """Another rank could not do its part. Nothing was written, and the communicator stays usable."""

    status = _capi.ANNULUS_ERROR_DECLINED


_BY_STATUS = {
    _capi.ANNULUS_ERROR_ARGUMENT: ArgumentError,
    _capi.ANNULUS_ERROR_UNSUPPORTED: UnsupportedError,
    _capi.ANNULUS_ERROR_MEMORY: OutOfMemoryError,
    _capi.ANNULUS_ERROR_WORKSPACE: WorkspaceError,
    _capi.ANNULUS_ERROR_DECLINED: DeclinedError,
    _capi.ANNULUS_ERROR_DEVICE: DeviceError,
    _capi.ANNULUS_ERROR_COMM: CommError,
    _capi.ANNULUS_ERROR_COMM_LIBRARY: CommLibraryError,
}


def of_driver(what: str, result: int) -> DeviceError:
    """The failure of a function of CUDA's driver that was called here."""
    error = DeviceError(f"{what} failed: CUDA driver error {result}")
    error.library, error.code = "cuda", result
    return error


def failure(status: int) -> Error | None:
    """What a status that the calling thread has just got stands for: the exception, not raised, or None."""
    if status == _capi.ANNULUS_OK:
        return None
    error = _BY_STATUS.get(status, Error)(in_python(_capi.annulus_last_error()), status)
    error.library, error.code = _capi.annulus_last_error_library(), _capi.annulus_last_error_code()
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
