# SPDX-License-Identifier: Apache-2.0
"""Reads the API from the tree that `swig -xml` writes and from the headers."""

import pathlib
import re
import subprocess
import tempfile
import xml.etree.ElementTree as ElementTree

from .declarations import Constant, EmitError, Enum, Field, Function, Opaque, Struct
from .headers import Headers, trailing


def attributes(element):
    return {each.get("name"): each.get("value") for each in element.findall("attributelist/attribute")}


def read_enum(element, headers):
    name = attributes(element)["name"]
    body = headers.inside(rf"^typedef enum {name} ANNULUS_ENUM_INT32")
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
    parameters, initial = headers.initial(name) or ([], None)
    if initial is not None:
        if len(initial) != len(fields):
            raise EmitError(f"{name.upper()}_INIT has {len(initial)} values for {len(fields)} fields")
        for field, value in zip(fields, initial):
            field.initial = value
    set_from_parameters = [field.name for field in fields if field.initial == f"({field.name})"]
    if set_from_parameters != parameters:
        raise EmitError(f"{name.upper()}_INIT takes {parameters} and sets {set_from_parameters} to them")
    return Struct(name, headers.before(rf"^typedef struct {name}\b"), fields, parameters)


def read_function(element, headers):
    found = attributes(element)
    name = found["name"]
    result = re.fullmatch(r"f\(.*\)\.(.*)", found["decl"])[1] + found["type"]
    parameters = []
    for parameter in map(attributes, element.findall("attributelist/parmlist/parm")):
        if parameter["type"] != "void":
            parameters.append((parameter["name"], parameter["type"]))
    return Function(name, headers.before(rf"^ANNULUS_API(?:_STATUS)?\s[^;(]*?\b{name}\("), result, parameters)


def read_constant(element, headers):
    found = attributes(element)
    name, value = found["name"], found["value"]
    if found["type"] != "int" or not re.fullmatch(r"[0-9()*+-]+", value):
        raise EmitError(f"{name} is {value!r} of type {found['type']}, not a plain number")
    return Constant(name, headers.before(rf"^#define {name}\b"), eval(value))


def read_header(include, headers):
    """Reads the declarations of one header, in its order."""
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
            pass  # the struct or enum was just read
        elif element.tag == "cdecl" and kind == "typedef" and found["type"] == f"struct {found['name']}":
            declarations.append(Opaque(found["name"], headers.before(rf"^typedef struct {found['name']}\b")))
        else:
            raise EmitError(f"{element.tag} {found.get('name')} of kind {kind} is not known here")
    return declarations


def read_headers(swig, api, interface):
    """Reads the headers in api/annulus. Returns the declarations of each by its name, in the order of the interface."""
    headers = Headers(api / "annulus")
    with tempfile.TemporaryDirectory() as directory:
        output = pathlib.Path(directory) / "annulus.xml"
        command = [swig, "-xml", f"-I{api}", "-o", output, interface]
        subprocess.run(command, check=True)
        tree = ElementTree.parse(output).getroot()
    declarations = {}
    for include in tree.iter("include"):
        path = pathlib.Path(attributes(include)["name"])
        if path.parent == api / "annulus":
            declarations[path.name] = read_header(include, headers)
    found = {each.name for header in declarations.values() for each in header if isinstance(each, Function)}
    if found != headers.functions():
        raise EmitError(f"annulus.i and the headers differ in {sorted(found ^ headers.functions())}")
    return declarations


def read_api(swig, api, interface):
    """Reads the declarations of all headers."""
    return [each for header in read_headers(swig, api, interface).values() for each in header]
