# SPDX-License-Identifier: Apache-2.0
"""Translates the library's messages, which name the C API's arguments, for callers in Python."""

from __future__ import annotations

import re
from typing import Callable, List, Tuple, Union

# The letters that the docstrings give to the axes of the C API's tensors; "BNHD" for rows without an entry.
_ROW_AXES = {"k": "BNGD", "v": "BNGD", "d_k": "BNGD", "d_v": "BNGD"}
_STATISTIC_AXES = "BHN"


def _axis(found: re.Match) -> str:
    axis, name = int(found[1]), found[2]
    is_statistic = name.startswith(("lse", "d_lse", "mass"))
    letters = _STATISTIC_AXES if is_statistic else _ROW_AXES.get(name, "BNHD")
    return f"{letters[axis]} of {name}"


# Applied in this order, each to the result of the replacement before.
_REPLACEMENTS: List[Tuple[str, Union[str, Callable[[re.Match], str]]]] = [
    (r"\b(out|lse)s\[(\d+)\]", r"\1 of parts[\2]"),
    (r"\bshape\[(\d)\] of (\w+)", _axis),
    (r"^dtype of (.*?) is \d+ \((\w+)\)", r"\1 has dtype \2"),
    (r"^gradient_dtype is \d+ \((\w+)\); it must be 0,", r"gradient_dtype is \1; it must be None,"),
    (r"\b\d+ \((float64|float32|bfloat16|float16)\)", r"\1"),
    (
        r"^sequence_count of options is (\d+); without sequence_starts it must be the batch, (\d+)",
        r"sequence_lengths has \1 numbers; without sequence_starts it must have \2, one for each batch entry",
    ),
    (r"^flags of options has ANNULUS_CALL_QUERY_WINDOW", "query_start is given"),
    (r"\b(with|without) ANNULUS_CALL_QUERY_WINDOW in flags of options", r"\1 query_start"),
    (r"\bquery_length is (-?\d+); without query_start it must be 0 or", r"query_length is \1; without query_start it must be None or"),
    (r" of (options|problem|shards)\b", ""),
    (r"\bsequence_length\b", "length"),
    (r"^the ncclComm_t that nccl_comm points to is NULL", "address is 0"),
    (r"^mpi_comm is NULL", "communicator is 0"),
    (r"\bNULL\b", "None"),
    (r"\bannulus_context_set_shards\(\)", "Context's shards"),
    (r"\bannulus_(forward|backward|attention_mass)\(\)", r"\1()"),
]


def in_python(message: str) -> str:
    """Returns a message of annulus_last_error() with Python's names of arguments."""
    for pattern, replacement in _REPLACEMENTS:
        message = re.sub(pattern, replacement, message)
    return message
