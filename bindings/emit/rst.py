# SPDX-License-Identifier: Apache-2.0
"""Turns the C API, and the text of comments and docstrings, into reStructuredText for Sphinx."""

import re

from .declarations import Constant, Enum, Function, Opaque, Struct
from .headers import opening_comment
from .markdown import list_items, paragraphs
from .types import split_array, split_function_pointer

WORD = re.compile(
    r"`(?P<code>[^`]+)`|(?P<python>\bannulus(?:\.\w+)+)(?:\(\))?|"
    r"\b(?P<name>annulus_\w+|ANNULUS_\w+)(?:\(\))?|[\\*|`_]"
)
ITEM = re.compile(r"(\w+(?:, \w+)*): (.*)")
ROLES = {Function: "func", Struct: "struct", Opaque: "struct", Enum: "enum", Constant: "macro"}


def indented(lines):
    return ["   " + line if line else "" for line in lines]


def roles_of(declarations):
    """Returns the role of Sphinx that makes a link of a name, for each name of the API."""
    roles = {}
    for each in declarations:
        roles[each.name] = f"c:{ROLES[type(each)]}"
        roles.update((item.name, "c:enumerator") for item in getattr(each, "items", []))
        if isinstance(each, Struct) and each.fields[0].initial is not None:
            roles[each.name.upper() + "_INIT"] = "c:macro"
    return roles


def inline(text, roles):
    """Marks up a paragraph: `code` as code, names of the API and of the Python package as links; escapes all else."""

    def word(found):
        if found["code"]:
            return f"``{found['code']}``"
        if found["python"]:
            return f":py:obj:`{found['python']}`"
        if found["name"] in roles:
            return f":{roles[found['name']]}:`{found['name']}`\\ "  # ends the role also before a bracket
        return re.sub(r"[\\*|`_]", r"\\\g<0>", found[0])

    return WORD.sub(word, text)


def items_of(lines):
    """Returns (names, words) for a paragraph of lines `name: words` with further words indented below, else None."""
    items = []
    for line in lines:
        found = ITEM.fullmatch(line)
        if found:
            items.append((found[1], [found[2]]))
        elif items and line.startswith("    "):
            items[-1][1].append(line.strip())
        else:
            return None
    return items


def rst(text, roles):
    """Returns the text of a comment or a docstring as lines. An indented table or formula keeps its lines."""
    if not text:
        return []
    result = []
    for block, (is_indented, lines) in zip(re.split(r"\n\s*\n", text), paragraphs(text)):
        result += [""] if result else []
        items = items_of(block.splitlines())
        if is_indented and (listed := list_items(lines)):
            result += [inline(" ".join(line.strip() for line in item), roles) for item in listed]
        elif is_indented:
            result += ["::", "", *indented(lines)]
        elif items:
            for names, words in items:
                result += [f"``{names}``", *indented([inline(" ".join(words), roles)])]
        else:
            result.append(inline(" ".join(lines), roles))
    return result


def declared(type_name, name):
    """Returns a C declaration, such as `const char *name` for SWIG's p.q(const).char."""
    callback = split_function_pointer(type_name)
    if callback:
        return declared(callback[1], f"(*{name})({', '.join(declared(each, '').strip() for each in callback[0])})")
    element, length = split_array(type_name)
    if length is not None:
        return declared(element, f"{name}[{length}]")
    if type_name.startswith("p."):
        return declared(type_name[2:], f"*{name}")
    if type_name.startswith("q(const)."):
        return "const " + declared(type_name[9:], name)
    return f"{type_name} {name}"


def directive(kind, signature, doc, roles, inner=()):
    return [f".. c:{kind}:: {signature}", "", *indented(rst(doc, roles) + ["", *inner]), ""]


def declaration(each, roles):
    if isinstance(each, Function):
        parameters = ", ".join(declared(type_name, name) for name, type_name in each.parameters)
        return directive("function", declared(each.result, f"{each.name}({parameters or 'void'})"), each.doc, roles)
    if isinstance(each, Constant):
        return directive("macro", each.name, each.doc, roles)
    if isinstance(each, Opaque):
        return directive("struct", each.name, each.doc, roles)
    inner = []
    if isinstance(each, Enum):
        for item in each.items:
            inner += directive("enumerator", f"{item.name} = {item.value}", item.doc, roles)
        return directive("enum", each.name, each.doc, roles, inner)
    for field in each.fields:
        inner += directive("member", declared(field.type, field.name), field.doc, roles)
    lines = directive("struct", each.name, each.doc, roles, inner)
    if each.fields[0].initial is not None:
        macro = each.name.upper() + "_INIT" + (f"({', '.join(each.parameters)})" if each.parameters else "")
        lines += directive("macro", macro, f"The initial value of an {each.name}.", roles)
    return lines


def reference(directory, headers):
    """Returns the comment of annulus.h, and a section for each header. headers: the result of read_headers()."""
    roles = roles_of([each for header in headers.values() for each in header])

    def opening(name):
        return rst(opening_comment((directory / name).read_text(encoding="utf-8")), roles) + [""]

    lines = opening("annulus.h")
    for name, declarations in headers.items():
        lines += [f"annulus/{name}", "-" * len(f"annulus/{name}"), "", *opening(name)]
        for each in declarations:
            lines += declaration(each, roles)
    return lines
