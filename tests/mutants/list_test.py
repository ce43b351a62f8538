# SPDX-License-Identifier: Apache-2.0
"""Checks that each defect of mutants.toml can still be made in the tree, and that run.py reports impossible ones."""

import dataclasses
import pathlib
import tempfile
import unittest

import tap

try:
    import run
except ImportError:  # tomllib came with Python 3.11
    run = None


class ListTest(unittest.TestCase):
    def test_fits_the_tree(self):
        mutants = run.read_list()
        self.assertGreaterEqual(len(mutants), 40)
        self.assertEqual(len({mutant.name for mutant in mutants}), len(mutants))
        self.assertEqual([fault for mutant in mutants if (fault := mutant.fault(run.ROOT))], [])

    def test_faults_are_found(self):
        with tempfile.TemporaryDirectory() as directory:
            tree = pathlib.Path(directory)
            (tree / "a.cpp").write_text("once twice twice")
            sound = run.Mutant("name", "a.cpp", "once", "never", ("unit",))
            self.assertIsNone(sound.fault(tree))
            for change in ({"old": "twice"}, {"old": "absent"}, {"file": "b.cpp"}, {"build": "unknown"}, {"tests": ()},
                           {"new": "once"}):
                with self.subTest(**change):
                    self.assertIsNotNone(dataclasses.replace(sound, **change).fault(tree))


if __name__ == "__main__":
    if not run:
        tap.skip_all("needs Python 3.11")
    tap.main()
