# SPDX-License-Identifier: Apache-2.0
"""annulus map on made-up slides: tiles, colours and axes are where the files of coordinates say."""

import base64
import io
import re

from program import ProgramTest, load, np, rounded, run, save
import oracle
import tap

try:
    import matplotlib.image
except ImportError:
    tap.skip_all("needs matplotlib")

GREY = [0xaf, 0xb8, 0xc1]
LEVELS = 3  # of 255, by which a colour may differ: the bar has 256 shades, and axes have six digits
BRANCHES = [{"w": 64, "r": 1}, {"w": 256, "r": 4}]
PATTERN = ["--branch", "64:1", "--branch", "256:4"]


def points_of(png):
    """Returns [rows, columns, 3], from 0 to 255."""
    return np.rint(matplotlib.image.imread(io.BytesIO(png), format="png")[..., :3] * 255).astype(int)


def covered(corners, side, edges):
    """Returns the share of each point between the edges that each tile covers along one axis, [tiles, points]."""
    left, right = edges[:-1], edges[1:]
    shared = np.minimum(right, corners[:, None] + side) - np.maximum(left, corners[:, None])
    return np.maximum(shared, 0) / (right - left)


def median_distance(coordinates):
    """Returns the median distance to the nearest neighbour, by all pairs."""
    at = np.unique(np.asarray(coordinates, float), axis=0)
    distances = np.sqrt(((at[:, None] - at[None]) ** 2).sum(2))
    return np.median(np.where(distances > 0, distances, np.inf).min(1))


class Picture:
    """An SVG of annulus map, read through its axes and its bar."""

    def __init__(self, svg):
        (self.box, self.points), (self.bar_box, bar) = [
            ([float(number) for number in numbers], points_of(base64.b64decode(png))) for *numbers, png in re.findall(
                r'<image x="([^"]+)" y="([^"]+)" width="([^"]+)" height="([^"]+)"[^>]*base64,([^"]+)', svg)]
        self.shades = bar[::-1, 0]
        self.text = [(float(x), float(y), anchor, text) for x, y, anchor, text in re.findall(
            r'<text[^>]* x="([^"]+)" y="([^"]+)" text-anchor="(\w+)">([^<]*)<', svg)]
        self.lines = [text for x, y, anchor, text in self.text if y < self.box[1]]
        self.across = sorted((x, float(text)) for x, y, anchor, text in self.text if anchor == "middle")
        self.down = sorted((y - 4, float(text)) for x, y, anchor, text in self.text if anchor == "end")
        self.marks = [tuple(map(float, numbers)) for numbers in re.findall(
            r'<path class="faint" d="M(\S+) (\S+)L(\S+) (\S+)"', svg)]

    def edges(self):
        """Returns the coordinates of the edges of the points, across and down, by the labels of the axes."""
        rows, columns = self.points.shape[:2]
        edges = []
        for labels, first, length, count in ((self.across, self.box[0], self.box[2], columns),
                                             (self.down, self.box[1], self.box[3], rows)):
            (low, low_value), (high, high_value) = labels[0], labels[-1]
            at = first + length * np.arange(count + 1) / count
            edges.append(low_value + (at - low) * (high_value - low_value) / (high - low))
        return edges

    def range(self):
        """Returns the numbers at the ends of the bar."""
        at_bar = [(y, text.split()[0]) for x, y, anchor, text in self.text
                  if x > self.bar_box[0] + 1 and y < self.bar_box[1] + self.bar_box[3] + 5]
        return float(max(at_bar)[1]), float(min(at_bar)[1])

    def colors(self, values, low, high):
        at = np.clip((np.asarray(values, float) - low) / (high - low), 0, 1) * (len(self.shades) - 1)
        return np.stack([np.interp(at, np.arange(len(self.shades)), self.shades[:, i]) for i in range(3)], -1)


