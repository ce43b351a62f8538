# SPDX-License-Identifier: Apache-2.0
"""Config.plot(): its pictures show which keys each query attends to, by the definition in doc/semantics.md."""

import sys
import unittest
from unittest import mock

import capi  # noqa: F401 - says that NumPy is missing
import tap
from capi import np

import annulus
from annulus import Branch, Config

try:
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot
except ImportError:
    matplotlib = None

LENGTH, HEADS = 30, 4


def attends(branch, heads, head, n, m, length):
    """Returns whether query n of a head has key m by a branch."""
    first, count = branch.heads or (0, heads)
    if not first <= head < first + count:
        return False
    w, r = branch.segment_length or length, branch.dilation
    if branch.kind == "global":
        tokens = range(branch.first_global, branch.first_global + branch.global_count)
        return m in tokens or (branch.global_queries and n in tokens)
    if branch.kind == "window" and not -branch.left * r <= m - n <= branch.right * r:
        return False
    if n // w != m // w:
        return False
    start, size = n // w * w, min(w, length - n // w * w)
    place = {p: p for p in range(size)}
    if branch.order == "hilbert":
        place = {int(p): i for i, p in enumerate(annulus.hilbert_curve(size, branch.grid_width))}
    query_residue, key_residue = place[n - start] % r, place[m - start] % r
    inside = head - first
    phase = {"block": inside // -(-count // r), "interleave": inside % r}.get(branch.phase)
    phase = branch.phase % r if phase is None else phase
    if branch.query == "residue":
        return query_residue == key_residue
    return key_residue == phase and (branch.query == "every" or query_residue == phase)


def pattern(config, head, branches=None):
    """Returns how often each query counts each key."""
    found = np.zeros((LENGTH, LENGTH), int)
    for branch in branches or config.branches:
        for n in range(LENGTH):
            for m in range(n + 1 if config.causal else LENGTH):
                found[n, m] += attends(branch, HEADS, head, n, m, LENGTH)
    return np.minimum(found, 1) if config.key_rule == "once" else found


CONFIGS = {
    "blocks": Config([(8, 1), (16, 2), (0, 4)], causal=True),
    "once": Config([(8, 1), (16, 1)], key_rule="once"),
    "zero keys": Config([(8, 1), (32, 3)], padding="zero_keys", engine="fused", scale=3.0),
    "phases": Config([Branch(10, 3, phase="interleave"), Branch(15, 2, phase=1, heads=(1, 2))]),
    "query rules": Config([Branch(10, 3, query="residue"), Branch(15, 4, query="every")], causal=True),
    "curve": Config([Branch(10, 2, order="hilbert"), Branch(0, 3, order="hilbert", grid_width=6)]),
    "one branch": Config([(8, 2)]),
    "windows": Config([Branch.window(3, 2), Branch.window(2, 1, 3, query="dilated"), Branch.global_tokens(2, first=9)]),
    "longformer": Config.longformer(2, global_tokens=3),
}


class PlotTest(unittest.TestCase):
    @unittest.skipUnless(matplotlib, "needs matplotlib")
    def test_pictures(self):
        for name, config in CONFIGS.items():
            with self.subTest(name):
                figure = config.plot(LENGTH, heads=HEADS)
                shown = {}  # the pictures of each row, by the label of its first picture
                rows = []
                for axis in figure.axes:
                    if axis.images:
                        if axis.get_ylabel().startswith("query"):
                            rows.append((axis.get_ylabel(), []))
                        rows[-1][1].append(np.asarray(axis.images[0].get_array()))
                for label, pictures in rows:
                    for head in self.heads_of(label):
                        shown[head] = pictures
                self.assertEqual(sorted(shown), list(range(HEADS)))
                for head, pictures in shown.items():
                    wanted = [pattern(config, head, [branch]) for branch in config.branches]
                    wanted += [pattern(config, head)] if len(config) > 1 else []
                    self.assertEqual(len(pictures), len(wanted))
                    for one, other in zip(pictures, wanted):
                        np.testing.assert_array_equal(one, other)
                lines = [axis.lines[0] for axis in figure.axes if axis.lines]
                self.assertEqual(len(lines), sum(branch.order == "hilbert" for branch in config.branches))
                for line, branch in zip(lines, config.branches):
                    columns, rows_of_grid = line.get_data()
                    width = max(columns) + 1
                    order = annulus.hilbert_curve(branch.segment_length or LENGTH, branch.grid_width)
                    np.testing.assert_array_equal(rows_of_grid * width + columns, order)
                pyplot.close(figure)

    def heads_of(self, label):
        if label == "query of any head":
            return range(HEADS)
        first, dash, last = label.removeprefix("query of head ").partition("–")
        return range(int(first), int(last) + 1) if dash else [int(head) for head in first.split(", ")]

    @unittest.skipUnless(matplotlib, "needs matplotlib")
    def test_more_positions_than_cells(self):
        """Cells show means; the last cell has fewer positions. Axes count positions, and a colour bar has the scale."""
        for length, (one, other), size in ((128, (7, 2), 1), (700, (7, 2), 14), (1031, (9, 2), 18), (2048, (32, 5), 16),
                                           (400, (13, 2), 4)):
            branches = (600, one), (5792, other)
            with self.subTest(length):
                figure = Config(branches).plot(length)
                place = np.arange(length)
                cells = place // size
                for axis, (w, r) in zip(figure.axes, branches):
                    kept = place % w % r == 0
                    pairs = kept[:, None] & kept & (place[:, None] // w == place // w)
                    wanted = np.zeros((cells[-1] + 1,) * 2)
                    np.add.at(wanted, (cells[:, None], cells), pairs)
                    wanted /= np.outer(np.bincount(cells), np.bincount(cells))
                    image = axis.images[0]
                    np.testing.assert_allclose(image.get_array(), wanted, rtol=1e-12)
                    end = size * len(wanted) - 0.5
                    self.assertEqual(tuple(image.get_extent()), (-0.5, end, end, -0.5))
                    self.assertAlmostEqual(image.get_clim()[1], wanted.max())
                bars = [axis.get_ylabel() for axis in figure.axes if axis.get_ylabel().startswith("times")]
                self.assertEqual(bars, [f"times, mean of {size} x {size}"] * 3 if size > 1 else ["times"])
                pyplot.close(figure)

    @unittest.skipUnless(matplotlib, "needs matplotlib")
    def test_no_squares_that_are_not_there(self):
        """Dilations that are far finer than the picture give one grey, at any resolution."""
        for branches in ([(5792, 2), (32768, 4)], [(5000, 3), (6000, 7)]):
            figure = Config(branches).plot(2048)
            for dots in (60, 100, 137):
                figure.set_dpi(dots)
                figure.canvas.draw()
                drawn = np.asarray(figure.canvas.buffer_rgba())[::-1]
                for axis in figure.axes[:3]:
                    # Without the frame and the last cell, which may have fewer positions.
                    (left, low), (right, high) = axis.get_window_extent().get_points().astype(int)
                    inside = drawn[low + 9:high - 4, left + 4:right - 9]
                    self.assertEqual(len(np.unique(inside.reshape(-1, 4), axis=0)), 1)
            pyplot.close(figure)

    def test_refusals(self):
        config = Config([(8, 1)])
        for words, arguments in (
            ("length is 0; it must be from 1 to 2048", (0,)),
            ("length is 5000; it must be from 1 to 2048", (5000,)),
            ("heads is 0; it must be at least 1", (10, 0)),
            ("length is 'x'; it must be an int", ("x",)),
        ):
            with self.subTest(words), self.assertRaisesRegex(annulus.ArgumentError, words):
                config.plot(*arguments)
        with mock.patch.dict(sys.modules, {"matplotlib": None}):
            with self.assertRaisesRegex(ImportError, "Config.plot.. needs matplotlib"):
                config.plot(10)


if __name__ == "__main__":
    tap.main()
