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
    library: the library that failed, "cuda", "cublas", "nccl" or "mpi"; "" if none of them failed.
    code: the number that the library's function returned.
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
    """An argument has a value that it may not have."""

    status = _capi.ANNULUS_ERROR_ARGUMENT


class UnsupportedError(Error, NotImplementedError):
    """The call is legal, but the engine, the device or this build cannot do it."""

    status = _capi.ANNULUS_ERROR_UNSUPPORTED


class OutOfMemoryError(Error, MemoryError):
    """An allocation failed."""

    status = _capi.ANNULUS_ERROR_MEMORY


class WorkspaceError(Error):
    """The context's workspace, or the config's workspace_limit, is too small.

    bytes: how many bytes the call needs.
    """

    status = _capi.ANNULUS_ERROR_WORKSPACE
    bytes: int = 0


class DeviceError(Error):
    """CUDA or cuBLAS failed. Results may be partly written."""

    status = _capi.ANNULUS_ERROR_DEVICE


class CommError(Error):
    """Another rank failed or did not call in time. Results may be partly written."""

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


def driver_error(what: str, result: int) -> DeviceError:
    """Makes the exception for a function of CUDA's driver that Python called and that failed."""
    error = DeviceError(f"{what} failed: CUDA driver error {result}")
    error.library, error.code = "cuda", result
    return error


def failure(status: int) -> Error | None:
    """Makes the exception for the status of the calling thread's last call, or returns None for success."""
    if status == _capi.ANNULUS_OK:
        return None
    error = _BY_STATUS.get(status, Error)(in_python(_capi.annulus_last_error()), status)
    error.library, error.code = _capi.annulus_last_error_library(), _capi.annulus_last_error_code()
    if isinstance(error, WorkspaceError):
        error.bytes = _capi.annulus_last_error_bytes()
    return error


def check(status: int) -> None:
    """Raises the exception for the status of the calling thread's last call; does nothing for success."""
    error = failure(status)
    if error is not None:
        raise error


def made(status_and_value):
    """Returns the value that a C function wrote, or raises the exception for its status."""
    status, value = status_and_value
    check(status)
    return value
