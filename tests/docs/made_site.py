# SPDX-License-Identifier: Apache-2.0
"""Makes the site as `meson compile doc` does, with warnings as errors, and checks it: the index has each public name of
C and Python, with its comment or docstring, and every link inside leads somewhere.

usage: made_site.py COMMAND...  (the command that makes the site, without the directory to write to)
"""

import html.parser
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import urllib.parse
import zlib

import pages
import tap

sys.path.append(str(pages.ROOT / "bindings"))
from emit.headers import plain_comment


class Page(html.parser.HTMLParser):
    """The anchors, the links and the text of a page."""

    def __init__(self, path):
        super().__init__()
        self.places, self.links, self.words = set(), [], ""
        self.feed(path.read_text(encoding="utf-8"))

    def handle_data(self, data):
        self.words += data

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.places.update(value for name, value in attributes.items() if name == "id")
        self.links += [value for name, value in attributes.items() if name in ("href", "src") and value]


def dead_links(site):
    found = {path: Page(path) for path in sorted(site.rglob("*.html"))}
    faults = []
    for path, page in found.items():
        for link in page.links:
            parts = urllib.parse.urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / urllib.parse.unquote(parts.path)).resolve() if parts.path else path
            place = urllib.parse.unquote(parts.fragment)
            if not target.is_file() or (place and target in found and place not in found[target].places):
                faults.append(f"{path.relative_to(site)}: {link}")
    return faults


def inventory(site):
    """Returns the names in Sphinx's index of the site."""
    data = (site / "objects.inv").read_bytes()
    lines = zlib.decompress(data.split(b"\n", 4)[4]).decode().splitlines()
    return {line.split(" ")[0] for line in lines}


def longest_phrase(text):
    """Returns the longest run of letters and single spaces, which no markup changes."""
    return max(re.findall(r"[A-Za-z][A-Za-z ]*[A-Za-z]", " ".join(text.split())), key=len)


class SiteTest(unittest.TestCase):
    command = []

    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.TemporaryDirectory()
        cls.site = pathlib.Path(cls.directory.name).resolve()
        command = [*cls.command, str(cls.site)]
        cls.made = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    @classmethod
    def tearDownClass(cls):
        cls.directory.cleanup()

    def setUp(self):
        self.assertEqual(self.made.returncode, 0, self.made.stdout)

    def test_links_lead_somewhere(self):
        self.assertTrue((self.site / "index.html").is_file())
        self.assertEqual(dead_links(self.site), [])

    def test_a_dead_link_is_found(self):
        page = self.site / "planted.html"
        page.write_text("<a href='none.html'>x</a><a href='#none'>y</a><p id='z'><a href='#z'>z</a>", encoding="utf-8")
        self.addCleanup(page.unlink)
        self.assertEqual(dead_links(self.site), ["planted.html: none.html", "planted.html: #none"])

    def test_every_declaration_of_c_is_there(self):
        found = inventory(self.site)
        names = [name for header in pages.headers_of(pages.ROOT) for name, _ in pages.declarations(pages.read(header))]
        self.assertIn("annulus_forward", names)
        missing = [name for name in names if name.lower().startswith("annulus_") and name not in found]
        self.assertEqual(missing, [])

    def missing_phrases(self, page, comments):
        words = " ".join(Page(self.site / page).words.split())
        return [name for name, comment in comments if longest_phrase(comment) not in words]

    def test_comments_of_c_are_there(self):
        comments = [
            (name, plain_comment(comment))
            for header in pages.headers_of(pages.ROOT)
            for name, comment in pages.declarations(pages.read(header))
            if name.startswith("annulus_") and comment
        ]
        self.assertGreater(len(comments), 50)
        self.assertEqual(self.missing_phrases("doc/site/c_reference.html", comments), [])
        self.assertEqual(self.missing_phrases("doc/site/c_reference.html", [("x", "Says what no header says.")]), ["x"])

    def test_docstrings_of_python_are_there(self):
        found = list(pages.docstrings(pages.ROOT / "bindings/python/annulus"))
        self.assertEqual(self.missing_phrases("doc/site/python_reference.html", found), [])

    def test_every_name_of_python_is_there(self):
        found = inventory(self.site)
        names = [name for name, _ in pages.docstrings(pages.ROOT / "bindings/python/annulus")]
        self.assertIn("annulus.attention", names)
        self.assertEqual([name for name in names if name not in found], [])

    def test_scripts_and_styles_need_nothing_else(self):
        """Pages load scripts, not modules, so that the site works in any place, also without a server."""
        faults = [f"{path.name}: {found}" for pattern, needed in (("*.js", r"^(?:import|export)\b.*"),
                                                                 ("*.css", r"^@import url\((?:/|http).*"))
                  for path in self.site.rglob(pattern)
                  for found in re.findall(needed, path.read_text(encoding="utf-8"), re.MULTILINE)]
        self.assertEqual(faults, [])

    def test_it_can_be_searched(self):
        index = (self.site / "searchindex.js").read_text(encoding="utf-8")
        self.assertIn("annulus_forward", index)
        self.assertIn("dilated_attention", index)


if __name__ == "__main__":
    SiteTest.command = sys.argv[1:]
    tap.main()
