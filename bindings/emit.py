#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the declarations of the C API for Rust and Julia, and the C program that tells how its structs are laid out.

usage: emit.py [--check] [--swig PROGRAM]

`swig -xml` of annulus.i tells functions, structs, enums and constants. What it leaves out is read from the headers: the
comments, and the initial values of structs (ANNULUS_..._INIT). A C type, a field or a declaration that is not known
here is an error. With --check nothing is written, and the exit status is 1 where a file is not what would be written,
77 where there is no SWIG.
"""

import argparse
import dataclasses
import difflib
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree

ROOT = pathlib.Path(__file__).resolve().parent.parent
API = ROOT / "api"
INTERFACE = ROOT / "bindings/annulus.i"
RUST = ROOT / "bindings/rust/annulus-sys/src/generated.rs"
JULIA = ROOT / "bindings/julia/src/generated.jl"
LAYOUT = ROOT / "tests/bindings/layout.c"
SKIPPED = 77
LINE_LENGTH = 120

# C's names of the types that the API uses, in Rust and in Julia. SWIG writes a pointer as "p.", const as "q(const).".
SCALARS = {
    "void": ("c_void", "Cvoid"),
    "char": ("c_char", "Cchar"),
    "int": ("c_int", "Cint"),
    "double": ("f64", "Cdouble"),
    "int32_t": ("i32", "Int32"),
    "int64_t": ("i64", "Int64"),
    "uint64_t": ("u64", "UInt64"),
    "size_t": ("usize", "Csize_t"),
}
RESERVED = set(
    "as async await begin break catch const continue do dyn else elseif end enum export extern false finally fn for"
    " function global if impl import in let local loop macro match mod module move mut pub quote ref return self static"
    " struct super trait true try type unsafe use using where while".split()
)


class EmitError(Exception):
    """The API has something that this program does not know."""


# ---- The API as data


@dataclasses.dataclass
class Named:
    name: str
    doc: str


@dataclasses.dataclass
class Function(Named):
    result: str
    parameters: list  # of (name, type)


@dataclasses.dataclass
class Field(Named):
    type: str
    initial: str = None


@dataclasses.dataclass
class Struct(Named):
    fields: list


@dataclasses.dataclass
class Opaque(Named):
    pass


@dataclasses.dataclass
class Constant(Named):
    value: int


@dataclasses.dataclass
class Enum(Named):
    items: list  # of Constant


# ---- Headers: comments and initial values


class Headers:
    """The text of the public headers, searched for what SWIG's tree leaves out."""

    def __init__(self):
        paths = [path for path in sorted((API / "annulus").glob("*.h")) if path.name != "annulus.h"]
        self.text = "\n".join(path.read_text(encoding="utf-8") for path in paths)

    def functions(self):
        return set(re.findall(r"^ANNULUS_API\s[^;(]*?(\w+)\(", self.text, re.MULTILINE))

    def _only(self, pattern):
        found = list(re.finditer(pattern, self.text, re.MULTILINE))
        if len(found) != 1:
            raise EmitError(f"{pattern!r} stands {len(found)} times in the headers, not once")
        return found[0]

    def before(self, pattern):
        """The comment that ends on the line before the declaration, or ''."""
        above = self.text[: self._only(pattern).start()]
        if not above.endswith("*/\n"):
            return ""
        return plain_comment(above[above.rindex("/*") :])

    def inside(self, opening):
        """The text between the braces of a struct or an enum."""
        start = self._only(opening + r"\s*\{").end()
        return self.text[start : self.text.index("}", start)]

    def initial(self, struct):
        """What the struct's INIT macro sets its fields to, as C's words; or None where there is no macro."""
        macro = re.escape(struct.upper() + "_INIT")
        if not re.search(rf"^#define {macro}\b", self.text, re.MULTILINE):
            return None
        body = self._only(rf"^#define {macro}\s*\\\n\s*\{{([^}}]*)\}}$")[1]
        return [value.strip() for value in body.split(",")]


