# SPDX-License-Identifier: Apache-2.0
"""Tests the page and the plots that report.py makes of given figures. Nothing is measured."""

import contextlib
import importlib.util
import io
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import types
import unittest
import unittest.mock as mock
import xml.etree.ElementTree as ElementTree

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent), str(pathlib.Path(__file__).resolve().parents[1] / "cli")]
import figures  # noqa: E402
import report  # noqa: E402
from colors import assert_colors_suit_any_ground  # noqa: E402
import tap  # noqa: E402

MEASURED = {"commands": ["annulus bench --tokens N"], "device": "A device", "date": "2001-02-03"}
LINES = {
    "key": "lines", "title": "By length", "text": "In milliseconds.", "columns": ["tokens", "ours", "theirs"],
    "rows": [[512, 0.123456, None], [4096, 1234.5, 2.0]],
    "plot": {"x": 0, "series": [1, 2], "label": "milliseconds"}, **MEASURED,
}
BARS = {
    "key": "bars", "title": "By pattern", "text": "Shares.", "columns": ["branch", "forward", "backward"],
    "rows": [["2048:1", 0.5, 0.25], ["8192:4", None, 0.75]],
    "plot": {"x": 0, "series": [1, 2], "label": "share of sgemm"}, **MEASURED,
}
TABLE = {
    "key": "table", "title": "A table", "text": "No plot.", "columns": ["tokens", "memory"],
    "rows": [[512, "failed"]], "plot": None, **MEASURED,
}
SKIPPED = {"key": "skipped", "title": "Not here", "skipped": "it needs two GPUs"}
REPORT = {
    "machine": {"date": "2001-02-03", "build": "annulus 0.1.0", "gpus": 1}, "figures": [LINES, BARS, TABLE, SKIPPED],
}


def texts(path):
    return [element.text.strip() for element in ElementTree.parse(path).iter() if element.tag.endswith("}text")]


