# SPDX-License-Identifier: Apache-2.0
"""Reads C types as SWIG writes them, with "p." for a pointer and "q(const)." for const; renames keywords."""

import re

from .declarations import Constant, EmitError, Function

RESERVED = set(
    "as async await begin break catch const continue do dyn else elseif end enum export extern false finally fn for"
    " function global if impl import in let local loop macro match mod module move mut pub quote ref return self static"
    " struct super trait true try type unsafe use using where while".split()
)


def split_array(type_name):
    """Returns ('int64_t', 4) for SWIG's a(4).int64_t; the length is None if the type is not an array."""
    found = re.fullmatch(r"a\((\d+)\)\.(.*)", type_name)
    return (found[2], int(found[1])) if found else (type_name, None)


def split_function_pointer(type_name):
    """Returns (parameters, result) for SWIG's p.f(p.void,size_t).p.void; None for any type but a function pointer."""
    found = re.fullmatch(r"p\.f\((.*)\)\.(.*)", type_name)
    return (found[1].split(","), found[2]) if found else None


def named_type(name, declarations, scalars):
    """Returns a language's name of a C type that is no pointer and no array. scalars: its names of C's scalar types."""
    if name in scalars:
        return scalars[name]
    if any(each.name == name and not isinstance(each, (Function, Constant)) for each in declarations):
        return name
    raise EmitError(f"C type {name!r} is not known here")


def safe(name):
    return name + "_" if name in RESERVED else name
