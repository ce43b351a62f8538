# SPDX-License-Identifier: Apache-2.0
"""Draws the diagrams of doc/architecture.md and doc/ranks.md.

Usage: python3 doc/diagrams.py DIRECTORY    writes architecture.svg, call.svg and ranks_round.svg
"""

import pathlib
import sys

# Colours that can be read on light pages and on dark ones, as in pattern.py.
INK, GREEN, BLUE, RED, VIOLET = "#767b82", "#2f8f4e", "#2a7fd6", "#d64545", "#9a63d6"
LINE = 17  # pixels


class Drawing:
    """Boxes with lines of text, and arrows between points, in pixels."""

    def __init__(self, title, width, height):
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            f'font-family="sans-serif" font-size="13" fill="{INK}">',
            f"<title>{title}</title>",
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            f'orient="auto"><path d="M0 0L8 4L0 8z" fill="{INK}"/></marker></defs>',
        ]

    def text(self, x, y, words, color=INK, anchor="middle", weight="normal"):
        self.parts.append(
            f'<text x="{x}" y="{y}" fill="{color}" text-anchor="{anchor}" font-weight="{weight}">{words}</text>'
        )

    def box(self, x, y, width, height, lines, color=INK, is_dashed=False):
        """A frame; the first line is bold."""
        dashes = ' stroke-dasharray="5 4"' if is_dashed else ""
        self.parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="5" fill="none" stroke="{color}" '
            f'stroke-width="1.5"{dashes}/>'
        )
        top = y + height / 2 - LINE * (len(lines) - 1) / 2 + 4
        for index, words in enumerate(lines):
            self.text(x + width / 2, top + LINE * index, words, color if index == 0 else INK,
                      weight="normal" if index else "bold")

    def arrow(self, x1, y1, x2, y2, words=""):
        self.parts.append(
            f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{INK}" stroke-width="1.5" marker-end="url(#head)"/>'
        )
        if words:
            self.text((x1 + x2) / 2 + 6, (y1 + y2) / 2 + 4, words, anchor="start")

    def write(self, path):
        path.write_text("\n".join([*self.parts, "</svg>"]) + "\n", encoding="utf-8")


def architecture():
    drawing = Drawing("The rooms of the library: each box uses the boxes below it", 760, 452)
    drawing.box(20, 10, 150, 44, ["annulus", "the program"], GREEN)
    drawing.box(185, 10, 365, 44, ["Python, Rust, Julia", "packages over the C API"], GREEN)
    drawing.box(565, 10, 175, 44, ["C programs"], GREEN)
    for x in (95, 367, 652):
        drawing.arrow(x, 54, x, 76)
    drawing.box(20, 78, 720, 44, ["capi/", "checks each argument, turns exceptions into statuses"], BLUE)
    drawing.arrow(380, 122, 380, 142)
    drawing.box(20, 144, 720, 44, ["call/", "contexts, communicators, memory, the cache of prepared calls"], BLUE)
    for x in (95, 300, 475, 650):
        drawing.arrow(x, 188, x, 218)
    drawing.box(20, 220, 150, 64, ["ranks/", "sequences that", "ranks share"], VIOLET)
    drawing.box(205, 220, 190, 64, ["cpu/", "engines cpu, reference"], RED)
    drawing.box(408, 212, 332, 80, [""], INK, is_dashed=True)
    drawing.box(415, 220, 105, 64, ["cuda/gemm/", "cuBLAS", "products"], RED)
    drawing.box(530, 220, 203, 64, ["cuda/fused/", "engines fused, mma:", "one kernel a tile"], RED)
    drawing.text(540, 309, "libannulus-cuda.so.1")
    drawing.arrow(95, 284, 95, 318)
    drawing.box(20, 320, 150, 44, ["transport/", "threads, MPI, NCCL"], VIOLET)
    drawing.arrow(300, 284, 300, 318)
    drawing.arrow(690, 292, 690, 318)
    drawing.box(205, 320, 535, 44, ["engine/", "what an engine and a device can be asked for"], BLUE)
    for x in (95, 470):
        drawing.arrow(x, 364, x, 390)
    drawing.box(20, 392, 720, 44, ["core/", "pattern, plan, dtypes, tensors: arithmetic alone"], BLUE)
    return drawing


def call():
    drawing = Drawing("The life of a call", 760, 392)
    left, width = 20, 300
    steps = (
        (["capi/: check each argument"], BLUE),
        (["call/: check arguments together"], BLUE),
        (["call/: look the problem up"], BLUE),
        (["call/: get the workspace"], BLUE),
        (["engine: run"], RED),
        (["results in the caller's tensors"], GREEN),
    )
    for index, (lines, color) in enumerate(steps):
        y = 10 + 64 * index
        drawing.box(left, y, width, 38, lines, color)
        if index + 1 < len(steps):
            drawing.arrow(left + width / 2, y + 38, left + width / 2, y + 62, "found" if index == 2 else "")
    drawing.box(430, 74, 310, 38, ["core/: plan the pattern"], VIOLET)
    drawing.box(430, 148, 310, 60, ["engines: prepare()", "fix grids, memory, kernels; or say why not"], VIOLET)
    drawing.arrow(320, 150, 428, 100)
    drawing.text(352, 104, "first time")
    drawing.arrow(585, 112, 585, 146)
    drawing.arrow(428, 192, 322, 216)
    drawing.text(585, 226, "the prepared call is kept", anchor="middle")
    return drawing


def ranks_round():
    drawing = Drawing("A call over two ranks, in time from left to right", 760, 252)
    steps = (
        (20, 110, "agree", INK, "lengths, config"),
        (140, 100, "pack", BLUE, "rows to send"),
        (250, 180, "compute", RED, "own queries, own keys"),
        (440, 190, "compute", RED, "own queries, received keys"),
        (640, 100, "write", GREEN, "O, LSE"),
    )
    for row, y in enumerate((30, 180)):
        drawing.text(20, y - 8, f"rank {row}", anchor="start", weight="bold")
        for x, width, words, color, detail in steps:
            drawing.box(x, y, width, 44, [words, detail], color)
    drawing.arrow(185, 74, 440, 178)
    drawing.arrow(185, 180, 440, 76)
    drawing.text(400, 131, "rows of K and V", anchor="start")
    drawing.text(20, 244, "Backward: the gradients of received rows go back to their owner, who adds them.", anchor="start")
    return drawing


def main():
    directory = pathlib.Path(sys.argv[1])
    for name, draw in (("architecture", architecture), ("call", call), ("ranks_round", ranks_round)):
        draw().write(directory / f"{name}.svg")


if __name__ == "__main__":
    main()
