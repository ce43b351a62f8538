# SPDX-License-Identifier: Apache-2.0
"""annulus.slides: maps equal masses that this file computes, pictures show the arrays, and files of tilers are read.

The files have the fields, dtypes and attributes that CLAM, TRIDENT, STAMP, slide2vec and Prov-GigaPath's tiler write.
"""

import contextlib
import copy
import importlib.util
import io
import json
import os
import pathlib
import re
import sys
import tempfile
import unittest
from unittest import mock

import capi  # noqa: F401 - says that NumPy is missing
import tap
from capi import np

import annulus
from annulus.slides import SlideMap, Tiles, attention_map, read_map, read_tiles, slide_map

HAS = {name: importlib.util.find_spec(name) is not None for name in ("h5py", "matplotlib", "scipy", "torch")}
if HAS["torch"]:
    import torch

    import published
    from annulus.torch import replace_longnet_attention

    torch.set_num_threads(1)
if HAS["h5py"]:
    import h5py
if HAS["matplotlib"]:
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg

SOURCE = pathlib.Path(os.environ["ANNULUS_SOURCE"])
sys.path.append(str(SOURCE / "doc"))
import slide_map as slide_map_page  # noqa: E402 - the made-up slide of doc/slides.md
from slide_map import SIZE, tissue  # noqa: E402


def needs(*names):
    missing = [name for name in names if not HAS[name]]
    return unittest.skipIf(missing, f"needs {', '.join(missing)}")


# --- Made-up slides


def contours(step, size):
    """Returns coordinates of four pieces, each with a grid that begins at its own corner, as CLAM cuts them."""
    corners = np.array([[1013, 77], [9001, 1207], [333, 12007], [11113, 14009]])
    row, column = np.mgrid[:12, :15]
    grid = np.stack([column.ravel(), row.ravel()], 1) * step
    return np.concatenate([grid[: len(grid) - 13 * i] + corner for i, corner in enumerate(corners)])


RANDOM = np.random.default_rng(59)
PIXELS = 0.5 / 0.2527 * SIZE  # of level 0 in a tile of 256 pixels of 0.5 µm
NEARLY = 0.5 / 0.5052 * SIZE
# name: (coordinates as a tiler has them, tile size or None to find it, the size to find)
GRIDS = {
    "whole": (tissue(SIZE).astype(np.int64), None, SIZE),
    "rounded": (np.rint(tissue(PIXELS, 40)).astype(np.int32), None, PIXELS),
    "floored": (np.floor(tissue(PIXELS, 40, (300, 211))).astype(np.int64), None, PIXELS),
    "rounded, nearly 256": (np.rint(tissue(NEARLY)).astype(np.int64), None, NEARLY),
    "offset pieces": (tissue(SIZE, 40, (97, 131)).astype(np.int64), None, SIZE),
    "contours": (contours(512, 512), None, 512),
    "jitter": (np.rint(tissue(SIZE, 40) + RANDOM.uniform(-3, 3, (len(tissue(SIZE, 40)), 2))), None, SIZE),
    "half shifted": (tissue(SIZE, 40, (SIZE / 2, SIZE / 2)), None, SIZE),
    "uint16": (tissue(SIZE).astype(np.uint16), None, SIZE),
    "micrometres": ((tissue(128, 40) + 0.3125).astype(np.float32), 128, 128),
    "grid indices": (tissue(1).astype(np.int8), None, 1),
    "a biopsy": (np.rint(PIXELS * np.array([[3, 4], [4, 4], [4, 5], [5, 5], [4, 6]])).astype(np.int64), None, PIXELS),
}


def shown(figure):
    """Draws a figure. Returns its pixels from the top, and a function from places of the slide to (row, column)."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    pixels = np.asarray(canvas.buffer_rgba())

    def at(places):
        x, y = figure.axes[0].transData.transform(places).T
        return np.clip((pixels.shape[0] - y).astype(int), 0, None), x.astype(int)

    return pixels, at


def numbers_of(pixels, figure):
    """Returns the numbers that the colours of pixels [n, 4] stand for, and how exact that is: one and a half of the 256
    steps, since neighbouring colours may be equal in 8 bits."""
    image = next(image for image in figure.axes[0].images if image.get_array().ndim == 2)
    colors = image.cmap(np.arange(256), bytes=True)[:, :3].astype(int)
    index = np.abs(pixels[:, None, :3].astype(int) - colors).sum(-1).argmin(1)
    low, high = image.get_clim()
    return low + (index + 0.5) / 256 * (high - low), 1.5 / 256 * (high - low)


def drawn_values(figure, tiles):
    """Returns the number that the picture shows in the middle of each tile, and the step between two colours."""
    pixels, at = shown(figure)
    return numbers_of(pixels[at(tiles.coordinates + tiles.tile_size / 2)], figure)


# --- Masses


def masses_of(q, k, branches, rows):
    """Computes by LongNet's formula with zero-padded segments what queries in `rows` give to keys: [H, N].

    q, k: float64 [N, H, D].
    """
    length, heads, dim = q.shape
    scores = np.exp(np.einsum("nhd,mhd->hnm", q, k) / np.sqrt(dim))
    weights, sums = np.zeros_like(scores), np.zeros((heads, length))
    for w, r in branches:
        w = min(w, length)
        for start in range(0, length, w):
            for head in range(heads):
                places = np.arange(start + head // -(-heads // r), min(start + w, length), r)
                block = scores[head][np.ix_(places, places)]
                weights[head][np.ix_(places, places)] += block
                sums[head, places] += block.sum(-1) + (-(-w // r) - len(places))
    return (weights[:, rows] / np.maximum(sums[:, rows, None], 1e-300)).sum(1)


if HAS["torch"]:

    class SlideEncoder(torch.nn.Module):
        """A model with the interface and the parts of Prov-GigaPath's: embeddings and coordinates to a class token."""

        def __init__(self, features=24, **options):
            super().__init__()
            torch.manual_seed(5)
            self.tile_size = SIZE
            self.patch_embed = torch.nn.Linear(features, 64)
            self.cls_token = torch.nn.Parameter(torch.randn(1, 1, 64))
            self.encoder = published.Encoder(published.arguments(**options))
            self.dropout = torch.nn.Dropout(0.5)

        def forward(self, x, coords):
            places = torch.floor(coords / self.tile_size)
            x = self.patch_embed(x) + torch.sin(places.sum(-1, keepdim=True) / 7)
            x = torch.cat([self.cls_token.expand(len(x), -1, -1), self.dropout(x)], 1)
            return self.encoder(x)[:, 0]


