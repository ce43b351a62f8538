# SPDX-License-Identifier: Apache-2.0
"""packaging/set_address.py on a copy of the files that it changes."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import tap

try:
    import tomllib
except ImportError:  # before Python 3.11
    tomllib = None

SOURCE = pathlib.Path(os.environ["ANNULUS_SOURCE"])
# The files, and what each has of the addresses.
CHANGED = {
    "pyproject.toml": "Homepage = '{}'",
    "packaging/debian/control": "Homepage: {0}\nVcs-Browser: {0}\nVcs-Git: {0}.git\n",
    "bindings/rust/annulus/Cargo.toml": 'repository = "{}"',
    "bindings/rust/annulus-sys/Cargo.toml": 'repository = "{}"',
    "CITATION.cff": "repository-code: {0}\n",
    "packaging/debian/changelog": " <{1}>  ",
}


class AddressTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.tree = pathlib.Path(directory.name)
        for name in CHANGED:
            (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(SOURCE / name, self.tree / name)

    def set(self, url, mail):
        command = [sys.executable, SOURCE / "packaging/set_address.py", url, mail, self.tree]
        return subprocess.run(command, capture_output=True, text=True)

    def texts(self):
        return {name: (self.tree / name).read_text() for name in CHANGED}

    def test_a_second_address_replaces_the_first(self):
        lines = []
        addresses = [
            ("https://example.net/first/annulus", "first@mail.example.net"),
            ("https://example.com/b", "b@a.b"),
        ]
        for url, mail in addresses:
            self.assertEqual(self.set(url, mail).stderr, "")
            for name, text in self.texts().items():
                self.assertEqual(text.count(CHANGED[name].format(url, mail)), 1, name)
                self.assertNotRegex(text, r"@example\.org")
            lines.append([text.count("\n") for text in self.texts().values()])
            control = (self.tree / "packaging/debian/control").read_text()
            self.assertEqual(re.findall("^Maintainer: (.*)$", control, re.MULTILINE), [f"The annulus authors <{mail}>"])
            self.assertIn(f" {url}.git refs/tags/v", (self.tree / "packaging/debian/watch").read_text())
        self.assertEqual(*lines)

    @unittest.skipUnless(tomllib, "needs Python 3.11")
    def test_toml_says_the_same_besides(self):
        """The address is in the right table, and no other value moved to another table."""
        url = "https://example.net/annulus"
        before = self.tables()
        self.assertEqual(self.set(url, "annulus@example.net").returncode, 0)
        after = self.tables()
        self.assertEqual(after["pyproject.toml"]["project"].pop("urls"), {"Homepage": url})
        for crate in "annulus", "annulus-sys":
            self.assertEqual(after[f"bindings/rust/{crate}/Cargo.toml"]["package"].pop("repository"), url)
        self.assertEqual(after, before)

    def tables(self):
        return {name: tomllib.loads(text) for name, text in self.texts().items() if name.endswith(".toml")}

    def test_other_words_are_refused(self):
        before = self.texts()
        for url, mail, message in [
            ("example.org", "annulus@example.net", "URL is 'example.org'; it must be an address"),
            ("https://example.net/annulus", "annulus", "MAIL is 'annulus'; it must be an address"),
        ]:
            refused = self.set(url, mail)
            self.assertNotEqual(refused.returncode, 0)
            self.assertIn(message, refused.stderr)
            self.assertEqual(self.texts(), before)


if __name__ == "__main__":
    tap.main()
