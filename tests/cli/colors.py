# SPDX-License-Identifier: Apache-2.0
"""Checks that a picture is readable on light and dark pages."""

import re
import xml.etree.ElementTree

# White, GitHub's dark page, and the site's dark page (doc/site/conf.py).
GROUNDS = ("#ffffff", "#0d1117", "#131416")


def luminance(color):
    """Returns WCAG 2's relative luminance of #RRGGBB."""
    parts = [int(color[i:i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one, other):
    """Returns WCAG 2's contrast ratio, from 1 to 21."""
    low, high = sorted(map(luminance, (one, other)))
    return (high + 0.05) / (low + 0.05)


def texts_without_color(element):
    """Returns the texts without a color, which are black: neither a class, nor the text, nor an element around it gives
    one."""
    if "fill" in element.attrib or "fill:" in element.get("style", "") or "class" in element.attrib:
        return
    if element.tag.endswith("}text"):
        yield f"'{element.text}' has no color"
    for inner in element:
        yield from texts_without_color(inner)


def faults(svg):
    """Returns what an SVG draws in a color that some page hides. WCAG 2 asks for a contrast of 3 for shapes and large
    letters. Opaque grounds count, too, since they leave a white block on a dark page."""
    colors = set(re.findall(r"(?:fill|stroke): ?(#?\w+)", svg)) | set(re.findall(r"(?:fill|stroke)=\"([^\"]+)\"", svg))
    colors -= {"none"}
    found = list(texts_without_color(xml.etree.ElementTree.fromstring(svg)))
    for color in sorted(colors):
        if not re.fullmatch(r"#[0-9a-fA-F]{6}", color):
            found.append(f"{color} is not of the form #RRGGBB")
        else:
            found += [f"{color} on {ground}" for ground in GROUNDS if contrast(color, ground) < 3]
    return found


def assert_colors_suit_any_ground(test, path):
    test.assertEqual(faults(path.read_text(encoding="utf-8")), [])
