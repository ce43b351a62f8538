# SPDX-License-Identifier: Apache-2.0
"""Turns the text of comments into Markdown."""

import re


def paragraphs(text):
    """Yields (is_indented, lines) for each paragraph. If all lines are indented, it is a table, a formula or a list."""
    for block in re.split(r"\n\s*\n", text):
        lines = block.splitlines()
        if all(line.startswith("  ") for line in lines):
            indent = min(len(line) - len(line.lstrip()) for line in lines)
            yield True, [line[indent:] for line in lines]
        else:
            yield False, [line.strip() for line in lines]


def list_items(lines):
    """Returns the items of a list, each as its lines, or None if an indented paragraph is no list."""
    items = []
    for line in lines:
        if re.match(r"(-|\d+\.) ", line):
            items.append([line])
        elif items and line.startswith("  "):
            items[-1].append(line)
        else:
            return None
    return items


def escaped(line):
    """Puts a backslash before text that Markdown would take for a link, emphasis, a tag or a quotation."""
    return re.sub(r"([\[\]]|\*(?=\S)|<(?=\w)|^>)", r"\\\1", line)


def markdown(text):
    """Returns the text of a comment as lines of Markdown."""
    result = []
    for is_indented, lines in paragraphs(text):
        result += [""] if result else []
        keeps_lines = is_indented and not list_items(lines)
        result += ["```text", *lines, "```"] if keeps_lines else [escaped(line) for line in lines]
    return result
