# SPDX-License-Identifier: Apache-2.0
"""Whether a picture can be read on light pages and on dark ones."""

import re
import xml.etree.ElementTree

# White, the dark page of GitHub, and that of the site (doc/site/conf.py).
GROUNDS = ("#ffffff", "#0d1117", "#131416")


def luminance(color):
    """WCAG 2's relative luminance of #RRGGBB."""
    parts = [int(color[i:i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one, other):
    """WCAG 2's contrast ratio, from 1 to 21."""
    low, high = sorted(map(luminance, (one, other)))
    return (high + 0.05) / (low + 0.05)


def texts_without_color(element):
    """Texts to which neither a class nor they themselves nor what they stand in give a color: they are black."""
    if "fill" in element.attrib or "fill:" in element.get("style", "") or "class" in element.attrib:
        return
    if element.tag.endswith("}text"):
        yield f"'{element.text}' has no color"
    for inner in element:
        yield from texts_without_color(inner)


def faults(svg):
    """What an SVG draws in a color that some ground hides: WCAG 2 asks for 3 of shapes and of large letters. Grounds of
    its own are among it, which leave a white block on a dark page."""
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
