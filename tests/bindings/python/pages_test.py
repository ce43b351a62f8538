# SPDX-License-Identifier: Apache-2.0
"""Runs the examples of README.md and doc/python.md as a reader does: each by itself, after README.md's first example.
torch_replace_test.py runs the examples with slide encoders."""

import contextlib
import importlib.util
import io
import os
import pathlib
import re
import unittest

import tap
from capi import np

SOURCE = pathlib.Path(os.environ["ANNULUS_SOURCE"])


def examples(page):
    text = (SOURCE / page).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def run(example, names):
    """Runs an example. Returns the names that it defines, and its output."""
    names, printed = dict(names), io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(example, names)
    return names, printed.getvalue()


class PagesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.first = examples("README.md")[0]
        cls.names, cls.printed = run(cls.first, {})

    def test_the_first_prints_the_same_number_twice(self):
        self.assertIn("# the same", self.first)
        q_sum, k_sum = map(float, self.printed.split())
        scale = np.abs(self.names["q"] * self.names["d_q"]).sum()
        self.assertLess(abs(q_sum - k_sum), 1e-5 * scale)

    def run_all(self, module):
        """Returns the examples that import this module of annulus, or those that import none."""
        pattern = r"^from annulus\.(\w+) import"
        mine = [each for each in examples("doc/python.md") if [module] == (re.findall(pattern, each, re.M) or [None])]
        self.assertTrue(mine)
        if module and not importlib.util.find_spec(module):
            self.skipTest(f"needs {module}")
        for example in mine:
            with self.subTest(example):
                run(example, self.names)

    def test_of_numpy(self):
        self.run_all(None)

    def test_of_torch(self):
        self.run_all("torch")

    def test_of_jax(self):
        self.run_all("jax")


if __name__ == "__main__":
    tap.main()
