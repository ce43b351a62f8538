# SPDX-License-Identifier: Apache-2.0
"""C types as SWIG writes them, a pointer as "p.", const as "q(const).", and names that are not free elsewhere."""

import re

from .declarations import Constant, EmitError, Function

RESERVED = set(
    "as async await begin break catch const continue do dyn else elseif end enum export extern false finally fn for"
    " function global if impl import in let local loop macro match mod module move mut pub quote ref return self static"
    " struct super trait true try type unsafe use using where while".split()
)


def split_array(type_name):
    """('int64_t', 4) of SWIG's a(4).int64_t; the length is None where it is no array."""
    found = re.fullmatch(r"a\((\d+)\)\.(.*)", type_name)
    return (found[2], int(found[1])) if found else (type_name, None)


def split_function_pointer(type_name):
    """(parameters, result) of SWIG's p.f(p.void,size_t).p.void; None where it is none."""
    found = re.fullmatch(r"p\.f\((.*)\)\.(.*)", type_name)
    return (found[1].split(","), found[2]) if found else None


def named_type(name, declarations, scalars):
    """What a language calls a C type that is no pointer and no array; `scalars`: its names of those of C."""
    if name in scalars:
        return scalars[name]
    if any(each.name == name and not isinstance(each, (Function, Constant)) for each in declarations):
        return name
    raise EmitError(f"C type {name!r} is not known here")


def safe(name):
    return name + "_" if name in RESERVED else name
