# SPDX-License-Identifier: Apache-2.0
"""The picture of a map: tiles at their places, with a bar of colours and axes in the unit of the slide."""

from __future__ import annotations

import math
import os
from typing import Any, NamedTuple, Tuple, Union

import numpy as np

from .._arguments import number
from .._errors import ArgumentError
from ._tiles import Tiles, optional_module

# Cells of the raster: how many the side of a tile has, and the side of the whole picture at most. With two or more, a
# tile covers at least one cell wholly, wherever it lies.
_FEWEST_CELLS_OF_TILE, _MOST_CELLS_OF_TILE = 2, 8
_MOST_CELLS = 4096
# A smaller share of the distance between neighbours is no tile size: the picture would be nearly empty.
_SMALLEST_SHARE = 0.1
# Dots that the longer axis of a picture has at least.
_FEWEST_DOTS = 1000
# The colours reach from one of these quantiles of the values to the other.
_QUANTILES = (0.01, 0.99)
# Inches: the longer axis, the shorter one at least, the colour bar, and margins for letters.
_LONG, _SHORT, _BAR, _GAP = 7.0, 1.5, 0.2, 0.2
_LEFT, _RIGHT, _TOP, _BOTTOM = 1.0, 0.9, 0.5, 0.6
# How opaque tiles are over a thumbnail.
_ALPHA = 0.6


class Area(NamedTuple):
    """A rectangle of the slide, in its unit."""

    left: float
    top: float
    right: float
    bottom: float

    @property
    def longer_side(self) -> float:
        return max(self.right - self.left, self.bottom - self.top)


def area_of(tiles: Tiles) -> Area:
    """Returns the smallest rectangle with all tiles."""
    low, high = tiles.coordinates.min(axis=0), tiles.coordinates.max(axis=0) + tiles.tile_size
    return Area(float(low[0]), float(low[1]), float(high[0]), float(high[1]))


def cells_of_tile(area: Area, size: float, spacing: float | None) -> int:
    """Returns how many cells of a raster over `area` the side of a tile gets. Refuses sizes that are too small."""
    if spacing is not None and size < _SMALLEST_SHARE * spacing:
        raise ArgumentError(
            f"tile_size is {size:g} and neighbouring tiles are {spacing:g} apart; it must be at least a tenth of that"
        )
    cells = int(_MOST_CELLS / (area.longer_side / size))
    if cells < _FEWEST_CELLS_OF_TILE:
        needed = math.ceil(area.longer_side / size * _FEWEST_CELLS_OF_TILE)
        raise ArgumentError(
            f"tile_size is {size:g} and the picture {area.longer_side:g} long: to show each tile it would have to be "
            f"{needed} dots long, and it may have {_MOST_CELLS}; check tile_size, or draw a part of the tiles"
        )
    return min(cells, _MOST_CELLS_OF_TILE)


def raster(tiles: Tiles, values: np.ndarray, cells: int) -> Tuple[np.ndarray, Area]:
    """Draws a value for each tile on a grid with `cells` cells on the side of a tile.

    Returns float64 [rows, columns] and the area of the grid. A cell is the mean of the tiles that cover it, weighted by
    how much of it they cover. It is NaN if tiles cover less than half of it. Tiles whose value is no finite number are
    not drawn.
    """
    area = area_of(tiles)
    cell = tiles.tile_size / cells
    # A corner may be off by rounding; without it a grid would get one more column, hardly covered.
    columns, rows = (max(1, math.ceil(side / cell - 1e-6)) for side in (area.right - area.left, area.bottom - area.top))
    is_drawn = np.isfinite(values)
    starts = (tiles.coordinates[is_drawn] - (area.left, area.top)) / cell
    firsts = np.floor(starts + 1e-6).astype(np.int64)
    steps = np.arange(cells + 1)
    places = firsts[:, None, :] + steps[:, None]  # [tiles, cells + 1, 2]
    shares = np.minimum(places + 1, starts[:, None] + cells) - np.maximum(places, starts[:, None])
    shares = np.clip(shares, 0, 1)
    x, y = np.minimum(places[..., 0], columns - 1), np.minimum(places[..., 1], rows - 1)
    flat = (y[:, :, None] * columns + x[:, None, :]).ravel()
    weights = shares[:, :, None, 1] * shares[:, None, :, 0]
    total = np.bincount(flat, weights.ravel(), rows * columns)
    weighted = np.bincount(flat, (weights * values[is_drawn, None, None]).ravel(), rows * columns)
    drawn = np.full(rows * columns, np.nan)
    np.divide(weighted, total, out=drawn, where=total >= 0.5)
    extent = Area(area.left, area.top, area.left + columns * cell, area.top + rows * cell)
    return drawn.reshape(rows, columns), extent


def limits_of(values: np.ndarray, range: Any) -> Tuple[float, float]:
    """Returns the numbers of the first and the last colour: as given, or quantiles of the finite values."""
    if range is not None:
        try:
            low, high = (number("range", end) for end in range)
        except (TypeError, ValueError):
            raise ArgumentError(f"range is {range!r}; it must be two numbers, (lowest, highest), or None") from None
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise ArgumentError(f"range is {range!r}; it must be two finite numbers, the lower one first")
        return low, high
    finite = values[np.isfinite(values)]
    if not len(finite):
        raise ArgumentError("no tile has a finite value; there is nothing to draw")
    low, high = map(float, np.quantile(finite, _QUANTILES))
    if high > low:
        return low, high
    width = abs(low) / 100 or 1.0
    return low - width, low + width


