# SPDX-License-Identifier: Apache-2.0
"""Reads what SWIG leaves out of the headers: the comments and the initial values of structs."""

import re

from .declarations import EmitError


class Headers:
    """The text of the public headers."""

    def __init__(self, directory):
        paths = [path for path in sorted(directory.glob("*.h")) if path.name != "annulus.h"]
        self.text = "\n".join(path.read_text(encoding="utf-8") for path in paths)

    def functions(self):
        return set(re.findall(r"^ANNULUS_API(?:_STATUS)?\s[^;(]*?(\w+)\(", self.text, re.MULTILINE))

    def _only(self, pattern):
        found = list(re.finditer(pattern, self.text, re.MULTILINE))
        if len(found) != 1:
            raise EmitError(f"{pattern!r} stands {len(found)} times in the headers, not once")
        return found[0]

    def before(self, pattern):
        """Returns the comment that ends on the line before the declaration, or ''."""
        above = self.text[: self._only(pattern).start()]
        if not above.endswith("*/\n"):
            return ""
        return plain_comment(above[above.rindex("/*") :])

    def inside(self, opening):
        """Returns the text between the braces of a struct or an enum."""
        start = self._only(opening + r"\s*\{").end()
        return self.text[start : self.text.index("}", start)]

    def initial(self, struct):
        """Returns the parameters of the struct's INIT macro and the fields' values, as C text; None without a macro."""
        macro = re.escape(struct.upper() + "_INIT")
        if not re.search(rf"^#define {macro}\b", self.text, re.MULTILINE):
            return None
        found = self._only(rf"^#define {macro}(?:\(([a-z_, ]*)\))?[\s\\]*\{{([^}}]*)\}}$")
        parameters = [name.strip() for name in (found[1] or "").split(",") if name.strip()]
        values = [value.strip() for value in found[2].replace("\\\n", "").split(",")]
        return parameters, [re.sub(r"^\(\w+\)(?=\w)", "", value) for value in values]  # without casts


def plain_comment(text):
    """Returns the text of a C comment without the stars."""
    lines = [re.sub(r"^\s*/?\*+/? ?|\s*\*/$", "", line).rstrip() for line in text.strip().splitlines()]
    return "\n".join(lines).strip("\n")


def opening_comment(text):
    """Returns the text of a header's own comment, the one after its licence."""
    return plain_comment(re.findall(r"/\*.*?\*/", text, re.DOTALL)[1])


def trailing(body, pattern):
    """Returns the comment after an item on its line, or ''."""
    found = re.search(pattern + r"[ \t]*(/\*.*?\*/)", body, re.DOTALL)
    return " ".join(plain_comment(found[1]).split()) if found else ""
