# SPDX-License-Identifier: Apache-2.0
"""Writes the declarations in Julia."""

import re

from .declarations import Constant, EmitError, Enum, Function, Opaque, Struct
from .markdown import markdown
from .types import named_type, safe, split_array, split_function_pointer

# Julia's names of the C types that the API uses.
SCALARS = {
    "void": "Cvoid",
    "char": "Cchar",
    "int": "Cint",
    "double": "Cdouble",
    "int32_t": "Int32",
    "int64_t": "Int64",
    "uint64_t": "UInt64",
    "size_t": "Csize_t",
}


def julia_type(type_name, declarations):
    if split_function_pointer(type_name):
        return "Ptr{Cvoid}"
    element, length = split_array(type_name)
    if length is not None:
        return f"NTuple{{{length}, {julia_type(element, declarations)}}}"
    pointer = re.fullmatch(r"p\.(q\(const\)\.)?(.*)", type_name)
    if pointer:
        return "Cstring" if type_name == "p.q(const).char" else f"Ptr{{{julia_type(pointer[2], declarations)}}}"
    return named_type(type_name, declarations, SCALARS)


def julia_documented(text, definition):
    """Returns a definition with its documentation: @doc documents the expression that follows on its line."""
    if not text:
        return definition
    if '"""' in text:
        raise EmitError(f"a comment has three quotation marks: {text}")
    return ['@doc raw"""', *markdown(text), '""" ' + definition[0], *definition[1:]]


def julia_initial(value, field):
    if value == f"({field.name})":
        return field.name
    if value.startswith("sizeof("):
        return value
    return "C_NULL" if value == "NULL" else value


def julia_struct(struct, declarations):
    definition = [f"struct {struct.name}"]
    for field in struct.fields:
        comment = f" # {field.doc}" if field.doc else ""
        definition.append(f"    {safe(field.name)}::{julia_type(field.type, declarations)}{comment}")
    lines = julia_documented(struct.doc, [*definition, "end"])
    if struct.fields[0].initial is not None:
        values = ", ".join(julia_initial(field.initial, field) for field in struct.fields)
        name = f"{struct.name.upper()}_INIT"
        if struct.parameters:
            lines += ["", f"{name}({', '.join(struct.parameters)}) = {struct.name}({values})"]
        else:
            lines += ["", f"const {name} = {struct.name}({values})"]
    return lines


def julia_function(function, declarations):
    typed = [f"{safe(name)}::{julia_type(type_name, declarations)}" for name, type_name in function.parameters]
    names = ", ".join(safe(name) for name, _ in function.parameters)
    call = f"@library_call {function.name}({', '.join(typed)})::{julia_type(function.result, declarations)}"
    return julia_documented(function.doc, [f"function {function.name}({names})", f"    {call}", "end"])


def julia_enum(enum):
    lines = julia_documented(enum.doc, [f"const {enum.name} = Int32"])
    for item in enum.items:
        comment = f" # {item.doc}" if item.doc else ""
        lines.append(f"const {item.name} = {enum.name}({item.value}){comment}")
    return lines


def julia(declarations):
    lines = [
        "# SPDX-License-Identifier: Apache-2.0",
        "# Written by bindings/emit.py from the C headers; a test fails when they differ.",
    ]
    for each in declarations:
        lines.append("")
        if isinstance(each, Enum):
            lines += julia_enum(each)
        elif isinstance(each, Constant):
            lines += julia_documented(each.doc, [f"const {each.name} = {each.value}"])
        elif isinstance(each, Opaque):
            lines += julia_documented(each.doc, [f"mutable struct {each.name} end"])
        elif isinstance(each, Struct):
            lines += julia_struct(each, declarations)
        elif isinstance(each, Function):
            lines += julia_function(each, declarations)
    return "\n".join([*lines, ""])