def small_slide(count=61, features=24):
    coordinates = tissue(SIZE, 40)[:count]
    return Tiles(coordinates, np.random.default_rng(2).standard_normal((count, features)), tile_size=SIZE)


@needs("torch")
class ModelTest(unittest.TestCase):
    BRANCHES = [(16, 1), (48, 3)]

    def projections(self, model, tiles, layer):
        """Returns q and k of a layer of the model as it is, float64 [N, H, D]."""
        attention, found = model.encoder.layers[layer].self_attn, {}
        hooks = [
            getattr(attention, name).register_forward_hook(lambda *rows, name=name: found.update({name: rows[-1]}))
            for name in ("q_proj", "k_proj")
        ]
        coordinates = torch.as_tensor(tiles.coordinates)[None]
        with torch.no_grad():
            model.eval()(torch.as_tensor(tiles.embeddings)[None], coordinates)
        for hook in hooks:
            hook.remove()
        return [found[name][0].unflatten(-1, (4, -1)).numpy() for name in ("q_proj", "k_proj")]

    def test_masses_of_a_model(self):
        """Of a model with published attention, and with replaced attention."""
        tiles = small_slide()
        model = SlideEncoder().double()
        for layer in (0, -1, 1):
            q, k = self.projections(model, tiles, layer)
            for is_replaced in (False, True):
                mine = copy.deepcopy(model)
                if is_replaced:
                    replace_longnet_attention(mine)
                for of, rows in (("all", slice(None)), ("class token", slice(1))):
                    with self.subTest(layer=layer, of=of, is_replaced=is_replaced):
                        found = slide_map(mine, tiles, layer=layer, of=of)
                        wanted = masses_of(q, k, self.BRANCHES, rows)[:, 1:]
                        expected = masses_of(q * 0, k * 0, self.BRANCHES, rows)[:, 1:]
                        np.testing.assert_allclose(found.mass, wanted, rtol=1e-10, atol=1e-12)
                        np.testing.assert_allclose(found.expected, expected, rtol=2e-6, atol=1e-7)
                        reached = expected.mean(0) > 0
                        ratio = found.values()
                        quotient = wanted.mean(0)[reached] / expected.mean(0)[reached]
                        np.testing.assert_allclose(ratio[reached], quotient, rtol=2e-6)
                        self.assertTrue(np.isnan(ratio[~reached]).all())
                        np.testing.assert_allclose(found.values("mass", 2), wanted[2], rtol=1e-10, atol=1e-12)

    def test_the_model_stays_as_it_is(self):
        tiles = small_slide()
        model = SlideEncoder()
        model.encoder.layers[0].eval()
        modules, modes = list(model.modules()), [module.training for module in model.modules()]
        state = copy.deepcopy(model.state_dict())
        for fails in (False, True):
            if fails:
                model.encoder.layer_norm.forward = lambda x: 1 / 0
            with self.assertRaises(ZeroDivisionError) if fails else contextlib.nullcontext():
                slide_map(model, tiles)
            for one, other in zip(model.modules(), modules):
                self.assertIs(one, other)
                self.assertEqual(len(one._forward_hooks), 0)
            self.assertEqual([module.training for module in model.modules()], modes)
            for name, tensor in model.state_dict().items():
                self.assertTrue(torch.equal(tensor, state[name]))

    def test_dtypes_and_kinds_of_embeddings(self):
        """float16 embeddings, as STAMP writes them, and tensors; a float32 model."""
        tiles = small_slide()
        model = SlideEncoder()
        half = tiles.embeddings.astype(np.float16)
        wanted = slide_map(model, Tiles(tiles.coordinates, half.astype(np.float32), tile_size=SIZE)).mass
        for embeddings in (half, torch.as_tensor(half), torch.as_tensor(half)[None]):
            found = slide_map(model, Tiles(torch.as_tensor(tiles.coordinates), embeddings, tile_size=SIZE))
            np.testing.assert_array_equal(found.mass, wanted)

    def test_refusals(self):
        tiles = small_slide()
        plain = torch.nn.Module()
        plain.forward = lambda x, coords: x
        shared = SlideEncoder()
        shared.encoder.layers[1] = shared.encoder.layers[0]
        multiway = SlideEncoder()
        multiway.encoder.layers[1].self_attn.xpos = torch.nn.Identity()
        misplaced = SlideEncoder(segment_length=[16, 50])
        replace_longnet_attention(misplaced, misplaced_rows="as published")
        for words, model, options in (
            ("layer is 2; the model has 2 attention modules, from 0 to 1", SlideEncoder(), {"layer": 2}),
            ("layer is 'last'; it must be an int", SlideEncoder(), {"layer": "last"}),
            ("of is 'cls'; it must be one of 'all', 'class token'", SlideEncoder(), {"of": "cls"}),
            ("model, a Module, has no attention module of LongNet's published code", plain, {}),
            ("called the attention module 2 times", shared, {}),
            ("layers.1.self_attn: DilatedAttention left as it is; it has xpos", multiway, {}),
            ("misplaced_rows is 'as published' and there are 62 positions; beyond 50", misplaced, {}),
        ):
            with self.subTest(words), self.assertRaisesRegex(annulus.Error, words):
                slide_map(model, tiles, **options)
        with self.assertRaisesRegex(annulus.ArgumentError, "tiles have no embeddings"):
            slide_map(SlideEncoder(), Tiles(tiles.coordinates))
        with self.assertRaisesRegex(TypeError, "model is a function; it must be a torch.nn.Module"):
            slide_map(lambda: None, tiles)