def plain_comment(text):
    """A C comment's words without the stars."""
    lines = [re.sub(r"^\s*/?\*+/? ?|\s*\*/$", "", line).rstrip() for line in text.strip().splitlines()]
    return "\n".join(lines).strip("\n")


def trailing(body, pattern):
    """The comment behind an item on its line, or ''."""
    found = re.search(pattern + r"[ \t]*(/\*.*?\*/)", body, re.DOTALL)
    return " ".join(plain_comment(found[1]).split()) if found else ""


# ---- SWIG's tree


def attributes(element):
    return {each.get("name"): each.get("value") for each in element.findall("attributelist/attribute")}


def read_enum(element, headers):
    name = attributes(element)["name"]
    body = headers.inside(rf"^typedef enum {name}")
    items = []
    for item in map(attributes, element.findall("enumitem")):
        value = item.get("enumvalue")
        if value is None or not value.isdigit():
            raise EmitError(f"{item['name']} has the value {value!r}, not a plain number")
        items.append(Constant(item["name"], trailing(body, rf"\b{item['name']}\s*=\s*\d+,?"), int(value)))
    return Enum(name, headers.before(rf"^typedef enum {name}\b"), items)


def read_struct(element, headers):
    name = attributes(element)["name"]
    body = headers.inside(rf"^typedef struct {name}")
    fields = []
    for field in map(attributes, element.findall("cdecl")):
        type_name = field["decl"] + field["type"]
        fields.append(Field(field["name"], trailing(body, rf"\b{field['name']}(?:\[\d+\])?;"), type_name))
    initial = headers.initial(name)
    if initial is not None:
        if len(initial) != len(fields):
            raise EmitError(f"{name.upper()}_INIT has {len(initial)} values for {len(fields)} fields")
        for field, value in zip(fields, initial):
            field.initial = value
    return Struct(name, headers.before(rf"^typedef struct {name}\b"), fields)


def read_function(element, headers):
    found = attributes(element)
    name = found["name"]
    result = re.fullmatch(r"f\(.*\)\.(.*)", found["decl"])[1] + found["type"]
    parameters = []
    for parameter in map(attributes, element.findall("attributelist/parmlist/parm")):
        if parameter["type"] != "void":
            parameters.append((parameter["name"], parameter["type"]))
    return Function(name, headers.before(rf"^ANNULUS_API\s[^;(]*?\b{name}\("), result, parameters)


def read_constant(element, headers):
    found = attributes(element)
    name, value = found["name"], found["value"]
    if found["type"] != "int" or not re.fullmatch(r"[0-9()*+-]+", value):
        raise EmitError(f"{name} is {value!r} of type {found['type']}, not a plain number")
    return Constant(name, headers.before(rf"^#define {name}\b"), eval(value))


def read_header(include, headers):
    """The declarations of one header, in its order."""
    declarations, structs = [], set()
    for element in include:
        found = attributes(element)
        kind = found.get("kind")
        if element.tag == "attributelist":
            continue
        if element.tag == "enum":
            declarations.append(read_enum(element, headers))
            structs.add(f"enum {found['name']}")
        elif element.tag == "class" and kind == "struct":
            declarations.append(read_struct(element, headers))
            structs.add(f"struct {found['name']}")
        elif element.tag == "constant":
            declarations.append(read_constant(element, headers))
        elif element.tag == "cdecl" and kind == "function":
            declarations.append(read_function(element, headers))
        elif element.tag == "cdecl" and kind == "typedef" and found["type"] in structs:
            pass  # of the struct or enum that has just been read
        elif element.tag == "cdecl" and kind == "typedef" and found["type"] == f"struct {found['name']}":
            declarations.append(Opaque(found["name"], headers.before(rf"^typedef struct {found['name']}\b")))
        else:
            raise EmitError(f"{element.tag} {found.get('name')} of kind {kind} is not known here")
    return declarations


