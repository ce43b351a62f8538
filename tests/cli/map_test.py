# SPDX-License-Identifier: Apache-2.0
"""annulus map: compares the masses with the definition, and checks the picture."""

import base64
import math
import re
import struct
import zlib

from program import ProgramTest, load, np, run, save
import oracle
import tap


def points_of(png):
    """Returns [rows, columns, 3] of a PNG of 8-bit RGB that is not interlaced."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    at, data = 8, b""
    while at < len(png):
        length, kind = struct.unpack(">I4s", png[at:at + 8])
        body = png[at + 8:at + 8 + length]
        if kind == b"IHDR":
            width, height, depth, color, _, _, interlaced = struct.unpack(">IIBBBBB", body)
            assert (depth, color, interlaced) == (8, 2, 0)
        data += body if kind == b"IDAT" else b""
        at += 12 + length
    data, rows = zlib.decompress(data), []
    above = bytes(3 * width)
    for y in range(height):
        kind, *line = data[y * (1 + 3 * width):(y + 1) * (1 + 3 * width)]
        row = bytearray(3 * width)
        for x, value in enumerate(line):
            left, up, corner = (row[x - 3], above[x], above[x - 3]) if x >= 3 else (0, above[x], 0)
            if kind == 4:
                value += min((left, up, corner), key=lambda near: abs(left + up - corner - near))
            else:
                value += (0, left, up, (left + up) // 2)[kind]
            row[x] = value & 255
        rows.append(row)
        above = row
    return np.frombuffer(b"".join(rows), np.uint8).reshape(height, width, 3)


GREY = [0xaf, 0xb8, 0xc1]  # for places without a position
BRANCHES = [{"w": 16, "r": 1}, {"w": 48, "r": 3}]
PATTERN = ["--branch", "16:1", "--branch", "48:3"]


class MapTest(ProgramTest):
    def save_q_and_k(self, q_shape, k_shape=None, dtype="float32"):
        return self.save_inputs(q_shape, k_shape, dtype)[:2]

    def mass(self, *more, warning=""):
        self.assert_done(run("map", "--q", self.path("q.npy"), "--k", self.path("k.npy"), "--out", self.path("mass.npy"),
                             *PATTERN, *more), warning)
        return load(self.path("mass.npy"))

    def draw(self, name, *more):
        result = run("map", "--q", self.path("q.npy"), "--k", self.path("k.npy"), "--picture", self.path(name),
                     *PATTERN, *more)
        if "made without cairo" in result.stderr:
            self.skipTest("the program has no cairo")
        self.assertEqual((result.returncode, result.stderr, result.stdout), (0, "", ""))
        return self.path(name)

    def picture(self, *more):
        """Returns the lines of text and the points of the picture."""
        svg = self.draw("map.svg", *more).read_text(encoding="utf-8")
        pictures = [base64.b64decode(text) for text in re.findall(r"base64,([^\"]+)\"", svg)]
        self.assertEqual(len(pictures), 2)
        self.assertEqual(points_of(pictures[1]).shape, (256, 1, 3))
        return re.findall(r"<text[^>]*>([^<]*)</text>", svg), points_of(pictures[0])

    def assert_no_picture(self, result, says):
        no_cairo = "--picture: this build was made without cairo, and cannot draw pictures"
        self.assert_refused(result, says=no_cairo if no_cairo in result.stderr else says)

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
        for dtype, mass_dtype, tolerance in (("float64", "float64", 1e-12), ("float16", "float32", 1e-3),
                                             ("bfloat16", "float32", 1e-2)):
            q, k = self.save_q_and_k((61, 3, 8), dtype=dtype)
            found, found_dtype = self.mass()
            self.assertEqual((found.shape, found_dtype), ((3, 61), mass_dtype))
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
        self.assert_close(self.mass("--starts", "2,30,71", warning="--starts: rows 0 to 1 and 71 to 82 are in no ")[0], wanted)

    def test_options_that_are_not_used(self):
        self.save_q_and_k((1, 6, 2, 8))
        for options in (["--coordinates", "tiles.csv"], ["--grid", 3], ["--skip", 1], ["--tile-size", 9], ["--range", "0:1"]):
            self.mass(*options, warning=f"{options[0]} is for --picture, and is not used without")
        result = run("map", "--q", self.path("q.npy"), "--k", self.path("k.npy"), "--picture", self.path("x.svg"), "--grid",
                     3, "--heads", "mean", *PATTERN)
        if "made without cairo" not in result.stderr:
            self.assert_done(result, "--heads is for --out, and is not used without")

    def test_picture_on_a_grid(self):
        q, k = self.save_q_and_k((1, 53, 2, 8))
        means = oracle.mass(q, k, BRANCHES).mean(1)[0]
        lines, points = self.picture("--grid", 10, "--skip", 1)
        self.assertEqual(points.shape, (6, 10, 3))
        seen = (points != GREY).any(2).ravel()
        np.testing.assert_array_equal(seen, np.arange(60) < 52)
        # A place is lighter if its mass is larger.
        light = points.reshape(60, 3)[:52].astype(int).sum(1)
        order = np.argsort(means[1:])
        self.assertTrue((np.diff(light[order]) >= -12).all())
        self.assertGreater(light[order[-1]], light[order[0]] + 200)
        most = int(np.argmax(means[1:]))
        self.assertIn(f"most {means[1:].max():.4g} in column {most % 10}, row {most // 10}", lines[2])
        self.assertIn("from 53 queries, mean of 2 heads", lines[0])
        self.assertIn(f"position 0, with {means[0]:.4g} in all", lines[3])

    def test_picture_of_one_query(self):
        self.save_q_and_k((1, 1, 1, 8), (1, 53, 1, 8))
        self.assertIn("52 positions on 10 x 6, from 1 query, mean of 1 head",
                      " ".join(self.picture("--grid", 10, "--skip", 1, "--query-start", 0)[0]))

    def test_picture_by_coordinates(self):
        self.save_q_and_k((1, 6, 2, 8))
        tiles = np.array([[900, 40], [1100, 40], [700, 240], [900, 240], [700, 440], [1300, 40]])
        save(self.path("tiles.npy"), tiles)
        text = "x, y\r\n" + "".join(f"{x}, {y}\n" for x, y in tiles)
        self.path("tiles.csv").write_text(text, encoding="utf-8")
        pictures = [self.picture("--coordinates", self.path(name))[1] for name in ("tiles.npy", "tiles.csv")]
        np.testing.assert_array_equal(*pictures)
        wanted = np.zeros((3, 4), bool)
        for x, y in (tiles - [700, 40]) // 200:
            wanted[y, x] = True
        np.testing.assert_array_equal((pictures[0] != GREY).any(2), wanted)

    def test_png_shows_what_svg_says(self):
        """Checks the size, the colour of each place from edge to edge, the bar, and that ink is only where words are.
        Uses grids with a number of columns that divides 800 pixels, one that does not, and one above 800."""
        for columns, positions in ((10, 53), (30, 53), (901, 1001)):
            self.save_q_and_k((1, positions, 2, 8))
            svg = self.draw("map.svg", "--grid", columns).read_text(encoding="utf-8")
            with self.subTest(columns):
                found = points_of(self.draw("map.png", "--grid", columns).read_bytes()).astype(int)
                place = math.ceil(800 / columns)  # pixels
                scale = place * columns / 800
                sizes = re.search(r'width="([\d.]+)" height="([\d.]+)" viewBox="0 0 ([\d.]+) ([\d.]+)"', svg).groups()
                width, height, *units = map(float, sizes)
                np.testing.assert_allclose((width, height), np.multiply(units, scale), rtol=1e-5)
                np.testing.assert_allclose(found.shape, (height, width, 3), atol=1)

                nothing_drawn = np.ones(found.shape[:2], bool)
                boxes = re.findall(
                    r'<image x="([^"]+)" y="([^"]+)" width="([^"]+)" height="([^"]+)"[^>]*base64,([^"]+)', svg)
                self.assertEqual(len(boxes), 2)
                for box, (*numbers, png) in enumerate(boxes):
                    x, y, width, height = (round(float(number) * scale) for number in numbers)
                    points = points_of(base64.b64decode(png)).astype(int)
                    rows, row_length = points.shape[:2]
                    if box == 0:
                        self.assertEqual((width, height), (row_length * place, rows * place))
                    down, right = (np.arange(pixels) * count // pixels for pixels, count in ((height, rows),
                                                                                           (width, row_length)))
                    # A pixel between two shades of the bar may have either color.
                    np.testing.assert_allclose(found[y:y + height, x:x + width], points[down][:, right],
                                               atol=(0, 8)[box])
                    nothing_drawn[y - 3:y + height + 3, x - 3:x + width + 3] = False
                marks = re.findall(r'<path class="faint" d="M(\S+) (\S+)L(\S+) (\S+)"', svg)
                self.assertTrue(marks)
                for mark in marks:
                    left, top, right, bottom = (float(number) * scale for number in mark)
                    around = (slice(int(top - scale), int(bottom + scale) + 1), slice(int(left - scale), int(right + scale) + 1))
                    self.assertLess(found[around].sum(2).min(), 700, mark)
                    nothing_drawn[around] = False
                for x, y, anchor, text in re.findall(
                        r'<text[^>]* x="([^"]+)" y="([^"]+)" text-anchor="(\w+)">([^<]*)<', svg):
                    length = 12 * scale * len(text)
                    x, y = float(x) * scale - {"start": 0, "middle": length / 2, "end": length}[anchor], float(y) * scale
                    words = (slice(int(y - 14 * scale), int(y + 5 * scale)),
                             slice(max(int(x - scale), 0), int(x + length + scale)))
                    self.assertLess(found[words].sum(2).min(), 300, text)
                    nothing_drawn[words] = False
                self.assertTrue((found[nothing_drawn] == 255).all())
                self.assertTrue((found[:, -3:] == 255).all(), "words are cut off")

    def test_long_lines_are_broken(self):
        """The line that names a pattern of many branches."""
        self.save_q_and_k((1, 53, 2, 8))
        branches = [word for i in range(40) for word in ("--branch", f"{100 + i}:1")]
        lines, _ = self.picture("--grid", 10, *branches)
        labels = "16:1 + 48:3 + " + " + ".join(branches[1::2])
        self.assertIn(labels, " ".join(lines))
        self.assertNotIn(labels, lines)

    def test_refusals(self):
        self.save_inputs((1, 40, 2, 8))
        save(self.path("lse.npy"), np.zeros((1, 2, 40)), "float64")
        save(self.path("short.npy"), np.zeros((1, 2, 39)), "float32")
        out, svg = ["--out", self.path("mass.npy")], ["--picture", self.path("map.svg")]
        for options, says in (
            ([], "--out or --picture must be given"),
            (["--picture", self.path("map.jpg")], "map.jpg': the name must end in .png or .svg"),
            (["--picture", self.path("png")], "png': the name must end in .png or .svg"),
            (svg, "needs either --grid or --coordinates"),
            ([*svg, "--grid", 8, "--coordinates", "tiles.npy"], "needs either --grid or --coordinates"),
            ([*svg, "--grid", 0], "--grid 0: must be a whole number from 1 to"),
            ([*svg, "--grid", 41], "--grid 41: must be from 1 to the 40"),
            ([*svg, "--grid", 8, "--skip", 40], "--skip 40: must be from 0 to one fewer than the 40"),
            ([*out, "--lse", self.path("lse.npy")], "--lse: the dtype is float64; it must be float32"),
            ([*out, "--lse", self.path("short.npy")], "--lse: the shape must be that of attend's LSE"),
            ([*out, "--query-start", 1], "--query-start 1: the 40 rows of --q"),
            ([*out, "--heads", "3"], "--heads"),
        ):
            with self.subTest(says):
                before = self.names()
                result = run("map", "--q", self.path("q.npy"), "--k", self.path("k.npy"), *PATTERN, *options)
                self.assert_no_picture(result, says)
                self.assertEqual(self.names(), before)
        self.save_inputs((1, 2 * 8192 + 1, 1, 8))
        for width, size in ((2, "2 x 8193"), (8193, "8193 x 2")):
            result = run("map", "--q", self.path("q.npy"), "--k", self.path("k.npy"), *PATTERN, *svg, "--grid", width)
            self.assert_no_picture(
                result, f"--grid {width}: 16385 positions make a grid of {size} places, and at most 8192 x 8192")
        self.save_inputs((1, 10, 10 ** 9, 0))  # Q has no bytes, and the masses exceed all memory
        for ranks in (1, 2):
            result = run("map", "--q", self.path("q.npy"), "--k", self.path("k.npy"), *PATTERN, *out, "--ranks", ranks)
            self.assert_refused(result, says="head dimension D is 0")
        self.save_inputs((2, 40, 2, 8))
        result = run("map", "--q", self.path("q.npy"), "--k", self.path("k.npy"), *PATTERN, *svg, "--grid", 8)
        self.assert_no_picture(result, "--picture draws one batch entry; there are 2")


if __name__ == "__main__":
    tap.main()