@needs("scipy")
class TruthTest(unittest.TestCase):
    """A blob of other tiles on a slide of real size, with Prov-GigaPath's branches."""

    @classmethod
    def setUpClass(cls):
        coordinates, cls.in_blob, cls.q, cls.k = slide_map_page.made_up_slide()
        cls.tiles = Tiles(coordinates)
        config = annulus.Config.gigapath()
        cls.maps = {of: attention_map(cls.q, cls.k, cls.tiles, config, of=of) for of in ("all", "class token")}

    def test_the_pattern_is_not_in_the_ratio(self):
        """Both edges of the class token's first segment, and tiles in two residues, have one ratio and other masses."""
        position = 1 + np.arange(len(self.tiles))
        outside = ~self.in_blob
        found = self.maps["class token"]
        ratio, mass = found.values(), found.values("mass")
        before, beyond = outside & (position < 1024), outside & (position >= 1024)
        self.assertGreater(mass[before].mean() / mass[beyond].mean(), 5)
        # Not exactly 1: the heads that reach beyond see the blob, and give the others less.
        self.assertAlmostEqual(np.nanmean(ratio[before]) / np.nanmean(ratio[beyond]), 1, delta=0.05)
        even = position % 2 == 0
        self.assertEqual(mass[beyond & ~even].max(), 0)
        self.assertTrue(np.isnan(ratio[beyond & ~even]).all())
        self.assertTrue(np.isfinite(ratio[beyond & even]).all())
        # With equal scores nothing but the pattern is there.
        for of in self.maps:
            flat = attention_map(self.q, self.k * 0, self.tiles, annulus.Config.gigapath(), of=of)
            ratio = flat.values()
            np.testing.assert_allclose(ratio[np.isfinite(ratio)], 1, rtol=1e-5)
            self.assertGreater(flat.values("mass").max() / flat.values("mass").mean(), 1.02)

    def test_the_blob_is_in_the_ratio(self):
        for of, found in self.maps.items():
            ratio = found.values()
            self.assertGreater(np.nanmean(ratio[self.in_blob]) / np.nanmean(ratio[~self.in_blob]), 2, of)
            self.assertLess(np.nanmax(ratio[~self.in_blob]), np.nanmin(ratio[self.in_blob]), of)

    @needs("matplotlib")
    def test_the_picture_shows_the_arrays(self):
        for of, found in self.maps.items():
            ratio = found.values()
            reached = np.isfinite(ratio)
            for limits in ((0.0, 4.0), None):
                with self.subTest(of=of, range=limits):
                    figure = found.figure(range=limits)
                    drawn, step = drawn_values(figure, self.tiles)
                    low, high = limits or np.quantile(ratio[reached], (0.01, 0.99))
                    wanted = np.clip(ratio, low, high)
                    np.testing.assert_allclose(drawn[reached], wanted[reached], atol=step)
                    inside, outside = reached & self.in_blob, reached & ~self.in_blob
                    self.assertAlmostEqual(
                        drawn[inside].mean() / drawn[outside].mean(),
                        wanted[inside].mean() / wanted[outside].mean(),
                        delta=step,
                    )
                    pixels, at = shown(figure)
                    rows, columns = at(self.tiles.coordinates + self.tiles.tile_size / 2)
                    self.assertTrue((pixels[rows[~reached], columns[~reached]] == 255).all())  # the ground
                    (image,) = figure.axes[0].images
                    self.assertAlmostEqual(sum(image.get_clim()) / 2, 1)  # neutral at 1
                    self.assertEqual(figure.axes[1].get_ylim(), (low, high))

    @needs("matplotlib")
    def test_the_picture_of_the_page(self):
        """doc/slide_map.png is what doc/slide_map.py draws; letters may differ with the version of matplotlib."""
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory, "map.png")
            slide_map_page.draw(path)
            drawn, wanted = (matplotlib.image.imread(one) for one in (path, SOURCE / "doc/slide_map.png"))
        self.assertEqual(drawn.shape, wanted.shape)
        self.assertLess(np.abs(drawn - wanted).mean(), 0.01)

    def test_one_row_of_queries(self):
        """A query window: q of the class token alone. And without the axis of batch entries, or with it."""
        config = annulus.Config.gigapath()
        wanted = self.maps["class token"]
        alone = attention_map(self.q[None, :1], self.k[None], self.tiles, config, of="class token")
        np.testing.assert_array_equal(alone.mass, wanted.mass)
        np.testing.assert_array_equal(alone.expected, wanted.expected)

    @needs("torch")
    def test_tensors(self):
        config = annulus.Config.gigapath()
        found = attention_map(torch.as_tensor(self.q), torch.as_tensor(self.k), self.tiles, config)
        np.testing.assert_array_equal(found.mass, self.maps["all"].mass)

    def test_refusals(self):
        q, k, tiles = self.q[:11], self.k[:11], Tiles(self.tiles.coordinates[:10], tile_size=SIZE)
        branches = [(8, 1)]
        for words, call in (
            ("of is 'cls'", lambda: attention_map(q, k, tiles, branches, of="cls")),
            (
                r"k has 11 positions and there are 9 tiles",
                lambda: attention_map(q, k, Tiles(tiles.coordinates[:9]), branches),
            ),
            ("k has 10 rows, and so no class", lambda: attention_map(q[1:], k[1:], tiles, branches, of="class token")),
            (r"q has shape \[2, 11, 16, 48\]", lambda: attention_map(np.stack([q, q]), k, tiles, branches)),
            ("q has 4 axes and k has 3", lambda: attention_map(q[None], k, tiles, branches)),
            ("branches is None", lambda: attention_map(q, k, tiles, None)),
        ):
            with self.subTest(words), self.assertRaisesRegex(annulus.ArgumentError, words):
                call()