def read_api(swig):
    headers = Headers()
    with tempfile.TemporaryDirectory() as directory:
        output = pathlib.Path(directory) / "annulus.xml"
        command = [swig, "-xml", f"-I{API}", "-o", output, INTERFACE]
        subprocess.run(command, check=True)
        tree = ElementTree.parse(output).getroot()
    declarations = []
    for include in tree.iter("include"):
        if pathlib.Path(attributes(include)["name"]).parent == API / "annulus":
            declarations += read_header(include, headers)
    found = {each.name for each in declarations if isinstance(each, Function)}
    if found != headers.functions():
        raise EmitError(f"annulus.i and the headers differ in {sorted(found ^ headers.functions())}")
    return declarations


# ---- What both languages need


def split_array(type_name):
    """('int64_t', 4) of SWIG's a(4).int64_t; the length is None where it is no array."""
    found = re.fullmatch(r"a\((\d+)\)\.(.*)", type_name)
    return (found[2], int(found[1])) if found else (type_name, None)


def split_function_pointer(type_name):
    """(parameters, result) of SWIG's p.f(p.void,size_t).p.void; None where it is none."""
    found = re.fullmatch(r"p\.f\((.*)\)\.(.*)", type_name)
    return (found[1].split(","), found[2]) if found else None


def named_type(name, declarations, language):
    if name in SCALARS:
        return SCALARS[name][language]
    if any(each.name == name and not isinstance(each, (Function, Constant)) for each in declarations):
        return name
    raise EmitError(f"C type {name!r} is not known here")


def safe(name):
    return name + "_" if name in RESERVED else name


def paragraphs(text):
    """(is_table, lines) of each paragraph; tables and formulas are those that are indented throughout."""
    for block in re.split(r"\n\s*\n", text):
        lines = block.splitlines()
        if all(line.startswith("  ") for line in lines):
            indent = min(len(line) - len(line.lstrip()) for line in lines)
            yield True, [line[indent:] for line in lines]
        else:
            yield False, [line.strip() for line in lines]


def escaped(line):
    """A line of prose with a backslash before what Markdown would take for a link, emphasis, a tag or a quotation."""
    return re.sub(r"([\[\]]|\*(?=\S)|<(?=\w)|^>)", r"\\\1", line)


def markdown(text):
    """A comment's words as lines of Markdown."""
    result = []
    for is_table, lines in paragraphs(text):
        result += [""] if result else []
        result += ["```text", *lines, "```"] if is_table else [escaped(line) for line in lines]
    return result


# ---- Rust


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
    return named_type(type_name, declarations, 0)


def rust_doc(text, indent=""):
    return [f"{indent}/// {line}".rstrip() for line in markdown(text)] if text else []


def rust_initial(value, field):
    if value.startswith("sizeof("):
        return f"std::mem::size_of::<{value[7:-1]}>()"
    if value == "NULL":
        return "None" if split_function_pointer(field.type) else "std::ptr::null_mut()"
    return value + ".0" if field.type == "double" else value


def rust_struct(struct, declarations):
    lines = rust_doc(struct.doc) + ["#[repr(C)]", "#[derive(Clone, Copy, Debug)]", f"pub struct {struct.name} {{"]
    for field in struct.fields:
        lines += rust_doc(field.doc, "    ")
        lines.append(f"    pub {safe(field.name)}: {rust_type(field.type, declarations)},")
    lines.append("}")
    if struct.fields[0].initial is not None:
        lines += ["", f"pub const {struct.name.upper()}_INIT: {struct.name} = {struct.name} {{"]
        for field in struct.fields:
            lines.append(f"    {safe(field.name)}: {rust_initial(field.initial, field)},")
        lines.append("};")
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
    # No size and no place to stand but behind a pointer; neither Send nor Sync by itself.
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
            lines += ["", *rust_doc(each.doc), f"pub type {each.name} = c_int;"]
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


