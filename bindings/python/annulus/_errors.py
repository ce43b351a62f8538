# SPDX-License-Identifier: Apache-2.0
"""Exceptions for the statuses of the C API."""

from __future__ import annotations

from typing import NoReturn

from . import _capi

__all__ = ["ArgumentError", "CommError", "CudaError", "Error", "OutOfMemoryError", "UnsupportedError"]


class Error(Exception):
    """A call of libannulus failed. The text is the library's: it names the argument, its value and what it may be.

    status: the C API's number (annulus_status); name: its name, such as "argument" or "nccl".
    """

    status: int = _capi.ANNULUS_ERROR_INTERNAL

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        if status is not None:
            self.status = status

    @property
    def name(self) -> str:
        return _capi.annulus_status_name(self.status)


class ArgumentError(Error, ValueError):
    """An argument is not what it may be."""

    status = _capi.ANNULUS_ERROR_ARGUMENT


class UnsupportedError(Error, NotImplementedError):
    """Legal, but the chosen engine, device or build cannot do it."""

    status = _capi.ANNULUS_ERROR_UNSUPPORTED


class OutOfMemoryError(Error, MemoryError):
    """An allocation failed, or the workspace or its limit is too small."""

    status = _capi.ANNULUS_ERROR_MEMORY


class CudaError(Error):
    """CUDA or cuBLAS failed."""

    status = _capi.ANNULUS_ERROR_CUDA


class CommError(Error):
    """Another rank failed or did not come in time, or NCCL or MPI failed."""

    status = _capi.ANNULUS_ERROR_COMM


_BY_STATUS = {
    _capi.ANNULUS_ERROR_ARGUMENT: ArgumentError,
    _capi.ANNULUS_ERROR_UNSUPPORTED: UnsupportedError,
    _capi.ANNULUS_ERROR_MEMORY: OutOfMemoryError,
    _capi.ANNULUS_ERROR_CUDA: CudaError,
    _capi.ANNULUS_ERROR_CUBLAS: CudaError,
    _capi.ANNULUS_ERROR_COMM: CommError,
    _capi.ANNULUS_ERROR_NCCL: CommError,
    _capi.ANNULUS_ERROR_MPI: CommError,
}


def fail(status: int, message: str) -> NoReturn:
    raise _BY_STATUS.get(status, Error)(message, status)


def check(status: int) -> None:
    """Raises what a status of the calling thread's last call stands for."""
    if status != _capi.ANNULUS_OK:
        fail(status, _capi.annulus_last_error())


def made(status_and_value):
    """The value that a C function wrote, or the exception for its status."""
    status, value = status_and_value
    check(status)
    return value