# --- Pictures


@needs("matplotlib", "scipy")
class PictureTest(unittest.TestCase):
    def test_tiles_of_real_grids(self):
        """The tile size is found. Each tile has its own colour in its middle, and tiles of a piece have no gaps."""
        for name, (coordinates, size, wanted) in GRIDS.items():
            with self.subTest(name):
                tiles = Tiles(coordinates, tile_size=size)
                self.assertEqual(tiles.coordinates.dtype, np.float64)
                self.assertAlmostEqual(tiles.tile_size, wanted, delta=4 if name == "jitter" else 0.6)
                values = np.random.default_rng(3).permutation(len(tiles)) / len(tiles)
                figure = SlideMap(tiles, values).figure(range=(0, 1))
                drawn, step = drawn_values(figure, tiles)
                np.testing.assert_allclose(drawn, values, atol=step)
                pixels, at = shown(figure)
                spread = tiles.coordinates[:, None] + tiles.tile_size * np.array([0.3, 0.5, 0.7])[:, None]
                self.assertFalse((pixels[at(spread.reshape(-1, 2))] == 255).all(-1).any())
                neighbours = tiles.coordinates[:, None] + tiles.tile_size * np.array([1.0, 0.5])
                has_neighbour = [
                    np.abs(tiles.coordinates - place - (tiles.tile_size, 0)).max(1).min() < 1
                    for place in tiles.coordinates
                ]
                self.assertFalse((pixels[at(neighbours[has_neighbour].reshape(-1, 2))] == 255).all(-1).any())

    def test_aspect_and_ticks(self):
        tiles = Tiles(np.rint(tissue(PIXELS, 40)), unit="µm")
        figure = SlideMap(tiles, np.arange(len(tiles))).figure()
        axes = figure.axes[0]
        self.assertEqual((axes.get_xlabel(), axes.get_ylabel()), ("x, µm", "y, µm"))
        low, high = tiles.coordinates.min(0) - tiles.tile_size, tiles.coordinates.max(0) + 2 * tiles.tile_size
        np.testing.assert_allclose((*axes.get_xlim(), *axes.get_ylim()), (low[0], high[0], high[1], low[1]))
        corner, across = axes.transData.transform([low, low + 1000])
        self.assertAlmostEqual(across[0] - corner[0], corner[1] - across[1], places=6)  # true aspect; y points down
        shown(figure)
        labels = [label.get_text() for label in axes.get_xticklabels()]
        self.assertIn("5000", labels)

    def test_overlapping_tiles_are_averaged(self):
        tiles = Tiles([[0, 0], [50, 0], [0, 300], [400, 300]], tile_size=100)
        figure = SlideMap(tiles, [0, 1, 0.25, 1]).figure(range=(0, 1))
        pixels, at = shown(figure)
        numbers, step = numbers_of(pixels[at([[25, 50], [75, 50], [125, 50], [50, 350]])], figure)
        np.testing.assert_allclose(numbers, [0, 0.5, 1, 0.25], atol=step)
        self.assertTrue((pixels[at([[175, 50], [250, 350], [50, 200]])] == 255).all())

    def test_tiles_off_the_grid_are_as_large(self):
        """Wherever a tile begins, it gets as many dots; its edges are at most half a cell off."""
        for offset in (0, 3, 4.7, 9, 11):
            tiles = Tiles([[0, 0], [400 + offset, 0]], tile_size=100)
            figure = SlideMap(tiles, [0, 1]).figure()
            pixels, at = shown(figure)
            rows, columns = at([[250, 50], [600, 50], [250, 50], [350, 50]])
            row = (pixels[rows[0], columns[0] : columns[1]] != 255).any(-1)
            dots = (columns[3] - columns[2]) / 100
            self.assertAlmostEqual(row.sum() / dots, 100, delta=2 / dots)
            self.assertAlmostEqual(np.flatnonzero(row)[0] / dots, 150 + offset, delta=100 / 16 + 2 / dots)

    def test_half_overlap_of_a_tiler(self):
        """With a stride of half a tile each place inside is covered by four tiles."""
        row, column = np.mgrid[:9, :9]
        tiles = Tiles(np.stack([column.ravel(), row.ravel()], 1) * 128, tile_size=256)
        values = (column + 10 * row).ravel() / 100
        figure = SlideMap(tiles, values).figure(range=(0, 1))
        pixels, at = shown(figure)
        numbers, step = numbers_of(
            pixels[at((tiles.coordinates + 192)[(column < 8).ravel() & (row < 8).ravel()])], figure
        )
        grid = values.reshape(9, 9)
        means = (grid[1:, 1:] + grid[1:, :-1] + grid[:-1, 1:] + grid[:-1, :-1]) / 4
        np.testing.assert_allclose(numbers, means.ravel(), atol=step)

    def test_over_a_thumbnail(self):
        """Tiles lie over the part of the thumbnail where they are. Arrays and files."""
        tiles = Tiles([[640, 320], [896, 320]], tile_size=256)
        thumbnail = np.zeros((40, 60, 3), np.uint8)
        thumbnail[:, 30:] = (0, 200, 0)
        thumbnail[0] = (200, 0, 0)
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory, "thumbnail.png")
            matplotlib.image.imsave(path, thumbnail)
            for one in (thumbnail, path, str(path)):
                figure = SlideMap(tiles, [0.0, 1.0]).figure(thumbnail=one, thumbnail_scale=32, range=(0, 1))
                np.testing.assert_allclose((*figure.axes[0].get_xlim(), *figure.axes[0].get_ylim()), (0, 1920, 1280, 0))
                pixels, at = shown(figure)
                rows, columns = at([[100, 16], [100, 1000], [1800, 1000], [768, 448], [1024, 448]])
                found = pixels[rows, columns, :3].astype(int)
                np.testing.assert_allclose(found[:3], [(200, 0, 0), (0, 0, 0), (0, 200, 0)], atol=1)
                viridis = matplotlib.colormaps["viridis"]([0, 255], bytes=True)[:, :3]
                under = np.array([(0, 0, 0), (0, 200, 0)])
                np.testing.assert_allclose(found[3:], 0.6 * viridis + 0.4 * under, atol=2)

    def test_range(self):
        """Numbers as said, else the quantiles 0.01 and 0.99; also if all are equal."""
        tiles = Tiles(tissue(SIZE))
        values = np.random.default_rng(1).lognormal(size=len(tiles))
        for mass, limits, wanted in (
            (values, (0.5, 2), (0.5, 2)),
            (values, None, np.quantile(values, (0.01, 0.99))),
            (np.full(len(tiles), 3.0), None, (2.97, 3.03)),
            (np.zeros(len(tiles)), None, (-1, 1)),
        ):
            figure = SlideMap(tiles, mass).figure(range=limits)
            np.testing.assert_allclose(figure.axes[0].images[0].get_clim(), wanted)
        figure = SlideMap(tiles, values, np.full(len(tiles), 4.0)).figure("mass")
        np.testing.assert_allclose(figure.axes[0].images[0].get_clim(), np.quantile(values, (0.01, 0.99)))

    def test_a_hundred_thousand_tiles(self):
        """Each has dots of its own."""
        tiles = Tiles(np.rint(np.stack(np.mgrid[:400, :250], -1).reshape(-1, 2) * PIXELS).astype(np.int32))
        values = np.random.default_rng(1).permutation(len(tiles)) / len(tiles)
        written = io.BytesIO()
        figure = SlideMap(tiles, values).figure(range=(0, 1))
        drawn, step = drawn_values(figure, tiles)
        np.testing.assert_allclose(drawn, values, atol=step)
        figure.savefig(written)
        self.assertEqual(matplotlib.image.imread(io.BytesIO(written.getvalue())).shape, shown(figure)[0].shape)

    def test_refusals(self):
        tiles = Tiles([[0, 0], [0, 15], [90000, 70000]])
        one = SlideMap(Tiles([[0, 0], [0, 256]]), [1, 2], [1, 1])
        pixels = np.zeros((4, 5, 3))
        for words, call in (
            (
                "tile_size is 10 and the picture 90030 long: .* 18006 dots long, and it may have 4096",
                lambda: SlideMap(Tiles(tiles.coordinates, tile_size=10), [1, 2, 3]).figure(),
            ),
            (
                "tile_size is 20 and neighbouring tiles are 256 apart; it must be at least a tenth of that",
                lambda: SlideMap(Tiles([[0, 0], [0, 256]], tile_size=20), [1, 2]).figure(),
            ),
            ("range is 3; it must be two numbers", lambda: one.figure(range=3)),
            (
                r"range is \(2, 1\); it must be two finite numbers, the lower one first",
                lambda: one.figure(range=(2, 1)),
            ),
            ("no tile has a finite value", lambda: SlideMap(tiles, [np.nan] * 3).figure()),
            ("thumbnail_scale is None", lambda: one.figure(thumbnail=pixels)),
            (
                "thumbnail_scale is 0.0; it must be finite and above 0",
                lambda: one.figure(thumbnail=pixels, thumbnail_scale=0),
            ),
            ("thumbnail_scale is 4 and thumbnail is None", lambda: one.figure(thumbnail_scale=4)),
            (r"thumbnail has shape \[5\]", lambda: one.figure(thumbnail=pixels[0, :, 0], thumbnail_scale=4)),
            ("quantity is 'odds'; it must be one of 'ratio', 'mass'", lambda: one.figure("odds")),
            ("quantity is 'ratio' and the map has no expected", lambda: SlideMap(one.tiles, [1, 2]).figure("ratio")),
            ("heads is 1; it must be 'mean' or the number of a head, below 1", lambda: one.figure(heads=1)),
            ("heads is 'max'; it must be 'mean'", lambda: one.figure(heads="max")),
        ):
            with self.subTest(words), self.assertRaisesRegex(annulus.ArgumentError, words):
                call()
        for name, call in (("matplotlib", one.figure), ("scipy", lambda: Tiles([[0, 0], [1, 1]]).tile_size)):
            hidden = {key: None for key in (name, "matplotlib.figure", "scipy.spatial") if key.startswith(name)}
            with mock.patch.dict(sys.modules, hidden):
                with self.assertRaisesRegex(ImportError, rf"needs {name} \(pip install {name}\)"):
                    call()


