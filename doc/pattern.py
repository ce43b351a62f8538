# SPDX-License-Identifier: Apache-2.0
"""Draws doc/pattern.svg: which keys each query attends to in three dilated branches, and in their union.

Usage: python3 doc/pattern.py > doc/pattern.svg
"""

POSITIONS = 32
BRANCHES = ((8, 1), (16, 2), (32, 4))
CELL = 6
GAP = 22  # between panels, and around them
TOP = 44
# On a transparent ground they can be read on light pages and on dark ones.
INK = "#767b82"
COLOURS = ("#2f8f4e", "#2a7fd6", "#d64545")
UNION = "#9a63d6"


def attends(branch, n, m):
    """The dilated query rule with phase 0, causal (doc/semantics.md)."""
    length, dilation = branch
    same_segment = n // length == m // length
    return same_segment and m <= n and n % length % dilation == 0 and m % length % dilation == 0


def panel(index, title, subtitle, colour_of):
    side = POSITIONS * CELL
    left = GAP + index * (side + GAP)
    yield f'<text x="{left}" y="18" font-weight="bold">{title}</text>'
    yield f'<text x="{left}" y="35">{subtitle}</text>'
    yield f'<rect x="{left}" y="{TOP}" width="{side}" height="{side}" fill="none" stroke="{INK}"/>'
    for n in range(POSITIONS):
        for m in range(n + 1):
            colour, opacity = colour_of(n, m)
            if opacity:
                yield (f'<rect x="{left + m * CELL}" y="{TOP + n * CELL}" width="{CELL - 1}" height="{CELL - 1}" '
                       f'fill="{colour}"' + (f' fill-opacity="{opacity}"' if opacity < 1 else "") + "/>")


def union_colour(n, m):
    return UNION, (0, 0.35, 0.65, 1)[sum(attends(branch, n, m) for branch in BRANCHES)]


def main():
    side = POSITIONS * CELL
    width, height = GAP + 4 * (side + GAP), TOP + side + 30
    print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
          f'font-family="sans-serif" font-size="12" fill="{INK}">')
    print('<title>Three dilated branches and their union: rows are queries, columns are keys</title>')
    for index, ((length, dilation), colour) in enumerate(zip(BRANCHES, COLOURS)):
        kept = "every position" if dilation == 1 else f"one in {dilation}"
        for line in panel(index, f"branch {length}:{dilation}", f"segments of {length}, {kept}",
                          lambda n, m: (colour, int(attends((length, dilation), n, m)))):
            print(line)
    for line in panel(3, "all: one softmax", "faint 1 time, middle 2, strong 3", union_colour):
        print(line)
    print(f'<text x="{GAP}" y="{height - 10}">Rows are queries, columns are keys, {POSITIONS} positions; causal; '
          'a head of phase 0.</text>')
    print("</svg>")


if __name__ == "__main__":
    main()