# ---- Julia


def julia_type(type_name, declarations):
    if split_function_pointer(type_name):
        return "Ptr{Cvoid}"
    element, length = split_array(type_name)
    if length is not None:
        return f"NTuple{{{length}, {julia_type(element, declarations)}}}"
    pointer = re.fullmatch(r"p\.(q\(const\)\.)?(.*)", type_name)
    if pointer:
        return "Cstring" if type_name == "p.q(const).char" else f"Ptr{{{julia_type(pointer[2], declarations)}}}"
    return named_type(type_name, declarations, 1)


def julia_documented(text, definition):
    """The definition with its documentation, which @doc joins to what stands behind it."""
    if not text:
        return definition
    if '"""' in text:
        raise EmitError(f"a comment has three quotation marks: {text}")
    return ['@doc raw"""', *markdown(text), '""" ' + definition[0], *definition[1:]]


def julia_initial(value):
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
        values = ", ".join(julia_initial(field.initial) for field in struct.fields)
        lines += ["", f"const {struct.name.upper()}_INIT = {struct.name}({values})"]
    return lines


def julia_function(function, declarations):
    typed = [f"{safe(name)}::{julia_type(type_name, declarations)}" for name, type_name in function.parameters]
    names = ", ".join(safe(name) for name, _ in function.parameters)
    call = f"@library_call {function.name}({', '.join(typed)})::{julia_type(function.result, declarations)}"
    return julia_documented(function.doc, [f"function {function.name}({names})", f"    {call}", "end"])


def julia_enum(enum):
    lines = julia_documented(enum.doc, [f"const {enum.name} = Cint"])
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


# ---- How C lays the structs out


def layout(declarations):
    lines = [
        "/* SPDX-License-Identifier: Apache-2.0 */",
        "/* Written by bindings/emit.py from the C headers; a test fails when they differ. */",
        "/* Prints how the compiler lays out every struct of the API: its size, and each field's offset and size. */",
        "#include <annulus/annulus.h>",
        "#include <stddef.h>",
        "#include <stdio.h>",
        "",
        "#define STRUCT(type) printf(#type \" %zu\\n\", sizeof(type))",
        "#define FIELD(type, field) \\",
        "    printf(#type \".\" #field \" %zu %zu\\n\", offsetof(type, field), sizeof(((type *)0)->field))",
        "",
        "int main(void) {",
    ]
    for struct in declarations:
        if isinstance(struct, Struct):
            lines.append(f"    STRUCT({struct.name});")
            lines += [f"    FIELD({struct.name}, {field.name});" for field in struct.fields]
    return "\n".join([*lines, "    return 0;", "}", ""])


# ---- The program


def stale(path, text):
    """Whether the file is not `text`; says where."""
    old = path.read_text(encoding="utf-8") if path.exists() else ""
    names = str(path), "what emit.py would write"
    sys.stdout.writelines(difflib.unified_diff(old.splitlines(True), text.splitlines(True), *names))
    return old != text


def main():
    parser = argparse.ArgumentParser(description="Writes the declarations of the C API for Rust and Julia.")
    parser.add_argument("--check", action="store_true", help="write nothing, fail where a file is stale")
    parser.add_argument("--swig", default="swig", help="the SWIG program")
    arguments = parser.parse_args()
    swig = shutil.which(arguments.swig)
    if not swig:
        print(f"emit.py: there is no {arguments.swig}", file=sys.stderr)
        return SKIPPED
    try:
        api = read_api(swig)
        files = {RUST: rust(api), JULIA: julia(api), LAYOUT: layout(api)}
    except (EmitError, subprocess.CalledProcessError) as error:
        print(f"emit.py: {error}", file=sys.stderr)
        return 2
    if arguments.check:
        return int(any([stale(path, text) for path, text in files.items()]))
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