class TilesTest(unittest.TestCase):
    def test_refusals(self):
        for words, call in (
            (r"coordinates have shape \[3\]", lambda: Tiles([1, 2, 3])),
            (r"coordinates have shape \[2, 3\]", lambda: Tiles(np.zeros((2, 3)))),
            ("coordinates are empty", lambda: Tiles(np.zeros((0, 2)))),
            ("coordinates are no numbers", lambda: Tiles([["a", "b"]])),
            (r"coordinates\[1\] is \[nan, 2.0\]", lambda: Tiles([[0, 0], [np.nan, 2]])),
            (
                r"embeddings have shape \[3, 4\]; they must be \[2, E\]",
                lambda: Tiles([[0, 0], [1, 1]], np.zeros((3, 4))),
            ),
            ("tile_size is 0.0; it must be finite and above 0", lambda: Tiles([[0, 0]], tile_size=0)),
            ("tile_size is 'x'; it must be a number", lambda: Tiles([[0, 0]], tile_size="x")),
            ("all tiles lie in one place", lambda: Tiles([[5, 5], [5, 5]]).tile_size),
            (
                r"mass has shape \[3\]; it must be \[H, 2\] or \[2\]",
                lambda: SlideMap(Tiles([[0, 0], [1, 1]]), [1, 2, 3]),
            ),
            (r"expected has shape \[1, 2\]", lambda: SlideMap(Tiles([[0, 0], [1, 1]]), np.ones((4, 2)), [1, 2])),
        ):
            with self.subTest(words), self.assertRaisesRegex(annulus.ArgumentError, words):
                call()


