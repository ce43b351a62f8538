# SPDX-License-Identifier: Apache-2.0
"""Turns the text of comments into Markdown."""

import re


def paragraphs(text):
    """Yields (is_table, lines) for each paragraph. A paragraph with all lines indented is a table or a formula."""
    for block in re.split(r"\n\s*\n", text):
        lines = block.splitlines()
        if all(line.startswith("  ") for line in lines):
            indent = min(len(line) - len(line.lstrip()) for line in lines)
            yield True, [line[indent:] for line in lines]
        else:
            yield False, [line.strip() for line in lines]


def escaped(line):
    """Puts a backslash before text that Markdown would take for a link, emphasis, a tag or a quotation."""
    return re.sub(r"([\[\]]|\*(?=\S)|<(?=\w)|^>)", r"\\\1", line)


def markdown(text):
    """Returns the text of a comment as lines of Markdown."""
    result = []
    for is_table, lines in paragraphs(text):
        result += [""] if result else []
        result += ["```text", *lines, "```"] if is_table else [escaped(line) for line in lines]
    return result
