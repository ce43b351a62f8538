# SPDX-License-Identifier: Apache-2.0
"""Writes a C program that prints how the compiler lays out the structs."""

from .declarations import Struct


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
        "#define FIELD(type, field) "
        "printf(#type \".\" #field \" %zu %zu\\n\", offsetof(type, field), sizeof(((type *)0)->field))",
        "",
        "int main(void) {",
    ]
    for struct in declarations:
        if isinstance(struct, Struct):
            lines.append(f"    STRUCT({struct.name});")
            lines += [f"    FIELD({struct.name}, {field.name});" for field in struct.fields]
    return "\n".join([*lines, "    return 0;", "}", ""])