# --- Files


@needs("scipy")
class MapFileTest(unittest.TestCase):
    def setUp(self):
        self.directory = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.tiles = Tiles(tissue(SIZE, 20), unit="µm")
        self.mass = np.random.default_rng(1).random((4, len(self.tiles))).astype(np.float32)

    def test_arrays(self):
        for expected in (self.mass + 1, None):
            path = self.directory / "map.npz"
            SlideMap(self.tiles, self.mass, expected, of="class token").save(path)
            found = read_map(path)
            np.testing.assert_array_equal(found.mass, self.mass)
            np.testing.assert_array_equal(found.tiles.coordinates, self.tiles.coordinates)
            self.assertEqual((found.of, found.tiles.unit, found.tiles.tile_size), ("class token", "µm", SIZE))
            if expected is None:
                self.assertIsNone(found.expected)
            else:
                np.testing.assert_array_equal(found.expected, expected)

    def test_masses_of_the_program(self):
        """A class token comes before the tiles, or none."""
        path = self.directory / "mass.npy"
        token = np.full((4, 1), 9, np.float32)
        for masses in (self.mass, np.hstack([token, self.mass]), np.hstack([token, self.mass])[None]):
            np.save(path, masses)
            np.testing.assert_array_equal(read_map(path, self.tiles).mass, self.mass)
        np.save(path, self.mass[0])
        np.testing.assert_array_equal(read_map(path, self.tiles).mass, self.mass[:1])

    @needs("matplotlib")
    def test_pictures(self):
        for name in ("map.png", "map.svg", "map.pdf"):
            SlideMap(self.tiles, self.mass).save(self.directory / name, heads=1)
            self.assertGreater((self.directory / name).stat().st_size, 1000)

    def test_refusals(self):
        path = self.directory / "mass.npy"
        np.save(path, self.mass[:, 1:])
        np.savez(self.directory / "other.npz", mass=self.mass)
        one = SlideMap(self.tiles, self.mass)
        for words, call in (
            ("tiles is None; masses alone do not say", lambda: read_map(path)),
            (r"path has \d+ positions and there are \d+ tiles", lambda: read_map(path, self.tiles)),
            ("has no of, coordinates, unit, tile_size", lambda: read_map(self.directory / "other.npz")),
            ("options are for a picture", lambda: one.save(self.directory / "no.npz", heads=1)),
        ):
            with self.subTest(words), self.assertRaisesRegex(annulus.ArgumentError, words):
                call()
        self.assertFalse((self.directory / "no.npz").exists())


