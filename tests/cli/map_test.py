# SPDX-License-Identifier: Apache-2.0
"""annulus map: the masses against the definition, and what the picture shows."""

import base64
import re
import struct
import unittest
import zlib

from program import ProgramTest, load, np, run, save
import oracle
import tap


def points_of(png):
    """[rows, columns, 4] of a PNG of 8-bit RGBA that is not interlaced."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    at, data = 8, b""
    while at < len(png):
        length, kind = struct.unpack(">I4s", png[at:at + 8])
        body = png[at + 8:at + 8 + length]
        if kind == b"IHDR":
            width, height, depth, color, _, _, interlaced = struct.unpack(">IIBBBBB", body)
            assert (depth, color, interlaced) == (8, 6, 0)
        data += body if kind == b"IDAT" else b""
        at += 12 + length
    lines = np.frombuffer(zlib.decompress(data), np.uint8).reshape(height, 1 + 4 * width)
    rows = np.zeros((height, 4 * width), np.uint8)
    for y, line in enumerate(lines):
        above = rows[y - 1] if y else np.zeros(4 * width, np.uint8)
        for x in range(4 * width):
            left = int(rows[y, x - 4]) if x >= 4 else 0
            up, corner = int(above[x]), int(above[x - 4]) if x >= 4 else 0
            nearest = min((left, up, corner), key=lambda value: abs(left + up - corner - value))
            rows[y, x] = (int(line[1 + x]) + (0, left, up, (left + up) // 2, nearest)[line[0]]) % 256
    return rows.reshape(height, width, 4)


BRANCHES = [{"w": 16, "r": 1}, {"w": 48, "r": 3}]
PATTERN = ["--branch", "16:1", "--branch", "48:3"]


class MapTest(ProgramTest):
    def save_q_and_k(self, q_shape, k_shape=None, dtype="float32"):
        return self.save_inputs(q_shape, k_shape, dtype)[:2]

    def map(self, *more):
        result = run("map", "--q", self.path("q.npy"), "--k", self.path("k.npy"), *more)
        self.assertEqual((result.returncode, result.stderr, result.stdout), (0, "", ""))

    def mass(self, *more):
        self.map("--out", self.path("mass.npy"), *PATTERN, *more)
        return load(self.path("mass.npy"))

    def picture(self, *more):
        """The lines of text, and the points of the picture."""
        if "made without libpng" in run("map", "--q", self.path("q.npy"), "--k", self.path("k.npy"), "--svg",
                                        self.path("map.svg"), *PATTERN, *more).stderr:
            self.skipTest("the program has no libpng")
        self.map("--svg", self.path("map.svg"), *PATTERN, *more)
        svg = self.path("map.svg").read_text(encoding="utf-8")
        pictures = [base64.b64decode(text) for text in re.findall(r"base64,([^\"]+)\"", svg)]
        self.assertEqual(len(pictures), 2)
        self.assertEqual(points_of(pictures[1]).shape, (256, 1, 4))
        return re.findall(r"<text[^>]*>([^<]*)</text>", svg), points_of(pictures[0])

    def assert_close(self, found, wanted, tolerance=1e-5):
        np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)

    def test_masses(self):
        q, k = self.save_q_and_k((2, 83, 4, 16), (2, 83, 2, 16))
        for options, arguments in (([], {}), (["--causal"], {"causal": True}),
                                   (["--padding", "zero-keys"], {"zero_keys": True})):
            found, dtype = self.mass(*options)
            self.assertEqual((found.shape, dtype), ((2, 4, 83), "float32"))
            self.assert_close(found, oracle.mass(q, k, BRANCHES, **arguments))
        self.assert_close(self.mass("--heads", "mean")[0], oracle.mass(q, k, BRANCHES).mean(1))

    def test_dtypes_and_no_batch(self):
        for dtype, of_mass, tolerance in (("float64", "float64", 1e-12), ("float16", "float32", 1e-3),
                                          ("bfloat16", "float32", 1e-2)):
            q, k = self.save_q_and_k((61, 3, 8), dtype=dtype)
            found, found_dtype = self.mass()
            self.assertEqual((found.shape, found_dtype), ((3, 61), of_mass))
            self.assert_close(found, oracle.mass(q[None], k[None], BRANCHES)[0], tolerance)

    def test_lse_of_attend_gives_the_same(self):
        self.save_inputs((2, 83, 4, 16))
        self.attend(*PATTERN, "--causal")
        with_lse, _ = self.mass("--causal", "--lse", self.path("lse.npy"))
        np.testing.assert_array_equal(with_lse, self.mass("--causal")[0])

    def test_chosen_queries(self):
        q, k = self.save_q_and_k((1, 83, 4, 16))
        save(self.path("q.npy"), q[:, 20:21], "float32")
        self.assert_close(self.mass("--query-start", 20)[0], oracle.mass(q[:, 20:21], k, BRANCHES, query_start=20))

    def test_sequences(self):
        q, k = self.save_q_and_k((1, 83, 4, 16))
        wanted = np.zeros((1, 4, 83))
        for begin, end in ((2, 30), (30, 71)):
            wanted[..., begin:end] = oracle.mass(q[:, begin:end], k[:, begin:end], BRANCHES)
        self.assert_close(self.mass("--starts", "2,30,71")[0], wanted)

    def test_picture_on_a_grid(self):
        q, k = self.save_q_and_k((1, 53, 2, 8))
        means = oracle.mass(q, k, BRANCHES).mean(1)[0]
        lines, points = self.picture("--grid", 10, "--skip", 1)
        self.assertEqual(points.shape, (6, 10, 4))
        seen = points[..., 3].ravel() == 255
        np.testing.assert_array_equal(seen, np.arange(60) < 52)
        # Lighter where there is more.
        light = points.reshape(60, 4)[:52, :3].astype(int).sum(1)
        order = np.argsort(means[1:])
        self.assertTrue((np.diff(light[order]) >= -12).all())
        self.assertGreater(light[order[-1]], light[order[0]] + 200)
        most = int(np.argmax(means[1:]))
        self.assertIn(f"most {means[1:].max():.4g} in column {most % 10}, row {most // 10}", lines[2])
        self.assertIn(f"position 0, with {means[0]:.4g} in all", lines[3])

    def test_picture_by_coordinates(self):
        self.save_q_and_k((1, 6, 2, 8))
        tiles = np.array([[900, 40], [1100, 40], [700, 140], [900, 140], [700, 240], [1300, 40]])
        save(self.path("tiles.npy"), tiles)
        text = "x, y\r\n" + "".join(f"{x}, {y}\n" for x, y in tiles)
        self.path("tiles.csv").write_text(text, encoding="utf-8")
        pictures = [self.picture("--coordinates", self.path(name))[1] for name in ("tiles.npy", "tiles.csv")]
        np.testing.assert_array_equal(*pictures)
        wanted = np.zeros((3, 4), bool)
        for x, y in (tiles - [700, 40]) // [200, 100]:
            wanted[y, x] = True
        np.testing.assert_array_equal(pictures[0][..., 3] == 255, wanted)

    def test_refusals(self):
        self.save_inputs((1, 40, 2, 8))
        save(self.path("few.npy"), np.zeros((5, 2), int))
        save(self.path("flat.npy"), np.zeros(40, int))
        save(self.path("same.npy"), np.zeros((40, 2), int))
        wide = np.zeros((40, 2), int)
        wide[:, 0] = np.arange(40)
        wide[0] = 10 ** 8 + 1, 10 ** 8
        save(self.path("wide.npy"), wide)
        self.path("words.csv").write_text("1,2\n3;4\n", encoding="utf-8")
        save(self.path("lse.npy"), np.zeros((1, 2, 40)), "float64")
        save(self.path("short.npy"), np.zeros((1, 2, 39)), "float32")
        out, svg = ["--out", self.path("mass.npy")], ["--svg", self.path("map.svg")]
        for options, says in (
            ([], "--out or --svg must be given"),
            (svg, "needs either --grid or --coordinates"),
            ([*svg, "--grid", 8, "--coordinates", "few.npy"], "needs either --grid or --coordinates"),
            ([*svg, "--grid", 0], "--grid 0: must be from 1 to the 40"),
            ([*svg, "--grid", 41], "--grid 41: must be from 1 to the 40"),
            ([*svg, "--grid", 8, "--skip", 40], "--skip 40: must be from 0 to one fewer than the 40"),
            ([*svg, "--coordinates", self.path("few.npy")], "there are 5 tiles and 40 positions"),
            ([*svg, "--coordinates", self.path("flat.npy")], "the array must be [tiles, 2]"),
            ([*svg, "--coordinates", self.path("same.npy")], "two tiles lie in the same place"),
            ([*svg, "--coordinates", self.path("wide.npy")], "too many to draw"),
            ([*svg, "--coordinates", self.path("words.csv")], "line 2 must be two whole numbers"),
            ([*out, "--lse", self.path("lse.npy")], "--lse: the dtype is float64; it must be float32"),
            ([*out, "--lse", self.path("short.npy")], "--lse: the shape must be that of attend's LSE"),
            ([*out, "--query-start", 1], "--query-start 1: the 40 rows of --q"),
            ([*out, "--heads", "3"], "--heads"),
        ):
            with self.subTest(says):
                before = self.names()
                result = run("map", "--q", self.path("q.npy"), "--k", self.path("k.npy"), *PATTERN, *options)
                self.assert_refused(result, says=says)
                self.assertEqual(self.names(), before)
        self.save_inputs((1, 10, 10 ** 9, 0))  # no bytes of Q, and masses beyond all memory
        for ranks in (1, 2):
            result = run("map", "--q", self.path("q.npy"), "--k", self.path("k.npy"), *PATTERN, *out, "--ranks", ranks)
            self.assert_refused(result, says="head_dim is 0")
        self.save_inputs((2, 40, 2, 8))
        result = run("map", "--q", self.path("q.npy"), "--k", self.path("k.npy"), *PATTERN, *svg, "--grid", 8)
        self.assert_refused(result, says="--svg draws one batch entry; there are 2")


if __name__ == "__main__":
    tap.main()
