# SPDX-License-Identifier: Apache-2.0
"""Writes the declarations in Rust."""

import re

from .declarations import Constant, Enum, Function, Opaque, Struct
from .markdown import markdown
from .types import named_type, safe, split_array, split_function_pointer

LINE_LENGTH = 120

# Rust's names of the C types that the API uses.
SCALARS = {
    "void": "c_void",
    "char": "c_char",
    "int": "c_int",
    "double": "f64",
    "int32_t": "i32",
    "int64_t": "i64",
    "uint64_t": "u64",
    "size_t": "usize",
}


def rust_type(type_name, declarations):
    callback = split_function_pointer(type_name)
    if callback:
        parameters = ", ".join(rust_type(each, declarations) for each in callback[0])
        result = "" if callback[1] == "void" else f" -> {rust_type(callback[1], declarations)}"
        return f"Option<unsafe extern \"C\" fn({parameters}){result}>"
    element, length = split_array(type_name)
    if length is not None:
        return f"[{rust_type(element, declarations)}; {length}]"
    pointer = re.fullmatch(r"p\.(q\(const\)\.)?(.*)", type_name)
    if pointer:
        return f"*{'const' if pointer[1] else 'mut'} {rust_type(pointer[2], declarations)}"
    return named_type(type_name, declarations, SCALARS)


def rust_doc(text, indent=""):
    return [f"{indent}/// {line}".rstrip() for line in markdown(text)] if text else []


def rust_initial(value, field):
    if value.startswith("sizeof("):
        return f"std::mem::size_of::<{value[7:-1]}>()"
    if value == f"({field.name})":
        return field.name
    if value == "NULL":
        if split_function_pointer(field.type):
            return "None"
        return "std::ptr::null()" if field.type.startswith("p.q(const).") else "std::ptr::null_mut()"
    if value.isidentifier() and field.type == "int64_t":
        return f"{value} as i64"
    return value + ".0" if field.type == "double" else value


def rust_field(field):
    name, value = safe(field.name), rust_initial(field.initial, field)
    return f"{name}," if name == value else f"{name}: {value},"


def rust_struct(struct, declarations):
    lines = rust_doc(struct.doc) + ["#[repr(C)]", "#[derive(Clone, Copy, Debug)]", f"pub struct {struct.name} {{"]
    for field in struct.fields:
        lines += rust_doc(field.doc, "    ")
        lines.append(f"    pub {safe(field.name)}: {rust_type(field.type, declarations)},")
    lines.append("}")
    if struct.fields[0].initial is not None:
        values = [rust_field(field) for field in struct.fields]
        name = f"{struct.name.upper()}_INIT"
        if struct.parameters:
            types = {field.name: rust_type(field.type, declarations) for field in struct.fields}
            parameters = ", ".join(f"{each}: {types[each]}" for each in struct.parameters)
            lines += ["", "#[allow(non_snake_case)]", f"pub const fn {name}({parameters}) -> {struct.name} {{"]
            lines += [f"    {struct.name} {{", *(f"        {value}" for value in values), "    }", "}"]
        else:
            lines += ["", f"pub const {name}: {struct.name} = {struct.name} {{", *(f"    {each}" for each in values), "};"]
    return lines


def rust_function(function, declarations):
    parameters = [f"{safe(name)}: {rust_type(type_name, declarations)}" for name, type_name in function.parameters]
    result = "" if function.result == "void" else f" -> {rust_type(function.result, declarations)}"
    line = f"    pub fn {function.name}({', '.join(parameters)}){result};"
    if len(line) <= LINE_LENGTH:
        return rust_doc(function.doc, "    ") + [line]
    lines = [f"    pub fn {function.name}(", *(f"        {each}," for each in parameters), f"    ){result};"]
    return rust_doc(function.doc, "    ") + lines


def rust_opaque(opaque):
    # It has no size, so it exists only behind a pointer. It is neither Send nor Sync by itself.
    return rust_doc(opaque.doc) + [
        "#[repr(C)]",
        f"pub struct {opaque.name} {{",
        "    _data: [u8; 0],",
        "    _marker: PhantomData<(*mut u8, PhantomPinned)>,",
        "}",
    ]


def rust(declarations):
    lines = [
        "// SPDX-License-Identifier: Apache-2.0",
        "// Written by bindings/emit.py from the C headers; a test fails when they differ.",
        "",
        "use std::marker::{PhantomData, PhantomPinned};",
        "use std::os::raw::{c_char, c_int, c_void};",
    ]
    for each in declarations:
        if isinstance(each, Enum):
            lines += ["", *rust_doc(each.doc), f"pub type {each.name} = i32;"]
            for item in each.items:
                lines += [*rust_doc(item.doc), f"pub const {item.name}: {each.name} = {item.value};"]
        elif isinstance(each, Constant):
            lines += ["", *rust_doc(each.doc), f"pub const {each.name}: c_int = {each.value};"]
        elif isinstance(each, Opaque):
            lines += ["", *rust_opaque(each)]
        elif isinstance(each, Struct):
            lines += ["", *rust_struct(each, declarations)]
    lines += ["", 'extern "C" {']
    functions = [rust_function(each, declarations) for each in declarations if isinstance(each, Function)]
    for index, function in enumerate(functions):
        lines += ([""] if index else []) + function
    return "\n".join([*lines, "}", ""])