class FileTest(unittest.TestCase):
    """Files as tilers write them."""

    def setUp(self):
        self.directory = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.random = np.random.default_rng(8)

    def check(self, tiles, coordinates, size, embeddings=None, unit="pixels"):
        np.testing.assert_array_equal(tiles.coordinates, np.asarray(coordinates, np.float64))
        self.assertEqual(tiles.coordinates.dtype, np.float64)
        self.assertEqual(tiles.unit, unit)
        if size is not None:
            self.assertEqual(tiles.tile_size, size)
        if embeddings is None:
            self.assertIsNone(tiles.embeddings)
        else:
            np.testing.assert_array_equal(np.asarray(tiles.embeddings), embeddings)

    def hdf5(self, name, arrays, coordinate_attributes=(), attributes=()):
        path = self.directory / name
        with h5py.File(path, "w") as held:
            for key, array in arrays.items():
                held.create_dataset(key, data=array, maxshape=(None, *array.shape[1:]), chunks=(1, *array.shape[1:]))
            held["coords"].attrs.update(coordinate_attributes)
            held.attrs.update(attributes)
        return path

    @needs("h5py")
    def test_clam(self):
        """Patches of level 0, and of a level whose factor CLAM rounds down; features, which have no attributes."""
        coordinates = contours(1024, 1024)
        both = {
            "downsampled_level_dim": (2500, 2000),
            "level_dim": (2500, 2000),
            "name": "slide",
            "save_path": "patches",
        }
        for level, factor, size, wanted in ((0, (1.0, 1.0), 1024, 1024), (1, (4.000267, 4.000138), 256, 1024)):
            attributes = {"patch_size": size, "patch_level": level, "downsample": factor, **both}
            path = self.hdf5("slide.h5", {"coords": coordinates}, attributes)
            self.check(read_tiles(path), coordinates, wanted)
        features = self.random.standard_normal((len(coordinates), 1024)).astype(np.float32)
        path = self.hdf5("features.h5", {"features": features, "coords": coordinates.astype(np.int32)})
        self.check(read_tiles(path), coordinates, 1024 if HAS["scipy"] else None, features)

    @needs("h5py")
    def test_trident(self):
        """Patches that overlap by a quarter, at 20 of 40 magnifications; also with attributes that are None."""
        coordinates = np.rint(tissue(384, 30)).astype(np.int64)
        features = self.random.standard_normal((len(coordinates), 32)).astype(np.float32)
        attributes = {
            "patch_size": 256,
            "patch_size_level0": 512,
            "level0_magnification": 40,
            "target_magnification": 20,
            "overlap": 64,
            "name": "slide",
            "savetodir": "out",
            "level0_width": 60000,
            "level0_height": 50000,
        }
        path = self.hdf5("slide_patches.h5", {"coords": coordinates}, attributes)
        self.check(read_tiles(path), coordinates, 512)
        path = self.hdf5("slide.h5", {"features": features, "coords": coordinates}, attributes)
        self.check(read_tiles(path), coordinates, 512, features)
        path = self.hdf5("none.h5", {"features": features, "coords": coordinates}, {"patch_size_level0": "None"})
        self.check(read_tiles(path), coordinates, 384 if HAS["scipy"] else None, features)
        path = self.hdf5("empty.h5", {"coords": np.empty((0, 2), np.int64)}, attributes)
        with self.assertRaisesRegex(annulus.ArgumentError, "empty.h5': coordinates are empty"):
            read_tiles(path)

    @needs("h5py")
    def test_stamp(self):
        coordinates = (tissue(256, 30) + 17.3).astype(np.float32)
        features = self.random.standard_normal((len(coordinates), 32)).astype(np.float16)
        arrays = {"coords": coordinates, "feats": features}
        for attributes in (
            {"stamp_version": "2.4.0", "extractor": "uni", "unit": "um", "tile_size_um": 256.0, "tile_size_px": 224},
            {"extractor": "ctranspath", "unit": "um", "tile_size": 256.0},
        ):
            self.check(read_tiles(self.hdf5("slide.h5", arrays, (), attributes)), coordinates, 256, features, "µm")
        oldest = self.hdf5("oldest.h5", arrays, (), {"tile_size": 224, "unit": "px"})
        self.check(read_tiles(oldest), coordinates, 224, features)

    def test_slide2vec(self):
        """The .npz with a .meta.json beside it, or without; and the older .npy, a row of named fields for each tile."""
        coordinates = np.rint(tissue(444, 30)).astype(np.int64)
        path = self.directory / "slide-1.coordinates.npz"
        count = np.arange(len(coordinates), dtype=np.int32)
        fractions = np.ones(len(coordinates), np.float32)
        x, y = coordinates.T
        np.savez(path, tile_index=count, x=x, y=y, tissue_fractions=fractions)
        self.check(read_tiles(path), coordinates, 444 if HAS["scipy"] else None)
        meta = {"artifact": {"coordinate_space": "level0"}, "tiling": {"tile_size_lv0": 448, "step_px_lv0": 444}}
        path.with_name("slide-1.coordinates.meta.json").write_text(json.dumps(meta), encoding="utf-8")
        embeddings = self.random.standard_normal((len(coordinates), 8))
        self.check(read_tiles(path, embeddings=embeddings), coordinates, 448, embeddings)
        fields = [("x", int), ("y", int), ("tile_size_resized", int), ("tile_level", int), ("resize_factor", float)]
        rows = np.zeros(len(coordinates), [*fields, ("tile_size_lv0", int), ("target_spacing", float)])
        rows["x"], rows["y"], rows["tile_size_lv0"] = x, y, 448
        np.save(self.directory / "slide.npy", rows)
        self.check(read_tiles(self.directory / "slide.npy"), coordinates, 448)

    def test_gigapath(self):
        """dataset.csv, and a directory of pictures."""
        coordinates = np.floor(tissue(PIXELS, 20)).astype(int)
        lines = ["slide_id,tile_id,image,label,tile_x,tile_y,occupancy"]
        for x, y in coordinates:
            name = f"{x:05d}x_{y:05d}y"
            lines.append(f"slide,slide.{name},slide/{name}.png,None,{x},{y},0.8125")
            self.directory.joinpath(f"{name}.png").touch()
        path = self.directory / "dataset.csv"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        self.check(read_tiles(path), coordinates, None)
        self.check(read_tiles(self.directory), coordinates[np.lexsort(coordinates.T[::-1])], None)
        path.write_text("\n".join([*lines, lines[1].replace("slide", "other", 1)]), encoding="utf-8")
        with self.assertRaisesRegex(annulus.ArgumentError, "it has tiles of 2 slides; it must have those of one"):
            read_tiles(path)

    def test_plain(self):
        """Arrays of several dtypes, also in Fortran's order, and lines of numbers."""
        coordinates = tissue(SIZE)
        for dtype in ("uint16", "int32", "float32", ">i8"):
            np.save(self.directory / "tiles.npy", np.asfortranarray(coordinates.astype(dtype)))
            self.check(read_tiles(self.directory / "tiles.npy"), coordinates, None)
        rows = [f"{x}, {y}" for x, y in coordinates[:3]]
        for text in ("\n".join(rows), "x, y\r\n" + "\r\n".join(rows) + "\r\n", "\ufeffx,y\n\n" + "\n".join(rows)):
            (self.directory / "tiles.csv").write_bytes(text.encode("utf-8"))
            self.check(read_tiles(self.directory / "tiles.csv"), coordinates[:3], None)

    def write(self, name, contents):
        path = self.directory / name
        path.write_text(contents, encoding="utf-8")
        return path

    def test_refusals(self):
        np.savez(self.directory / "a.npz", features=np.zeros(3))
        np.savez(self.directory / "b.npz", x=np.zeros(3), y=np.zeros(4))
        np.save(self.directory / "c.npy", np.zeros((4, 6), int))
        np.save(self.directory / "d.npy", np.zeros(4, [("x", int), ("z", int)]))
        empty = self.directory / "empty"
        empty.mkdir()
        for words, path in (
            ("tiles.txt': the name must end in .h5, .hdf5, .npz, .npy, .csv, or be a directory", "tiles.txt"),
            ("a.npz': it has 'features'; it must have 'x' and 'y'", "a.npz"),
            (r"b.npz': x has shape \[3\] and y \[4\]", "b.npz"),
            (r"c.npy': coordinates have shape \[4, 6\]", "c.npy"),
            ("d.npy': its fields are 'x', 'z'; they must include 'x' and 'y'", "d.npy"),
            ("empty': it has no picture", empty),
            ("its first line is 'a,b,c'; it must be tile_x and tile_y", self.write("a.csv", "a,b,c\n1,2,3\n")),
            ("row 3 is '5,'; it must have a number for x and for y", self.write("b.csv", "x,y\n1,2\n5,\n")),
            ("row 1 is 'left,top'", self.write("c.csv", "left,top\n1,2\n")),
            ("its first line is ''", self.write("d.csv", "")),
            ("coordinates are empty", self.write("e.csv", "x,y\n")),
            ("e.npy': it cannot be read: ", self.write("e.npy", "")),
            ("f.npy': it cannot be read: ", self.write("f.npy", "x,y\n")),
            ("c.npz': it cannot be read: ", self.write("c.npz", "x,y\n")),
        ):
            with self.subTest(words), self.assertRaisesRegex(annulus.ArgumentError, words):
                read_tiles(self.directory / path)
        np.save(self.directory / "tiles.npy", np.zeros((4, 2)))
        with self.assertRaisesRegex(annulus.ArgumentError, r"embeddings have shape \[3, 8\]; they must be \[4, E\]"):
            read_tiles(self.directory / "tiles.npy", embeddings=np.zeros((3, 8)))
        with self.assertRaises(FileNotFoundError):
            read_tiles(self.directory / "none.npy")
        with mock.patch.dict(sys.modules, {"h5py": None}):
            with self.assertRaisesRegex(ImportError, r"reading .h5 files needs h5py \(pip install h5py\)"):
                read_tiles(self.directory / "slide.h5")

    @needs("h5py")
    def test_other_hdf5_files(self):
        with self.assertRaisesRegex(annulus.ArgumentError, "b.h5': it cannot be read: "):
            read_tiles(self.write("b.h5", "x,y\n"))
        with h5py.File(self.directory / "a.h5", "w") as held:
            held["feats"] = np.zeros((3, 4))
        with self.assertRaisesRegex(annulus.ArgumentError, r"a.h5': it has 'feats'; it must have 'coords'"):
            read_tiles(self.directory / "a.h5")


