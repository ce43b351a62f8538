# SPDX-License-Identifier: Apache-2.0
"""Runs the Python examples of README.md and of pages of doc/ as a reader does. On doc/python.md each example runs after
the first. torch_replace_test.py runs the examples with slide encoders, jax_test.py those of annulus.jax."""

import contextlib
import importlib.util
import io
import os
import pathlib
import re
import socket
import unittest

import tap
from capi import np

SOURCE = pathlib.Path(os.environ["ANNULUS_SOURCE"])


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


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
        cls.first = examples("doc/python.md")[0]
        cls.names, cls.printed = run(cls.first, {})

    def test_the_first_prints_the_same_number_twice(self):
        self.assertIn("# the same", self.first)
        q_sum, k_sum = map(float, self.printed.split())
        scale = np.abs(self.names["q"] * self.names["d_q"]).sum()
        self.assertLess(abs(q_sum - k_sum), 1e-5 * scale)

    def run_all(self, module):
        """Runs the examples that import this module of annulus; without a module, the examples that import none."""
        pattern = r"^from annulus\.(\w+) import"
        mine = [each for each in examples("doc/python.md") if [module] == (re.findall(pattern, each, re.M) or [None])]
        self.assertTrue(mine)
        if module and not importlib.util.find_spec(module):
            self.skipTest(f"needs {module}")
        for example in mine:
            with self.subTest(example):
                run(example, self.names)

    def run_page(self, page, change=lambda example: example):
        """Runs the blocks of a page one after the other, each with the names of the blocks before."""
        names = {}
        for example in examples(page):
            with self.subTest(example):
                names, _ = run(change(example), names)

    def test_limits(self):
        self.run_page("doc/limits.md")

    def test_semantics(self):
        self.run_page("doc/semantics.md")

    @unittest.skipUnless(importlib.util.find_spec("torch"), "needs torch")
    def test_first_of_readme(self):
        names, _ = run(examples("README.md")[0], {})
        self.assertEqual(names["y"].shape, (1, 10_000, 512))

    @unittest.skipUnless(importlib.util.find_spec("torch"), "needs torch")
    def test_tutorial(self):
        """Trains for two steps only. The block that needs a process group runs as a single process."""
        os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
        self.run_page("doc/tutorial.md", lambda example: example.replace("range(300)", "range(2)"))

    def test_of_numpy(self):
        self.run_all(None)

    def test_of_torch(self):
        self.run_all("torch")


if __name__ == "__main__":
    tap.main()
