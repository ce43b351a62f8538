# SPDX-License-Identifier: Apache-2.0
"""The tiles of a slide: where they lie, how large they are, and their embeddings."""

from __future__ import annotations

import functools
import importlib
from typing import Any

import numpy as np

from .._arguments import number
from .._errors import ArgumentError


class Tiles:
    """The tiles of a slide.

        tiles = Tiles(coordinates, embeddings, tile_size=256)

    coordinates: [tiles, 2], x and y of each tile's upper left corner; numbers of any dtype.
    embeddings: [tiles, E], an array or a tensor; None: a map from q and k needs none.
    tile_size: the side of a tile, in the unit of the coordinates; None: the median distance between a tile and its
        nearest neighbour. If tiles overlap or have gaps between them, give it.
    unit: the unit of the coordinates, such as "pixels" or "µm", for the axes of pictures.

    The attribute coordinates is float64. The attribute tile_size is a float; without an argument it is found when it is
    first read.
    """

    def __init__(
        self, coordinates: Any, embeddings: Any = None, *, tile_size: float | None = None, unit: str = "pixels"
    ) -> None:
        self.coordinates = _coordinates(coordinates)
        self.embeddings = None if embeddings is None else _embeddings(embeddings, len(self.coordinates))
        self.unit = unit
        if tile_size is not None:
            self.tile_size = _size(number("tile_size", tile_size))

    @functools.cached_property
    def tile_size(self) -> float:
        """The side of a tile, in the unit of the coordinates."""
        if self.spacing is None:
            raise ArgumentError("tile_size is None and all tiles lie in one place; give the tile_size")
        return self.spacing

    @functools.cached_property
    def spacing(self) -> float | None:
        """The median distance between a tile and the nearest tile in another place; None if there is one place."""
        places = np.unique(self.coordinates, axis=0)
        if len(places) < 2:
            return None
        spatial = optional_module("scipy.spatial", "finding the distance between tiles")
        distances, _ = spatial.cKDTree(places).query(places, k=2)
        return float(np.median(distances[:, 1]))

    def __len__(self) -> int:
        """The number of tiles."""
        return len(self.coordinates)

    def __repr__(self) -> str:
        return f"<Tiles: {len(self)}, {self.unit}, {'no' if self.embeddings is None else 'with'} embeddings>"


def optional_module(name: str, what: str) -> Any:
    """Imports a package that only annulus.slides needs. what: what needs it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise ImportError(f"{what} needs {package} (pip install {package}): {error}") from error


def _coordinates(values: Any) -> np.ndarray:
    values = values.detach().cpu() if hasattr(values, "detach") else values
    try:
        coordinates = np.array(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise ArgumentError("coordinates are no numbers; they must be [tiles, 2], x and y of each tile") from None
    if coordinates.ndim != 2 or coordinates.shape[1] != 2:
        raise ArgumentError(
            f"coordinates have shape {list(coordinates.shape)}; they must be [tiles, 2], x and y of each"
        )
    if not len(coordinates):
        raise ArgumentError("coordinates are empty; there must be at least one tile")
    wrong = np.flatnonzero(~np.isfinite(coordinates).all(axis=1))
    if len(wrong):
        raise ArgumentError(f"coordinates[{wrong[0]}] is {coordinates[wrong[0]].tolist()}; they must be finite")
    return coordinates


def _embeddings(rows: Any, count: int) -> Any:
    if not hasattr(rows, "shape"):
        rows = np.asarray(rows)
    if len(rows.shape) == 3 and rows.shape[0] == 1:
        rows = rows[0]
    if len(rows.shape) != 2 or rows.shape[0] != count:
        raise ArgumentError(f"embeddings have shape {list(rows.shape)}; they must be [{count}, E], a row for each tile")
    return rows


def _size(size: float) -> float:
    if not 0 < size < float("inf"):
        raise ArgumentError(f"tile_size is {size}; it must be finite and above 0")
    return size