@needs("h5py", "matplotlib", "scipy", "torch")
class PageTest(unittest.TestCase):
    """doc/slides.md."""

    @unittest.skipIf(sys.version_info < (3, 11), "needs contextlib.chdir")
    def test_blocks_with_maps(self):
        """They run one after the other, in a directory with the files that they name, and draw each picture."""
        page = SOURCE.joinpath("doc/slides.md").read_text(encoding="utf-8")
        blocks = [
            block for block in re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S) if "annulus.slides" in block
        ]
        self.assertEqual(len(blocks), 3)
        self.assertLessEqual(len(blocks[0].replace("\n\n", "\n").splitlines()), 6)
        tiles = small_slide()
        q, k = np.random.default_rng(1).standard_normal((2, len(tiles) + 1, 16, 48)).astype(np.float32)
        names = {"slide_encoder": SlideEncoder(), "coordinates": tiles.coordinates, "q": q, "k": k}
        with tempfile.TemporaryDirectory() as directory, contextlib.chdir(directory):
            with h5py.File("slide.h5", "w") as held:
                held["coords"], held["features"] = tiles.coordinates.astype(np.int64), tiles.embeddings
                held["coords"].attrs.update(patch_size=SIZE, patch_level=0)
            matplotlib.image.imsave("thumbnail.png", np.full((400, 300, 3), 200, np.uint8))
            for block in blocks:
                drawn = re.findall(r'save\("(.*?)"', block)
                self.assertTrue(drawn)
                exec(block, names)
                for name in drawn:
                    os.remove(name)  # it is there
            self.assertEqual(names["slide_encoder"].tile_size, SIZE)
            np.testing.assert_array_equal(names["tiles"].coordinates, tiles.coordinates)


if __name__ == "__main__":
    tap.main()