class FiguresTest(unittest.TestCase):
    def test_section(self):
        self.assertEqual(list(figures.section(LINES, "figures_lines.svg")), [
            "## By length", "", "In milliseconds.", "",
            "| tokens | ours | theirs |", "|---:|---:|---:|", "| 512 | 0.123 |  |", "| 4,096 | 1,234 | 2 |", "",
            "![By length](figures_lines.svg)", "",
            "A device, 2001-02-03:", "", "```sh", "annulus bench --tokens N", "```", ""])

    def test_wide_tables_are_of_one_pass_each(self):
        """Columns beyond the edge of a page cannot be seen. Tables that fit stay whole."""
        names = ["annulus", "cuDNN", "LongNet's way"]
        wide = {**BARS, "columns": ["branch", *(f"forward, {name}" for name in names), "forward, gemm",
                                    *(f"backward, {name}" for name in names)], "rows": [["8:1", *range(1, 8)]]}
        lines = list(figures.section(wide, None))
        self.assertEqual(lines[4:14], [
            "Forward:", "", "| branch | annulus | cuDNN | LongNet's way | gemm |", "|---|---:|---:|---:|---:|",
            "| 8:1 | 1 | 2 | 3 | 4 |", "",
            "Backward:", "", "| branch | annulus | cuDNN | LongNet's way |", "|---|---:|---:|---:|"])
        self.assertEqual(lines[14:16], ["| 8:1 | 5 | 6 | 7 |", ""])
        narrow = {**wide, "columns": wide["columns"][:7], "rows": [["8:1", *range(1, 7)]]}
        self.assertEqual(list(figures.section(narrow, None))[4], "| " + " | ".join(narrow["columns"]) + " |")

    def test_section_without_a_plot(self):
        lines = list(figures.section(TABLE, None))
        self.assertIn("| 512 | failed |", lines)
        self.assertIn("|---:|---|", lines)
        self.assertFalse([line for line in lines if line.startswith("!")])

    def test_the_page_says_at_once_what_is_not_in_it(self):
        self.assertEqual(list(figures.beginning(REPORT))[-4:], [
            "Not measured on this machine, so not in this page:", "", "- Not here: it needs two GPUs.", ""])
        complete = {**REPORT, "figures": [LINES]}
        self.assertNotIn("not in this page", "\n".join(figures.beginning(complete)))

    def test_a_page_from_a_cpu_says_so(self):
        for gpus in (0, 1):
            beginning = "\n".join(figures.beginning({**REPORT, "machine": {**REPORT["machine"], "gpus": gpus}}))
            self.assertEqual("There was no GPU" in beginning, gpus == 0)

    def test_figures_that_are_not_asked_for_stay(self):
        def skip(machine):
            raise report.Skipped("it needs two GPUs")

        machine = types.SimpleNamespace(build="annulus", gpus=1, begin=lambda: None, commands=[], device="A device")
        makers = {"lines": ("By length", lambda machine: {"text": "New."}), "bars": ("By pattern", skip),
                  "table": ("A table", skip)}
        with tempfile.TemporaryDirectory() as directory, mock.patch.dict(report.FIGURES, makers, clear=True):
            written = pathlib.Path(directory, "figures.json")
            written.write_text(json.dumps({**REPORT, "figures": [BARS, LINES]}), encoding="utf-8")
            with contextlib.redirect_stderr(io.StringIO()):
                found = report.measure(machine, written, ["lines"])["figures"]
                self.assertEqual(json.loads(written.read_text(encoding="utf-8"))["figures"], found)
                self.assertEqual([each.get("text") for each in found], ["New.", "Shares."])
                everything = report.measure(machine, written, [])["figures"]
        self.assertEqual([each["key"] for each in everything], ["lines", "bars", "table"])
        self.assertEqual([each.get("skipped") for each in everything], [None, *["it needs two GPUs"] * 2])

    @unittest.skipUnless(importlib.util.find_spec("matplotlib"), "there is no matplotlib")
    def test_page(self):
        with tempfile.TemporaryDirectory() as directory:
            source, out = pathlib.Path(directory, "measured.json"), pathlib.Path(directory, "out")
            source.write_text(json.dumps(REPORT), encoding="utf-8")
            program = pathlib.Path(figures.__file__).with_name("report.py")
            subprocess.run([sys.executable, program, out, "--figures", source], check=True)
            self.assertEqual(sorted(path.name for path in out.iterdir()),
                             ["figures.md", "figures_bars.svg", "figures_lines.svg"])
            page = (out / "figures.md").read_text(encoding="utf-8")
            headings = [line for line in page.splitlines() if line.startswith("#")]
            self.assertEqual(headings, ["# Figures", "## By length", "## By pattern", "## A table"])
            lines_texts, bars_texts = texts(out / "figures_lines.svg"), texts(out / "figures_bars.svg")
            for text in ("tokens", "512", "4,096", "ours", "theirs", "milliseconds"):
                self.assertIn(text, lines_texts)
            for text in ("2048:1", "8192:4", "forward", "backward", "share of sgemm"):
                self.assertIn(text, bars_texts)
            for name in ("bars", "lines"):
                assert_colors_suit_any_ground(self, out / f"figures_{name}.svg")
                self.assert_legend_is_above_the_axes(out / f"figures_{name}.svg")

    def assert_legend_is_above_the_axes(self, path):
        parts = {element.get("id"): element for element in ElementTree.parse(path).iter() if element.get("id")}
        frame = next(parts["patch_2"].iter("{http://www.w3.org/2000/svg}path")).get("d")
        top = min(float(y) for y in re.findall(r"[ML] \S+ (\S+)", frame))
        words = [element for element in parts["legend_1"].iter() if element.tag.endswith("}text")]
        self.assertEqual(len(words), 2)
        for each in words:
            place = re.match(r"translate\(\S+ (\S+)\)", each.get("transform", ""))
            self.assertLess(float(place[1] if place else each.get("y")), top)


if __name__ == "__main__":
    tap.main()