class SlidesTest(ProgramTest):
    def draw(self, *options, name="map.svg"):
        result = run("map", "--picture", self.path(name), *options)
        if "made without cairo" in result.stderr:
            self.skipTest("the program has no cairo")
        self.assert_done(result)
        return self.path(name)

    def picture(self, *options):
        return Picture(self.draw(*options).read_text(encoding="utf-8"))

    def picture_of(self, coordinates, values, *options, name="tiles.npy"):
        """Draws values at coordinates, as they are."""
        save(self.path("mass.npy"), values)
        if name.endswith(".npy"):
            np.save(self.path(name), coordinates)
        return self.picture("--mass", self.path("mass.npy"), "--coordinates", self.path(name), *options)

    def assert_drawn(self, picture, coordinates, values, side, range_of_colors=None):
        """Asserts that each point has the colour of the tiles over it, by their areas, and that others are grey."""
        low, high = np.quantile(values, [0.01, 0.99]) if range_of_colors is None else range_of_colors
        np.testing.assert_allclose(picture.range(), (low, high), atol=2e-3 * (high - low))
        at = np.asarray(coordinates, float)
        across, down = picture.edges()
        np.testing.assert_allclose(across[1] - across[0], down[1] - down[0], rtol=1e-4)  # the true aspect
        self.assertLess(abs(across[0] - at[:, 0].min()), (across[1] - across[0]) / 50)
        self.assertLess(abs(down[0] - at[:, 1].min()), (down[1] - down[0]) / 50)
        x, y = covered(at[:, 0], side, across), covered(at[:, 1], side, down)
        weights = y.T @ x
        with np.errstate(invalid="ignore"):
            wanted = picture.colors((y.T * values) @ x / weights, low, high)
        is_clear = abs(weights - 0.5) > 0.02  # from the least area that is drawn
        is_tile = is_clear & (weights > 0.5)
        np.testing.assert_allclose(picture.points[is_tile], wanted[is_tile], atol=LEVELS)
        self.assertTrue((picture.points[is_clear & ~is_tile] == GREY).all())
        self.assertLessEqual(at[:, 0].max() + side - across[-1], 0.51 * (across[1] - across[0]))
        self.assertLessEqual(at[:, 1].max() + side - down[-1], 0.51 * (down[1] - down[0]))
        # Each tile has a point of its own, unless tiles overlap.
        self.assertTrue((x.max(1) > 0.98).all() and (y.max(1) > 0.98).all())

    def check(self, coordinates, side=None, *options, **named):
        values = self.random.uniform(0.5, 1.5, len(coordinates))
        picture = self.picture_of(coordinates, values, *(["--tile-size", side] if side else []), *options, **named)
        side = side or median_distance(coordinates)
        self.assertIn(f"tiles of size {side:.6g} on ", picture.lines[0])
        self.assert_drawn(picture, coordinates, values, side)
        return picture

    def grid(self, columns=9, rows=7, step=1):
        """Returns the corners of a piece of tissue: a grid without some tiles."""
        at = np.stack(np.meshgrid(np.arange(columns), np.arange(rows)), -1).reshape(-1, 2)
        keep = self.random.random(len(at)) > 0.2
        keep[[0, -1]] = True
        return at[keep] * step

    def test_steps_of_no_whole_number_of_pixels(self):
        for step in (256 * 0.5 / 0.2527, 256 * 0.5 / 0.5052):
            for name in ("rint", "floor"):
                with self.subTest(step=step, name=name):
                    self.check((getattr(np, name)(self.grid(step=step)) + [1234, 567]).astype(np.int64))

    def test_two_pieces_with_different_offsets(self):
        self.check(np.concatenate([self.grid(step=512), self.grid(5, 6, step=512) + [5301, 777]]))

    def test_tiles_of_each_contour(self):
        contours = [self.grid(4, 3, 512) + self.random.integers(0, 512, 2) + [3000 * (i % 3), 2500 * (i // 3)]
                    for i in range(6)]
        self.check(np.concatenate(contours))

    def test_half_shifted_rows(self):
        at = self.grid(step=224)
        self.check(at + np.stack([at[:, 1] // 224 % 2 * 112, 0 * at[:, 1]], 1))

    def test_overlapping_tiles_are_averaged(self):
        self.check(self.grid(step=128), 256)
        self.check(np.concatenate([self.grid(step=256), self.grid(step=256) + 100]), 256)
        same = np.array([[0, 0], [0, 0], [512, 0], [512, 512]])
        picture = self.picture_of(same, np.array([1.0, 3.0, 0.0, 4.0]), "--range", "0:4")
        self.assert_drawn(picture, same, np.array([1.0, 3.0, 0.0, 4.0]), 512, (0, 4))
        np.testing.assert_allclose(picture.points[0, 0], picture.colors(2, 0, 4), atol=1)

    def test_jitter(self):
        at = self.grid(step=512)
        self.check(at + self.random.integers(-40, 41, at.shape))
        self.check(at + self.random.integers(-40, 41, at.shape), 512)

    def test_micrometres(self):
        for dtype in ("float32", "float64"):
            for step in (256.0, 64.6912):
                with self.subTest(dtype=dtype, step=step):
                    self.check((self.grid(step=step) + [17.25, 3.5]).astype(dtype))

    def test_dtypes(self):
        at = self.grid(step=10)
        pictures = []
        for dtype in ("i1", "u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8"):
            with self.subTest(dtype):
                self.random = np.random.default_rng(3)
                pictures.append(self.check(at.astype(dtype)).points)
                np.testing.assert_array_equal(pictures[0], pictures[-1])
        self.check((self.grid(step=506.53) + 60000).astype(np.uint16))

    def test_lines_of_text(self):
        at = self.grid(step=512)
        for name, number in (("whole.csv", "{}"), ("decimals.csv", "{}.0"), ("exponents.csv", "{}e0")):
            with self.subTest(name):
                lines = "".join(f"{number.format(x)}, {number.format(y)}\r\n" for x, y in at)
                self.path(name).write_text("x,y\r\n" + lines, encoding="utf-8")
                self.check(at, name=name)

    def test_a_small_biopsy_is_not_grey(self):
        at = np.rint(self.grid(3, 9, step=506.53)).astype(int)
        picture = self.check(at)
        self.assertGreater((picture.points != GREY).any(2).mean(), 0.6)

    def test_a_hundred_thousand_tiles(self):
        at = self.grid(354, 354)
        at = np.floor(at * 506.53).astype(np.float32)
        self.assertGreater(len(at), 99000)
        values = self.random.uniform(0.5, 1.5, len(at))
        picture = self.picture_of(at, values)
        self.assertIn("tiles of size 506 on ", picture.lines[0])
        low, high = np.quantile(values, [0.01, 0.99])
        across, down = picture.edges()
        column, row = (np.searchsorted(edges, middle) - 1
                       for edges, middle in ((across, at[:, 0] + 253.0), (down, at[:, 1] + 253.0)))
        np.testing.assert_allclose(picture.points[row, column], picture.colors(values, low, high), atol=LEVELS)
        grey = (picture.points == GREY).all(2).mean()
        self.assertAlmostEqual(grey, 1 - len(at) / 354 ** 2, delta=0.01)

    def test_axes(self):
        for corners in (self.grid(step=512) + [12345, 678], self.grid(3, 5, 0.25) - 0.5):
            picture = self.check(corners)
            left, top, _, height = picture.box
            for labels, places in ((picture.across, [x for x, y, x2, _ in picture.marks if x == x2 and y > top + height]),
                                   (picture.down, [y for _, y, x2, y2 in picture.marks if y == y2 and x2 < left])):
                np.testing.assert_allclose([place for place, _ in labels], sorted(places), atol=1e-2)
                steps = np.diff([value for _, value in labels])
                np.testing.assert_allclose(steps, steps[0])
                digit = float(f"{steps[0]:.6e}"[0])
                self.assertIn(digit, (1, 2, 5))
        picture = self.picture("--mass", self.path("mass.npy"), "--grid", 5)
        self.assertEqual([value for _, value in picture.across], [0, 1, 2, 3, 4, 5])

    def test_ranges(self):
        at = self.grid(step=512)
        values = self.random.gamma(2, size=len(at))
        for text, bounds in (("0:2.5", (0, 2.5)), ("-1e-1:3", (-0.1, 3)), ("5%:95%", np.quantile(values, [0.05, 0.95])),
                             ("0:99%", (0, np.quantile(values, 0.99))), ("0%:100%", (values.min(), values.max()))):
            with self.subTest(text):
                picture = self.picture_of(at, values, "--range=" + text)
                self.assert_drawn(picture, at, values, 512, bounds)
        words = " ".join(text for *_, text in picture.text)
        self.assertNotIn("or more", words)
        self.assertNotIn("or less", words)
        words = " ".join(text for *_, text in self.picture_of(at, values, "--range", "1:2").text)
        self.assertIn("1 or less", words)
        self.assertIn("2 or more", words)
        equal = self.picture_of(at, np.full(len(at), 7.0))
        self.assertEqual(equal.range(), (3.5, 10.5))
        zeros = self.picture_of(at, np.zeros(len(at)))
        self.assertEqual(zeros.range(), (-1, 1))

    def test_shapes_of_a_file_of_masses(self):
        at = self.grid(step=512)
        values = self.random.uniform(0.5, 1.5, (4, len(at) + 1)).astype(np.float32)
        for array, rows in ((values[0], "1 row"), (values, "4 rows"), (values[None], "4 rows"),
                            ((values * 1000).astype(np.uint16), "4 rows")):
            picture = self.picture_of(at, array, "--skip", 1)
            self.assertIn(f"mean of {rows}", " ".join(picture.lines))
            means = array.astype(float).reshape(-1, len(at) + 1).mean(0)[1:]
            self.assert_drawn(picture, at, means, 512)

    def test_numbers_that_are_none(self):
        at = self.grid(step=512)
        values = self.random.uniform(0.5, 1.5, len(at))
        values[3] = np.nan
        values[5] = np.inf
        picture = self.picture_of(at, values, "--range", "0:2")
        self.assertIn("not drawn: 1 position without a number", picture.lines)
        seen = np.delete(np.arange(len(at)), 3)
        self.assert_drawn(picture, at[seen], np.minimum(values[seen], 2), 512, (0, 2))

    def save_planted(self, tokens=401, heads=4):
        """Saves q.npy and k.npy of a class token and tiles, of which some are looked at more. Returns which ones."""
        at = np.stack(np.meshgrid(np.arange(20), np.arange(20)), -1).reshape(-1, 2)
        q, k = (self.random.standard_normal((tokens, heads, 16)).astype(np.float32) * 0.2 for _ in range(2))
        q += 0.7
        blob = ((at - [12, 6]) ** 2).sum(1) < 16
        k[1:][blob] += 0.4
        save(self.path("q.npy"), q)
        save(self.path("k.npy"), k)
        np.save(self.path("tiles.npy"), np.rint(at * 253.4).astype(np.uint16))
        return q, k, blob

    def relative(self, *options, q_and_k=("q.npy", "k.npy")):
        return ["--q", self.path(q_and_k[0]), "--k", self.path(q_and_k[1]), *PATTERN, "--relative", *options]

    def test_ratio_to_what_the_pattern_explains(self):
        q, k, blob = self.save_planted()
        for options, arguments in (([], {}), (["--causal"], {"causal": True}), (["--scale", 0.5], {"scale": 0.5}),
                                   (["--padding", "zero-keys"], {"zero_keys": True}), (["--ranks", 2], {})):
            masses = oracle.mass(q[None], k[None], BRANCHES, **arguments)[0]
            expected = oracle.mass(q[None] * 0, k[None], BRANCHES, **arguments)[0]
            for heads, wanted in (("each", masses / expected), ("mean", masses.mean(0) / expected.mean(0))):
                with self.subTest(options=options, heads=heads):
                    result = run("map", *self.relative(*options, "--heads", heads, "--out", self.path("ratio.npy")))
                    self.assert_done(result)
                    np.testing.assert_allclose(load(self.path("ratio.npy"))[0], wanted, rtol=2e-5)
        ratio = wanted[1:]
        self.assertGreater(ratio[blob].mean() / ratio[~blob].mean(), 1.2)
        picture = self.picture(*self.relative("--coordinates", self.path("tiles.npy"), "--skip", 1))
        self.assertIn("mass / expected", [text for *_, text in picture.text])
        self.assertIn("not drawn: position 0", picture.lines)
        self.assert_drawn(picture, np.load(self.path("tiles.npy")), ratio, 253)
        # The range of colours holds what was planted: the regions are as far apart as in the arrays.
        low, high = picture.range()
        across, down = picture.edges()
        at = np.load(self.path("tiles.npy")) + 126.0
        seen = picture.points[np.searchsorted(down, at[:, 1]) - 1, np.searchsorted(across, at[:, 0]) - 1]
        numbers = low + (high - low) * np.array(
            [abs(picture.shades - color).sum(1).argmin() for color in seen]) / (len(picture.shades) - 1)
        clipped = np.clip(ratio, low, high)
        np.testing.assert_allclose(numbers[blob].mean() / numbers[~blob].mean(),
                                   clipped[blob].mean() / clipped[~blob].mean(), rtol=0.01)

    def test_ratio_in_every_dtype(self):
        q, k, _ = self.save_planted()
        for dtype, tolerance in (("float64", 1e-12), ("float16", 2e-3), ("bfloat16", 1.6e-2)):
            masses, expected = (oracle.mass(x[None], rounded(k, dtype)[None], BRANCHES)[0] for x in (rounded(q, dtype), q * 0))
            self.assert_done(run("map", *self.relative("--dtype", dtype, "--out", self.path("ratio.npy"))))
            np.testing.assert_allclose(load(self.path("ratio.npy"))[0], masses / expected, rtol=tolerance)

    def test_ratio_of_chosen_queries_and_of_sequences(self):
        q, k, _ = self.save_planted()
        save(self.path("one.npy"), q[:1])
        self.assert_done(run("map", *self.relative("--query-start", 0, "--out", self.path("ratio.npy"),
                                                   q_and_k=("one.npy", "k.npy"))))
        masses, expected = (oracle.mass(x[None, :1], k[None], BRANCHES, query_start=0)[0] for x in (q, q * 0))
        with np.errstate(invalid="ignore"):
            np.testing.assert_allclose(load(self.path("ratio.npy"))[0], masses / expected, rtol=2e-5)
        self.assertTrue((expected == 0).any())
        self.assert_done(run("map", *self.relative("--starts", "0,150,401", "--out", self.path("ratio.npy"))))
        for begin, end in ((0, 150), (150, 401)):
            masses, expected = (oracle.mass(x[None, begin:end], k[None, begin:end], BRANCHES)[0] for x in (q, q * 0))
            np.testing.assert_allclose(load(self.path("ratio.npy"))[0][:, begin:end], masses / expected, rtol=2e-5)

    def assert_no_picture(self, says, *options):
        before = self.names()
        result = run("map", "--picture", self.path("map.png"), *options)
        if "made without cairo" in result.stderr:
            self.skipTest("the program has no cairo")
        self.assert_refused(result, says=says)
        self.assertEqual(self.names(), before)

    def test_refused_coordinates(self):
        at = self.grid(step=512).astype(float)
        save(self.path("mass.npy"), np.ones(len(at)))
        mass, tiles = ["--mass", self.path("mass.npy")], ["--coordinates", self.path("tiles.npy")]
        far, infinite, large = at.copy(), at.copy(), at.copy()
        far[3] = 1e8, 3e7
        infinite[2] = 1024, np.nan
        large[4, 0] = 2.0 ** 54
        for array, options, says in (
                (at, ["--tile-size", 0], "--tile-size 0: must be above 0"),
                (at, ["--tile-size=-5"], "--tile-size -5: must be above 0"),
                (at, ["--tile-size", "nan"], "--tile-size nan: must be above 0"),
                (at, ["--tile-size", "wide"], "--tile-size wide: must be a decimal number"),
                (at, ["--tile-size", 1], "--tile-size 1: tiles are 512 from their nearest neighbour (median), so nearly all "
                 "of the picture would be empty; the size must be at least 51.2"),
                (far, [], "tiles of size 512 in an area of 100000512 x 30000512 need a picture of 390627 x 117190 points, "
                 "and at most 8192 x 8192 can be drawn"),
                (infinite, [], "tile 2 lies at 1024, nan; both numbers must be finite"),
                (large, [], "both numbers must be finite and from -2^53 to 2^53"),
                (at * 0, [], "all tiles lie in one place, which does not say how large they are; --tile-size must"),
                (at[1:], [], f"there are {len(at) - 1} tiles and {len(at)} positions"),
                (at[:, :1], [], "the array must be [tiles, 2]"), (at[:, 0], [], "the array must be [tiles, 2]"),
                (at.astype(complex), [], "the dtype is '<c16'; it must be a little-endian integer or float dtype"),
                (at.astype(">f4"), [], "the dtype is '>f4'; it must be a little-endian integer or float dtype"),
                (np.asfortranarray(at), [], "save numpy.ascontiguousarray() of it")):
            with self.subTest(says):
                np.save(self.path("tiles.npy"), array)
                self.assert_no_picture(says, *mass, *tiles, *options)
        self.assert_no_picture("--tile-size is for --coordinates", *mass, "--grid", 3, "--tile-size", 5)
        for text, line in (("x,y\n1.5,2\n3.5,two\n", 3), ("1,2\n3;4\n", 2)):
            self.path("tiles.csv").write_text(text, encoding="utf-8")
            self.assert_no_picture(f"line {line} must be two numbers with a comma", *mass, "--coordinates", self.path("tiles.csv"))
        np.save(self.path("tiles.npy"), at)
        self.path("tiles.npy").write_bytes(self.path("tiles.npy").read_bytes()[:-1])
        self.assert_no_picture(f"promises {16 * len(at)} bytes of numbers, the file holds {16 * len(at) - 1}", *mass, *tiles)

    def test_refused_ranges_and_masses(self):
        at = self.grid(step=512)
        np.save(self.path("tiles.npy"), at)
        save(self.path("mass.npy"), np.linspace(3, 4, len(at)))
        mass, tiles = ["--mass", self.path("mass.npy")], ["--coordinates", self.path("tiles.npy")]
        for text in ("1", "1:", "2:1", "1:1", "a:b", "1%:1%", "9%:1%", "-1%:50%", "1%:101%", "1:2:3", "nan:1", "0:inf", "%:1"):
            self.assert_no_picture(f"--range {text}: must be LOW:HIGH", *mass, *tiles, "--range=" + text)
        self.assert_no_picture("--range: the lower end is 5 and the upper one 3.99", *mass, *tiles, "--range", "5:99%")
        for options in (["--q", "q.npy"], ["--k", "k.npy"], ["--lse", "l.npy"], ["--out", self.path("o.npy")], ["--relative"],
                        ["--heads", "mean"], ["--dtype", "float32"], ["--query-start", 0], ["--starts", "0,3"],
                        ["--lengths", "3"], ["--ranks", 2], ["--causal"], ["--branch", "8:1"]):
            self.assert_no_picture("--mass is drawn as it is, and does not go with --", *mass, *tiles, *options)
        self.assert_refused(run("map", *mass), says="--mass is for --picture, which must be given")
        for array, says in ((np.zeros((2, 1, len(at))), "the array must be [N], [H, N] or [1, H, N]"),
                            (np.zeros((0, len(at))), "and not be empty"), (np.array(1.0), "the array must be [N]"),
                            (np.full(len(at), np.nan), "none of the numbers to draw is finite")):
            save(self.path("mass.npy"), array)
            self.assert_no_picture(says, *mass, *tiles)
        save(self.path("tiles.svg"), at)
        self.assert_refused(run("map", *mass, "--picture", self.path("tiles.svg"), "--coordinates", self.path("tiles.svg")),
                            says="--picture")
        self.assert_refused(run("map", "--picture", self.path("map.svg"), *tiles), says="--q is required, except with --mass")
        self.assert_refused(run("map", "--q", "q.npy", "--picture", self.path("map.svg"), *tiles), says="--k is required")


if __name__ == "__main__":
    tap.main()
