# SPDX-License-Identifier: Apache-2.0
"""packaging/set_address.py on a copy of the files that it changes."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

import tap

SOURCE = pathlib.Path(os.environ["ANNULUS_SOURCE"])
CHANGED = {
    "pyproject.toml": "Homepage = '{}'",
    "packaging/debian/control": "Homepage: {0}\nVcs-Browser: {0}\nVcs-Git: {0}.git\n",
    "bindings/rust/annulus/Cargo.toml": 'repository = "{}"',
    "bindings/rust/annulus-sys/Cargo.toml": 'repository = "{}"',
    "CITATION.cff": "repository-code: {}\n",
}


class AddressTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.tree = pathlib.Path(directory.name)
        for name in CHANGED:
            (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(SOURCE / name, self.tree / name)

    def set(self, url):
        command = [sys.executable, SOURCE / "packaging/set_address.py", url, self.tree]
        return subprocess.run(command, capture_output=True, text=True)

    def texts(self):
        return {name: (self.tree / name).read_text() for name in CHANGED}

    def test_a_second_address_replaces_the_first(self):
        lines = []
        for url in "https://example.org/first/annulus", "https://example.com/second":
            self.assertEqual(self.set(url).stderr, "")
            for name, text in self.texts().items():
                self.assertEqual(text.count(CHANGED[name].format(url)), 1, name)
            lines.append([text.count("\n") for text in self.texts().values()])
            self.assertIn(f" {url}.git refs/tags/v", (self.tree / "packaging/debian/watch").read_text())
        self.assertEqual(*lines)

    def test_another_word_is_refused(self):
        before = self.texts()
        refused = self.set("example.org")
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn("URL is 'example.org'; it must be an address", refused.stderr)
        self.assertEqual(self.texts(), before)


if __name__ == "__main__":
    tap.main()
