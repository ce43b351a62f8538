# SPDX-License-Identifier: Apache-2.0
"""Plain arguments as the C API takes them; what is of another kind is refused by name."""

from __future__ import annotations

import operator
from typing import Any, Mapping

import numpy as np

from ._errors import ArgumentError


def integer(name: str, value: Any, bits: int = 64) -> int:
    """An int, or what stands for one, such as NumPy's."""
    try:
        number = operator.index(value)
    except TypeError:
        raise ArgumentError(f"{name} is {value!r}; it must be an int") from None
    if not -(2 ** (bits - 1)) <= number < 2 ** (bits - 1):
        raise ArgumentError(f"{name} is {number}; it does not fit {bits} bits")
    return number


def integers(name: str, values: Any, bits: int = 64) -> list[int]:
    """A list, or another iterable, of int."""
    try:
        if isinstance(values, (str, bytes)):
            raise TypeError
        listed = list(values)
    except TypeError:
        raise ArgumentError(f"{name} is {values!r}; it must be a list of int") from None
    return [integer(f"{name}[{i}]", value, bits) for i, value in enumerate(listed)]


def host_integers(name: str, values: Any) -> list[int]:
    """integers() of a list or of an array in host memory, such as NumPy's or a CPU tensor of PyTorch."""
    if hasattr(values, "__cuda_array_interface__"):
        raise ArgumentError(f"{name} is on a CUDA device; it must be in host memory: a list, a NumPy array, a CPU tensor")
    return integers(name, values.tolist() if hasattr(values, "tolist") else values)


def number(name: str, value: Any) -> float:
    """A float, or what stands for one; no tensor whose gradient is wanted, for it would have none."""
    try:
        if isinstance(value, (str, bytes)) or getattr(value, "requires_grad", False):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        raise ArgumentError(f"{name} is {value!r}; it must be a number that fits a float") from None


def flag(name: str, value: Any) -> bool:
    """True or False, also as 1 or 0."""
    if isinstance(value, (bool, np.bool_)) or (isinstance(value, int) and value in (0, 1)):
        return bool(value)
    raise ArgumentError(f"{name} is {value!r}; it must be True or False")


def name_of(code: int, choices: Mapping[str, int]) -> str:
    """The word that stands for a number of the C API."""
    return next(name for name, value in choices.items() if value == code)


def pick(name: str, value: Any, choices: Mapping[str, Any]) -> Any:
    """What a word stands for."""
    if isinstance(value, str) and value in choices:
        return choices[value]
    raise ArgumentError(f"{name} is {value!r}; it must be one of {', '.join(map(repr, choices))}")
