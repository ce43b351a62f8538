# SPDX-License-Identifier: Apache-2.0
"""src/cli/annulus.py, the script that starts the program of a wheel, with packages that this test makes."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

import tap

SOURCE = pathlib.Path(os.environ["ANNULUS_SOURCE"])


class StarterTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.scratch = pathlib.Path(directory.name)
        # Python first looks beside the script, where annulus.py itself would be.
        self.starter = self.scratch / "starter/annulus"
        self.starter.parent.mkdir()
        shutil.copy(SOURCE / "src/cli/annulus.py", self.starter)
        self.packages = self.scratch / "packages"

    def start(self, *words):
        # Without the packages of this Python, among which annulus may be.
        environment = {**os.environ, "PYTHONPATH": str(self.packages)}
        command = [sys.executable, "-S", self.starter, *words]
        return subprocess.run(command, env=environment, cwd=self.scratch, capture_output=True, text=True)

    def assert_refused(self, sentence):
        refused = self.start("info")
        self.assertEqual((refused.returncode, refused.stdout), (1, ""))
        self.assertEqual(refused.stderr.count("\n"), 1, refused.stderr)
        self.assertIn(sentence, refused.stderr)

    def test_words_reach_the_program(self):
        program = self.packages / "annulus/bin/annulus"
        program.parent.mkdir(parents=True)
        (self.packages / "annulus/__init__.py").write_text("raise SystemExit('imported')\n")
        program.write_text('#!/bin/sh\nprintf "%s|" "$@"\nexit 3\n')
        program.chmod(0o755)
        started = self.start("attend", "two words")
        self.assertEqual((started.returncode, started.stdout, started.stderr), (3, "attend|two words|", ""))

    def test_no_package(self):
        self.assert_refused(f"annulus: {sys.executable} finds no package annulus")

    def test_a_package_without_the_program(self):
        (self.packages / "annulus").mkdir(parents=True)
        (self.packages / "annulus/__init__.py").touch()
        self.assert_refused(f"annulus: there is no {self.packages}/annulus/bin/annulus; the package")

    def test_a_module(self):
        self.packages.mkdir()
        (self.packages / "annulus.py").touch()
        self.assert_refused(f"annulus: there is no {self.packages}/bin/annulus; the package")


if __name__ == "__main__":
    tap.main()
