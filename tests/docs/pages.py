# SPDX-License-Identifier: Apache-2.0
"""The pages keep up with the tree: links and anchors lead somewhere, README.md leads to every page of doc/, its C example
is a part of the program, the tables that list something list all of it, and every public function has a comment."""

import ast
import pathlib
import re
import tempfile
import textwrap
import unittest

import tap

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = ("*.md", "doc/*.md", "src/**/*.md", "bindings/**/README.md")
SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)


def pages_of(root):
    return sorted(page for pattern in PAGES for page in root.glob(pattern))


def read(path):
    return path.read_text(encoding="utf-8")


def without_blocks(text):
    """A page without its blocks of code."""
    return re.sub(r"^(```|~~~).*?^\1[ \t]*$", "", text, flags=re.MULTILINE | re.DOTALL)


def blocks(text, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def links_of(text):
    """Where a page's links and pictures lead to."""
    prose = re.sub(r"(`+).+?\1", "", without_blocks(text), flags=re.DOTALL)
    return (re.findall(r"\]\(\s*<?([^)\s>]+)", prose) +
            re.findall(r"^ {0,3}\[[^\]]+\]:[ \t]*(\S+)", prose, re.MULTILINE))


def anchors_of(text):
    """The anchors of a page's headings, as GitHub makes them."""
    anchors, times = set(), {}
    for heading in re.findall(r"^#{1,6}[ \t]+(.*?)[ \t#]*$", without_blocks(text), re.MULTILINE):
        words = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
        times[slug] = times.get(slug, -1) + 1
        anchors.add(f"{slug}-{times[slug]}" if times[slug] else slug)
    return anchors


def dead_links(root):
    faults = []
    for page in pages_of(root):
        for link in links_of(read(page)):
            if SCHEME.match(link):
                continue
            name, _, anchor = link.partition("#")
            target = (page.parent / name).resolve() if name else page
            if not target.is_relative_to(root) or not target.exists():
                faults.append(f"{page.relative_to(root)}: {link} is not there")
            elif anchor and (target.suffix != ".md" or anchor not in anchors_of(read(target))):
                faults.append(f"{page.relative_to(root)}: {link} is no heading")
    return faults


def without_comment(header):
    """The functions of a header that no comment ends before, on the line above."""
    functions = re.findall(r"(.*\n)^ANNULUS_API\b[^;{(]*?\b(\w+)\s*\(", header, re.MULTILINE)
    return [name for above, name in functions if not above.rstrip().endswith("*/")]


class PagesTest(unittest.TestCase):
    """The tree itself."""

    def assert_none(self, faults):
        if faults:
            self.fail("\n".join(["", *faults]))

    def test_links_lead_somewhere(self):
        self.assert_none(dead_links(ROOT))

    def test_readme_leads_to_every_page(self):
        links = {link.partition("#")[0] for link in links_of(read(ROOT / "README.md"))}
        pages = [page.relative_to(ROOT).as_posix() for page in ROOT.glob("doc/*.md")]
        self.assertTrue(pages)
        self.assert_none([f"README.md has no link to {page}" for page in sorted(pages) if page not in links])

    def test_c_example_is_part_of_the_program(self):
        """Which is compiled and run as a test."""
        examples = blocks(read(ROOT / "README.md"), "c")
        self.assertTrue(examples)
        program = read(ROOT / "examples/01_forward_backward.c")
        self.assert_none([example for example in examples if textwrap.indent(example, "    ") not in program])

    def test_refused_arguments_are_listed(self):
        """The names in the dict of _unknown.py: its keys, or the tuples that dict.fromkeys() takes."""
        tree = ast.parse(read(ROOT / "bindings/python/annulus/_unknown.py"))
        table = next(node.value for node in tree.body if isinstance(node, ast.AnnAssign))
        names = [key.value for key in table.keys if key]
        names += [name.value for call in table.values if isinstance(call, ast.Call) for name in call.args[0].elts]
        self.assertGreater(len(names), 1)
        page = read(ROOT / "doc/migration.md")
        section = page[page.index("\n## Arguments that are refused by name\n"):]
        self.assert_none([name for name in names if f"`{name}`" not in section])

    def test_statuses_are_listed(self):
        names = re.findall(r"^ +(ANNULUS_ERROR_\w+) =", read(ROOT / "api/annulus/status.h"), re.MULTILINE)
        self.assertTrue(names)
        page = read(ROOT / "doc/troubleshooting.md")
        self.assert_none([name for name in names if f"\n| `{name}`, " not in page])

    def test_public_functions_have_comments(self):
        headers = sorted((ROOT / "api/annulus").glob("*.h"))
        self.assertTrue(headers)
        self.assert_none([f"{header.name}: {name}" for header in headers for name in without_comment(read(header))])


class PlantedFaultTest(unittest.TestCase):
    """Faults that are planted in a small tree are found, and nothing else is."""

    TREE = {
        "README.md": "# A `b`, c!\n[x](doc/page.md#two-words-1) ![y](doc/y.svg) [z](#a-b-c) [w](https://none.example/#q)\n"
                     "`[code](nowhere)`\n```\n# No heading\n[code](nowhere)\n```\n",
        "doc/page.md": "## Two words\n## Two words\n[up](../README.md) [down](y.svg)\n[ref]: ../README.md#a-b-c\n",
        "doc/y.svg": "",
    }

    def faults(self, name="README.md", more=""):
        with tempfile.TemporaryDirectory() as directory:
            root = pathlib.Path(directory).resolve()
            for path, text in self.TREE.items():
                (root / path).parent.mkdir(exist_ok=True)
                (root / path).write_text(text + (more if path == name else ""), encoding="utf-8")
            return dead_links(root)

    def test_none(self):
        self.assertEqual(self.faults(), [])

    def test_missing_file(self):
        self.assertEqual(self.faults(more="[x](doc/other.md)\n"), ["README.md: doc/other.md is not there"])

    def test_link_from_the_wrong_directory(self):
        self.assertEqual(self.faults("doc/page.md", "[x](doc/y.svg)\n"), ["doc/page.md: doc/y.svg is not there"])

    def test_file_outside_the_tree(self):
        self.assertEqual(self.faults(more="[x](../..)\n"), ["README.md: ../.. is not there"])

    def test_missing_anchor(self):
        self.assertEqual(self.faults(more="[x](#d) [y](doc/page.md#two-words-2)\n"),
                         ["README.md: #d is no heading", "README.md: doc/page.md#two-words-2 is no heading"])

    def test_heading_in_a_block(self):
        self.assertEqual(self.faults(more="[x](#no-heading)\n"), ["README.md: #no-heading is no heading"])

    def test_missing_reference(self):
        self.assertEqual(self.faults("doc/page.md", "[r]: none.md\n"), ["doc/page.md: none.md is not there"])

    def test_missing_comment(self):
        header = "/* What it does. */\nANNULUS_API void annulus_a(void);\nANNULUS_API const char\n*annulus_b(int *x);\n"
        self.assertEqual(without_comment(header), ["annulus_b"])
        self.assertEqual(without_comment(header + "\n/* Far. */\n\nANNULUS_API int annulus_c(void);\n"),
                         ["annulus_b", "annulus_c"])


if __name__ == "__main__":
    tap.main()
