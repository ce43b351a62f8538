# SPDX-License-Identifier: Apache-2.0
"""The package's types in mypy: a right program passes, and mypy finds every mistake of a wrong one."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import typing
import unittest

import capi  # noqa: F401 - says that NumPy is missing
import tap

import annulus
from annulus import _arrays, _choices, _config, types

PACKAGES = pathlib.Path(annulus.__file__).parents[1]

GOOD = """
from typing import Any, Tuple

import numpy as np
import numpy.typing as npt

import annulus
from annulus.types import BranchDict, Engine

Rows = npt.NDArray[np.float32]


def run(q: Rows, k: Rows, v: Rows, engine: Engine, return_lse: bool) -> Tuple[Rows, Rows]:
    branch: BranchDict = {"segment_length": 64, "query": "every"}
    config = annulus.Config([(16, 1), branch, annulus.Branch(0, 4, phase="interleave")], engine=engine, padding="exact")
    preset = annulus.Config.longnet(2048, count=3, causal=True, key_rule="once").replace(exchange="ring")
    words: str = config.engine + preset.key_rule + config.branches[0].order
    out: Rows = annulus.attention(q, k, v, config, layout="bhnd")
    other, lse = annulus.attention(q, k, v, [(16, 1)], causal=True, return_lse=True)
    either: Any = annulus.attention(q, k, v, config, return_lse=return_lse)
    context = annulus.Context(config, threads=1)
    mass: Rows = annulus.attention_mass(q, k, config, lse=lse, query_start=0)
    mass = context.attention_mass(q, k, lse, mass=mass, layout="bhnd")
    both: Tuple[Rows, Rows] = context.forward(q, k, v)
    alone: Rows = context.forward(q, k, v, return_lse=False)
    d_q, d_k, d_v = context.backward(q, k, v, *both, alone, d_k=k, add=("d_k",))
    assert annulus.device_count("cuda") >= 0 and context.estimate(100, 4, 16, dtype="float16").pairs > 0 and words
    return other, lse
"""

# Each line is one mistake.
BAD = """
import numpy as np
import annulus
q = np.zeros((1, 8, 1, 8), np.float32)
annulus.attention(q, q, q, [(16, 1)], engine="flash")
annulus.attention(q, q, q, [(16, 1)], layout="nbhd")
annulus.attention(q, q, q, [(16, 1)], is_causal=True)
annulus.attention(q, q, q, [(16, 1)], causal="yes")
annulus.attention(q, q, q, [{"segment_length": 16, "dilatoin": 2}])
out, lse = annulus.attention(q, q, q, [(16, 1)]), annulus.attention(q, q, q, [(16, 1)]).lse
annulus.Config([(16, 1)], padding="zeros")
annulus.Config([(16, 1)], window_size=16)
annulus.Config.longnet(2048, engine="flash")
annulus.Config([(16, 1)]).replace(key_rule="twice")
annulus.Branch(16, 1, order="zorder")
annulus.Branch(16, 1, query="all")
annulus.Branch(16, 1, phase="blocks")
annulus.Context([(16, 1)]).forward(q, q, q, return_lse=True).shape
annulus.Context([(16, 1)]).backward(q, q, q, q, q, q, add=("dq",))
annulus.Context([(16, 1)]).estimate(10, 1, 8, dtype="int8")
annulus.device_count("rocm")
"""


def mypy(text):
    """Returns the lines, counted from 1, in which mypy finds errors, and its output."""
    with tempfile.TemporaryDirectory() as directory:
        file = pathlib.Path(directory, "program.py")
        file.write_text(text, encoding="utf-8")
        found = subprocess.run(
            [
                *("mypy", "--strict", "--follow-imports=silent", "--enable-incomplete-feature=Unpack"),
                *(
                    "--python-executable",
                    sys.executable,
                    "--cache-dir",
                    str(pathlib.Path(directory, "cache")),
                    str(file),
                ),
            ],
            env={**os.environ, "MYPYPATH": str(PACKAGES)},
            text=True,
            capture_output=True,
        )
    assert found.returncode in (0, 1), found.stdout + found.stderr
    errors = re.findall(r"^.*program\.py:(\d+): error: .*$", found.stdout, re.MULTILINE)
    return sorted({int(number) for number in errors}), found.stdout


class TypingTest(unittest.TestCase):
    def test_words_are_the_librarys(self):
        for kind, words in (
            (types.Engine, _choices.ENGINES),
            (types.Phase, _choices.PHASES),
            (types.Query, _choices.QUERIES),
            (types.Order, _choices.ORDERS),
            (types.Padding, _choices.PADDINGS),
            (types.KeyRule, _choices.KEY_RULES),
            (types.Exchange, _choices.EXCHANGES),
            (types.Dtype, _arrays.DTYPES),
        ):
            self.assertEqual(sorted(typing.get_args(kind)), sorted(words))

    def test_dicts_are_the_librarys(self):
        options = set(types.ConfigOptions.__annotations__)
        self.assertEqual(options, set(_config._DEFAULTS) - {"branches"})
        fields = set(annulus.Branch.__dataclass_fields__)
        self.assertEqual(set(typing.get_type_hints(types.BranchDict)), fields)

    @unittest.skipUnless(shutil.which("mypy"), "needs mypy")
    def test_a_right_program_passes(self):
        lines, output = mypy(GOOD)
        self.assertEqual(lines, [], output)

    @unittest.skipUnless(shutil.which("mypy"), "needs mypy")
    def test_every_mistake_is_found(self):
        lines, output = mypy(BAD)
        self.assertEqual(lines, list(range(5, BAD.count("\n") + 1)), output)


if __name__ == "__main__":
    tap.main()
