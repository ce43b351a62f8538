# SPDX-License-Identifier: Apache-2.0
"""The pages agree with the tree. Links and anchors lead somewhere, README.md leads to every page of doc/, examples are
parts of programs, tables are complete, and every public name has a comment or a docstring."""

import ast
import pathlib
import re
import tempfile
import unittest

from colors import faults
import tap

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = ("*.md", "doc/**/*.md", "src/**/*.md", "bindings/**/README.md")
SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)


def pages_of(root):
    return sorted(page for pattern in PAGES for page in root.glob(pattern))


def read(path):
    return path.read_text(encoding="utf-8")


def without_blocks(text):
    """Returns a page without its blocks of code."""
    return re.sub(r"^(```|~~~).*?^\1[ \t]*$", "", text, flags=re.MULTILINE | re.DOTALL)


def blocks(text, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def indented(text, indent):
    return "".join((indent + line).rstrip() + "\n" for line in text.splitlines())


def links_of(text):
    """Returns the targets of a page's links and pictures."""
    prose = re.sub(r"(`+).+?\1", "", without_blocks(text), flags=re.DOTALL)
    return (re.findall(r"\]\(\s*<?([^)\s>]+)", prose) +
            re.findall(r"^ {0,3}\[[^\]]+\]:[ \t]*(\S+)", prose, re.MULTILINE))


def anchors_of(text):
    """Returns the anchors of a page's headings, as GitHub makes them."""
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


DECLARATION = re.compile(
    r"^(?:ANNULUS_API(?:_STATUS)?\b[^;{(]*?\b(?P<function>\w+)\s*\(|"
    r"typedef (?:struct|enum) (?P<type>\w+)[^;{]*(?:\{(?P<members>[^}]*)\})?|"
    r"#define (?P<constant>ANNULUS_\w+(?<!_INIT)) )",
    re.MULTILINE,
)
MEMBER = re.compile(r"(?:\b(\w+) = \d+\b,?|\b(\w+)(?:\[\d+\])?;|\(\*(\w+)\)\(.*?;)[ \t]*(/\*)?")


def declarations(header):
    """Yields (name, comment above it) for each function, type and constant of a header.

    Also yields (name, comment) for each value of an enum and each member of a struct. The comment is the one after it
    on its line, or else that of the type if it names the member.
    """
    for found in DECLARATION.finditer(header):
        above = header[:found.start()]
        comment = above[above.rindex("/*"):] if above.endswith("*/\n") else ""
        yield found["function"] or found["type"] or found["constant"], comment
        members = re.sub(r"/\*.*?\*/", "/*", found["members"] or "", flags=re.DOTALL)
        for value, field, callback, behind in MEMBER.findall(members):
            name = value or field or callback
            yield name, behind or (comment if re.search(rf"\b{name}\b", comment) else "")


def without_comment(header):
    return [name for name, comment in declarations(header) if not comment]


def headers_of(root):
    """Returns the headers that declare something for programs."""
    return sorted(path for path in (root / "api/annulus").glob("*.h") if path.name != "export.h")


def definition(path, name):
    """Returns the class or function that a module defines, or imports from a module beside it."""
    for node in ast.parse(read(path)).body:
        if isinstance(node, ast.ImportFrom) and node.level == 1 and name in [alias.name for alias in node.names]:
            return definition(path.parent / f"{node.module}.py", name)
        if getattr(node, "name", None) == name and not is_overload(node):
            return node
    raise LookupError(f"{path}: no {name}")


def is_overload(node):
    return any(getattr(each, "id", None) == "overload" for each in node.decorator_list)


MODULES = {
    "annulus": "__init__.py",
    "annulus.torch": "torch/__init__.py",
    "annulus.slides": "slides/__init__.py",
    "annulus.jax": "jax/__init__.py",
}


def docstrings(package):
    """Yields (name, docstring or None) for the public names of annulus and its public modules, with methods."""
    for module, file in MODULES.items():
        body = ast.parse(read(package / file)).body
        names = next(node.value for node in body if isinstance(node, ast.Assign) and node.targets[0].id == "__all__")
        for name in ast.literal_eval(names):
            node = definition(package / file, name)
            yield f"{module}.{name}", ast.get_docstring(node)
            for method in node.body if isinstance(node, ast.ClassDef) else ():
                if isinstance(method, ast.FunctionDef) and not method.name.startswith("_") and not is_overload(method):
                    yield f"{module}.{name}.{method.name}", ast.get_docstring(method)


class PagesTest(unittest.TestCase):
    """The tree itself."""

    def assert_none(self, faults):
        if faults:
            self.fail("\n".join(["", *faults]))

    def test_links_lead_somewhere(self):
        self.assert_none(dead_links(ROOT))

    def test_pictures_can_be_read_on_any_ground(self):
        pictures = sorted(ROOT.glob("doc/*.svg"))
        self.assertTrue(pictures)
        self.assert_none([f"{picture.name}: {fault}" for picture in pictures for fault in faults(read(picture))])
        styles = read(ROOT / "doc/site/static/site.css")
        self.assertIsNone(re.search(r"\bimg\b|\bwhite\b(?!-)", styles), "site.css gives pictures a ground")

    def test_readme_leads_to_every_page(self):
        links = {link.partition("#")[0] for link in links_of(read(ROOT / "README.md"))}
        pages = [page.relative_to(ROOT).as_posix() for page in ROOT.glob("doc/*.md")]
        self.assertTrue(pages)
        self.assert_none([f"README.md has no link to {page}" for page in sorted(pages) if page not in links])

    def test_examples_are_part_of_programs(self):
        """The examples are parts of files that are compiled and run as tests."""
        for page, language, program, indent in (
            ("README.md", "c", "examples/01_forward_backward.c", "    "),
            ("README.md", "rust", "bindings/rust/annulus/src/lib.rs", "//! "),
            ("doc/slides.md", "c", "examples/09_slide.c", "    "),
            ("doc/slides.md", "rust", "bindings/rust/annulus/src/config.rs", "    /// "),
        ):
            with self.subTest(page=page, language=language):
                examples = blocks(read(ROOT / page), language)
                self.assertTrue(examples)
                text = read(ROOT / program)
                self.assert_none([example for example in examples if indented(example, indent) not in text])

    def test_refused_arguments_are_listed(self):
        """Returns the names in the dict of _unknown.py: its keys, and the tuples that dict.fromkeys() takes."""
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

    def test_public_declarations_have_comments(self):
        headers = headers_of(ROOT)
        self.assertTrue(headers)
        self.assert_none([f"{header.name}: {name}" for header in headers for name in without_comment(read(header))])

    def test_public_names_of_python_have_docstrings(self):
        found = list(docstrings(ROOT / "bindings/python/annulus"))
        self.assertGreater(len(found), 50)
        self.assert_none([name for name, docstring in found if not docstring])


class PlantedFaultTest(unittest.TestCase):
    """The checks find the faults in a small tree, and nothing else."""

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

    def test_missing_comment_in_a_type(self):
        header = ("typedef struct annulus_a annulus_a;\n/* With y and call. */\ntypedef struct annulus_b {\n"
                  "    int32_t x; /* one; z; */\n    int32_t y[4];\n    void *(*call)(int n);\n    int32_t w;\n"
                  "} annulus_b;\n/* Kinds. */\ntypedef enum annulus_c ANNULUS_ENUM_INT32 {\n    ANNULUS_P = 1, /* one */\n"
                  "    ANNULUS_Q = 2\n} annulus_c;\n#define ANNULUS_R 3\n#define ANNULUS_B_INIT { 0 }\n")
        self.assertEqual(without_comment(header), ["annulus_a", "w", "ANNULUS_Q", "ANNULUS_R"])

    def test_missing_docstring(self):
        modules = {
            "__init__.py": "from ._a import A, f\n__all__ = ['A', 'f']\n",
            "_a.py": "class A:\n    'x'\n    def m(self): pass\n    def _n(self): pass\ndef f(): pass\ndef g(): pass\n",
            "torch/__init__.py": "__all__ = []\n",
            "slides/__init__.py": "__all__ = []\n",
            "jax/__init__.py": "__all__ = ['f']\n@overload\ndef f(): ...\ndef f(): 'x'\n",
        }
        with tempfile.TemporaryDirectory() as directory:
            for name, text in modules.items():
                path = pathlib.Path(directory, name)
                path.parent.mkdir(exist_ok=True)
                path.write_text(text, encoding="utf-8")
            self.assertEqual(list(docstrings(pathlib.Path(directory))), [
                ("annulus.A", "x"), ("annulus.A.m", None), ("annulus.f", None), ("annulus.jax.f", "x")])


if __name__ == "__main__":
    tap.main()