def _thumbnail(thumbnail: Any, scale: Any) -> Tuple[np.ndarray, Area] | None:
    if thumbnail is None:
        if scale is not None:
            raise ArgumentError(f"thumbnail_scale is {scale!r} and thumbnail is None; it is for a thumbnail")
        return None
    if scale is None:
        raise ArgumentError(
            "thumbnail_scale is None; it must be how many of the slide's units a thumbnail's pixel is wide"
        )
    scale = number("thumbnail_scale", scale)
    if not 0 < scale < math.inf:
        raise ArgumentError(f"thumbnail_scale is {scale}; it must be finite and above 0")
    if isinstance(thumbnail, (str, os.PathLike)):
        thumbnail = optional_module("matplotlib.image", "reading a thumbnail").imread(thumbnail)
    pixels = np.asarray(thumbnail)
    if not (pixels.ndim == 2 or pixels.ndim == 3 and pixels.shape[2] in (3, 4)) or not pixels.size:
        raise ArgumentError(
            f"thumbnail has shape {list(pixels.shape)}; it must be [height, width], or with 3 or 4 colours"
        )
    return pixels, Area(0, 0, pixels.shape[1] * scale, pixels.shape[0] * scale)


def _sheet(area: Area, size: float, cells: int) -> Tuple[Any, Any, Any]:
    """Returns a new figure, its axes in true aspect, and the axes of the colour bar."""
    # Each cell of the raster gets a whole number of dots, so that tiles of one size are drawn in one size.
    longest = area.longer_side / size * cells
    dpi = longest * max(1, math.ceil(_FEWEST_DOTS / longest)) / _LONG
    inch = area.longer_side / _LONG
    width, height = (area.right - area.left) / inch, (area.bottom - area.top) / inch
    room, bar = max(width, _SHORT), max(height, _SHORT)
    whole_width, whole_height = _LEFT + room + _GAP + _BAR + _RIGHT, _TOP + bar + _BOTTOM
    figures = optional_module("matplotlib.figure", "a picture")
    figure = figures.Figure(figsize=(whole_width, whole_height), dpi=dpi)

    def place(left: float, bottom: float, width: float, height: float) -> Any:
        """Adds axes; all in inches. The corner lies on a whole dot."""
        left, bottom = round(left * dpi) / dpi, round(bottom * dpi) / dpi
        whole = (left / whole_width, bottom / whole_height, width / whole_width, height / whole_height)
        return figure.add_axes(whole)

    axes = place(_LEFT + (room - width) / 2, _BOTTOM + (bar - height) / 2, width, height)
    for axis, length in ((axes.xaxis, width), (axes.yaxis, height)):
        axis.get_major_locator().set_params(nbins=max(1, round(length / 1.2)))
    axes.ticklabel_format(style="plain", useOffset=False)
    return figure, axes, place(_LEFT + room + _GAP, _BOTTOM, _BAR, bar)


def draw(
    tiles: Tiles,
    values: np.ndarray,
    *,
    title: str,
    label: str,
    center: float | None,
    range: Union[Tuple[float, float], None],
    thumbnail: Any,
    thumbnail_scale: float | None,
) -> Any:
    """Returns a figure of a value for each tile. center: the value of the neutral colour; None: there is none."""
    low, high = limits_of(values, range)
    image = _thumbnail(thumbnail, thumbnail_scale)
    size = tiles.tile_size
    left, top, right, bottom = area_of(tiles)
    area = Area(left - size, top - size, right + size, bottom + size)  # so that the frame covers no tile
    if image is not None:
        over = image[1]
        area = Area(min(area.left, 0.0), min(area.top, 0.0), max(area.right, over.right), max(area.bottom, over.bottom))
    cells = cells_of_tile(area, size, tiles.spacing)
    figure, axes, beside = _sheet(area, size, cells)

    def show(pixels: np.ndarray, place: Area, **options: Any) -> Any:
        extent = (place.left, place.right, place.bottom, place.top)
        return axes.imshow(pixels, extent=extent, aspect="auto", **options)

    if image is not None:
        show(*image, cmap="gray")
    drawn, place = raster(tiles, values, cells)
    half = 0.0 if center is None else max(high - center, center - low)
    shown = show(
        np.clip(drawn, low, high),
        place,
        cmap="viridis" if center is None else "coolwarm",
        vmin=low if center is None else center - half,
        vmax=high if center is None else center + half,
        interpolation="nearest",
        alpha=1.0 if image is None else _ALPHA,
    )
    axes.set_xlim(area.left, area.right)
    axes.set_ylim(area.bottom, area.top)
    axes.set_xlabel(f"x, {tiles.unit}")
    axes.set_ylabel(f"y, {tiles.unit}")
    axes.set_title(title, fontsize="medium")
    figure.colorbar(shown, cax=beside, label=label)
    beside.set_ylim(low, high)
    return figure
