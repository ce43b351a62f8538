# SPDX-License-Identifier: Apache-2.0
"""The library computes the numbers of the worked example in doc/semantics.md."""

import os
import pathlib
import re
import unittest

import tap
from capi import np

import annulus

DOC = pathlib.Path(os.environ["ANNULUS_SOURCE"], "doc/semantics.md").read_text(encoding="utf-8")


def row_of_example(name):
    """Returns the numbers of a row of the page: how often query 0 meets keys 0 to 3, O and LSE."""
    found = re.search(rf"^\| {re.escape(name)} \|(.*)\|$", DOC, re.MULTILINE)
    return [float(number) for number in found[1].split("|")]


class SemanticsTest(unittest.TestCase):
    def compute(self, branches, key_rule):
        """Computes O and LSE of query 0. All its scores are 0, and the values are 1, 2, 3 and 4."""
        q = np.zeros((1, 4, 1, 8))
        v = np.arange(1.0, 5)[:, None, None] * np.ones((1, 4, 1, 8))
        out, lse = annulus.attention(q, q, v, branches, key_rule=key_rule, return_lse=True)
        return out[0, 0, 0, 0], lse[0, 0, 0]

    def check(self, row, branches, times, key_rule="each_branch"):
        *counted, out, lse = row_of_example(row)
        self.assertEqual(counted, times)
        got_out, got_lse = self.compute(branches, key_rule)
        self.assertAlmostEqual(got_out, out, delta=5e-5)
        self.assertAlmostEqual(got_lse, lse, delta=5e-5)

    def test_a_key_of_two_branches_counts_twice(self):
        self.check("every time (default)", [(2, 1), (4, 1)], [2, 2, 1, 1])

    def test_once_it_counts_as_in_the_branch_that_has_all(self):
        self.check("once", [(2, 1), (4, 1)], [1, 1, 1, 1], key_rule="once")
        self.check("once", [(4, 1)], [1, 1, 1, 1])

    def test_phases_of_heads(self):
        """The table of phases says which positions heads 0 to 3 attend to, in a segment of 8 with r = 2."""
        for rule in ("block", "interleave"):
            row = re.search(rf"^\| `{rule}` \|(.*)\|$", DOC, re.MULTILINE)[1]
            phases = [int(text) for text in row.split("|")]
            q = np.zeros((1, 8, 4, 8))
            v = np.broadcast_to((np.arange(8) % 2)[:, None, None], (1, 8, 4, 8)).astype(float)
            out = annulus.attention(q, q, v, [annulus.Branch(8, 2, phase=rule, query="every")])
            self.assertEqual(out[0, 0, :, 0].tolist(), phases)

    def test_phases_of_a_part_of_the_heads(self):
        """A process with heads 2 and 3 of 4 computes the same as heads 2 and 3 of a call with all heads."""
        generator = np.random.default_rng(7)
        q, k, v = (generator.standard_normal((1, 9, 4, 8)) for _ in range(3))
        branches = [(4, 2), annulus.Branch(0, 4, phase="interleave", heads=(1, 3))]
        whole = annulus.attention(q, k, v, branches)
        part = annulus.attention(*(rows[:, :, 2:] for rows in (q, k, v)), branches, head_shard=(2, 4))
        np.testing.assert_array_equal(part, whole[:, :, 2:])


if __name__ == "__main__":
    tap.main()
