# SPDX-License-Identifier: Apache-2.0
"""Checks of simple arguments. A value of a wrong kind is refused with the argument's name."""

from __future__ import annotations

import operator
from typing import Any, Mapping

import numpy as np

from ._errors import ArgumentError


def integer(name: str, value: Any, bits: int = 64) -> int:
    """Returns an int, or a number that acts as one, such as NumPy's, as an int of at most `bits` bits."""
    try:
        number = operator.index(value)
    except TypeError:
        raise ArgumentError(f"{name} is {value!r}; it must be an int") from None
    if not -(2 ** (bits - 1)) <= number < 2 ** (bits - 1):
        raise ArgumentError(f"{name} is {number}; it does not fit {bits} bits")
    return number


def integers(name: str, values: Any, bits: int = 64) -> list[int]:
    """Returns an iterable of int as a list."""
    try:
        if isinstance(values, (str, bytes)):
            raise TypeError
        listed = list(values)
    except TypeError:
        raise ArgumentError(f"{name} is {values!r}; it must be a list of int") from None
    return [integer(f"{name}[{i}]", value, bits) for i, value in enumerate(listed)]


def host_integers(name: str, values: Any) -> list[int]:
    """Returns a list or an array in host memory, such as NumPy's or a CPU tensor of PyTorch, as a list of int."""
    if hasattr(values, "__cuda_array_interface__"):
        raise ArgumentError(f"{name} is on a CUDA device; it must be in host memory: a list, a NumPy array, a CPU tensor")
    return integers(name, values.tolist() if hasattr(values, "tolist") else values)


def number(name: str, value: Any) -> float:
    """Returns a number as a float. Refuses a tensor that requires a gradient, since it would get none."""
    try:
        if isinstance(value, (str, bytes)) or getattr(value, "requires_grad", False):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        raise ArgumentError(f"{name} is {value!r}; it must be a number that fits a float") from None


def flag(name: str, value: Any) -> bool:
    """Returns True, False, 1 or 0 as a bool."""
    if isinstance(value, (bool, np.bool_)) or (isinstance(value, int) and value in (0, 1)):
        return bool(value)
    raise ArgumentError(f"{name} is {value!r}; it must be True or False")


def name_of(code: int, choices: Mapping[str, int]) -> str:
    """Returns the word for a number of the C API."""
    return next(name for name, value in choices.items() if value == code)


def pick(name: str, value: Any, choices: Mapping[str, Any]) -> Any:
    """Returns the value of a word. Refuses other words."""
    if isinstance(value, str) and value in choices:
        return choices[value]
    raise ArgumentError(f"{name} is {value!r}; it must be one of {', '.join(map(repr, choices))}")
