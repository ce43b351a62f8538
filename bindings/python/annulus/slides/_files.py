# SPDX-License-Identifier: Apache-2.0
"""Reads the files that tilers of slides write."""

from __future__ import annotations

import csv
import json
import os
import pathlib
import re
import zipfile
from typing import Any, Dict, Tuple, Union

import numpy as np

from .._errors import ArgumentError
from ._tiles import Tiles, optional_module

_PIXELS, _MICROMETRES = "pixels", "µm"
# The names that CLAM and TRIDENT, and STAMP, give embeddings in HDF5 files.
_EMBEDDINGS = ("features", "feats")
# The names of columns for x and y: Prov-GigaPath's tiler, others.
_COLUMNS = (("tile_x", "tile_y"), ("x", "y"))
# The name that Prov-GigaPath's tiler gives the picture of a tile.
_PICTURE = re.compile(r"(\d+)x_(\d+)y\.(?:png|jpe?g)")


def read_tiles(path: Union[str, os.PathLike[str]], embeddings: Any = None) -> Tiles:
    """Reads the tiles of one slide from a file of a tiler.

        tiles = read_tiles("slide.h5")
        tiles = read_tiles("slide.coordinates.npz", embeddings=torch.load("slide.pt"))

    path:
        .h5, .hdf5 of CLAM, TRIDENT or STAMP, with embeddings if the file has them;
        .npz of slide2vec, with the .meta.json beside it, or its older .npy with the fields x, y and tile_size_lv0;
        .csv with columns tile_x and tile_y, such as the dataset.csv of Prov-GigaPath's tiler, or x and y, or with two
        numbers a line;
        .npy [tiles, 2] of numbers of any dtype;
        a directory of pictures that Prov-GigaPath's tiler named, such as 00256x_01024y.png, in the order of the names.
    embeddings: [tiles, E], if they are in another file; in the order of the tiles.

    The unit is µm for STAMP, else pixels of the slide. The tile size is the file's, in that unit. If the file has none,
    it is the median distance between a tile and its nearest neighbour.
    """
    file = pathlib.Path(path)
    try:
        coordinates, options = _read(file)
        if embeddings is not None:
            options["embeddings"] = embeddings
        return Tiles(coordinates, **options)
    except ArgumentError as error:
        raise ArgumentError(f"path '{file}': {error}") from None
    except (FileNotFoundError, PermissionError):
        raise
    except (EOFError, OSError, ValueError, zipfile.BadZipFile) as error:
        raise ArgumentError(f"path '{file}': it cannot be read: {error}") from error


def _read(file: pathlib.Path) -> Tuple[Any, Dict[str, Any]]:
    """Returns the coordinates, and the other arguments of Tiles."""
    if file.is_dir():
        return _read_directory(file)
    readers = {".h5": _read_hdf5, ".hdf5": _read_hdf5, ".npz": _read_npz, ".npy": _read_npy, ".csv": _read_csv}
    if file.suffix not in readers:
        raise ArgumentError(f"the name must end in {', '.join(readers)}, or be a directory of pictures")
    return readers[file.suffix](file)


# --- HDF5: CLAM, TRIDENT, STAMP


def _number_of(attributes: Any, name: str) -> float | None:
    """Returns an attribute, or the first number of one that has several. TRIDENT writes None as a word."""
    try:
        return float(np.ravel(attributes[name])[0])
    except (KeyError, IndexError, ValueError):
        return None


def _read_hdf5(file: pathlib.Path) -> Tuple[Any, Dict[str, Any]]:
    with optional_module("h5py", "reading .h5 files").File(file, "r") as held:
        if "coords" not in held:
            raise ArgumentError(f"it has {', '.join(map(repr, held)) or 'nothing'}; it must have 'coords', [tiles, 2]")
        coordinates = held["coords"][()]
        embeddings = next((held[name][()] for name in _EMBEDDINGS if name in held), None)
        options: Dict[str, Any] = {"embeddings": embeddings, "unit": _PIXELS}
        if _is_in_micrometres(held.attrs):
            options["unit"] = _MICROMETRES
        options["tile_size"] = _size_in_hdf5(held["coords"].attrs, held.attrs)
        return coordinates, options


def _is_in_micrometres(attributes: Any) -> bool:
    """Returns whether STAMP wrote micrometres. Its oldest files have pixels of 256/224 µm, without attributes."""
    unit = attributes.get("unit", "")
    unit = unit.decode() if isinstance(unit, bytes) else unit
    return "tile_size_um" in attributes or unit in ("um", "µm", "μm")


def _size_in_hdf5(of_coordinates: Any, of_file: Any) -> float | None:
    """Returns the tile size in the unit of the coordinates, or None if the attributes do not tell it."""
    for attributes, name in ((of_coordinates, "patch_size_level0"), (of_file, "tile_size_um"), (of_file, "tile_size")):
        size = _number_of(attributes, name)
        if size is not None:
            return size
    # CLAM: pixels of a level, and the level's factor, which CLAM rounds down before it steps.
    size, level = _number_of(of_coordinates, "patch_size"), _number_of(of_coordinates, "patch_level")
    factor = 1.0 if level == 0 else _number_of(of_coordinates, "downsample")
    if size is None or level is None or factor is None:
        return None
    return size * int(factor) * (_number_of(of_coordinates, "custom_downsample") or 1)


# --- NumPy: slide2vec, and plain arrays


def _read_npz(file: pathlib.Path) -> Tuple[Any, Dict[str, Any]]:
    with np.load(file) as held:
        if "x" not in held or "y" not in held:
            raise ArgumentError(
                f"it has {', '.join(map(repr, held)) or 'nothing'}; it must have 'x' and 'y', [tiles] each"
            )
        coordinates = _columns(held["x"], held["y"])
    meta = file.with_name(file.name[: -len(".npz")] + ".meta.json")
    if not meta.exists():
        return coordinates, {}
    tiling = json.loads(meta.read_text(encoding="utf-8")).get("tiling", {})
    return coordinates, {"tile_size": _number_of(tiling, "tile_size_lv0")}


def _read_npy(file: pathlib.Path) -> Tuple[Any, Dict[str, Any]]:
    held = np.load(file)
    names = held.dtype.names
    if names is None:
        return held, {}
    if "x" not in names or "y" not in names:
        raise ArgumentError(f"its fields are {', '.join(map(repr, names))}; they must include 'x' and 'y'")
    has_size = "tile_size_lv0" in names and len(held)
    return _columns(held["x"], held["y"]), {"tile_size": float(held["tile_size_lv0"][0])} if has_size else {}


def _columns(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    if x.shape != y.shape or x.ndim != 1:
        raise ArgumentError(f"x has shape {list(x.shape)} and y {list(y.shape)}; they must be [tiles] both")
    return np.stack([x, y], axis=1)


# --- Text and names: Prov-GigaPath's tiler


def _read_csv(file: pathlib.Path) -> Tuple[Any, Dict[str, Any]]:
    with file.open(newline="", encoding="utf-8-sig") as lines:
        rows = [row for row in csv.reader(lines) if row]
    heading = [word.strip() for word in rows[0]] if rows else []
    places = next(((heading.index(x), heading.index(y)) for x, y in _COLUMNS if x in heading and y in heading), None)
    if places is None and len(heading) != 2:
        raise ArgumentError(
            f"its first line is {','.join(heading)!r}; it must be tile_x and tile_y among other columns, or x and y, or two "
            "numbers"
        )
    if places is not None and "slide_id" in heading:
        column = heading.index("slide_id")
        slides = {row[column] for row in rows[1:] if len(row) > column}
        if len(slides) > 1:
            raise ArgumentError(f"it has tiles of {len(slides)} slides; it must have those of one")
    x, y = places or (0, 1)
    first = 0 if places is None else 1
    coordinates = np.empty((len(rows) - first, 2))
    for i, row in enumerate(rows[first:]):
        try:
            coordinates[i] = float(row[x]), float(row[y])
        except (IndexError, ValueError):
            raise ArgumentError(
                f"row {i + first + 1} is {','.join(row)!r}; it must have a number for x and for y"
            ) from None
    return coordinates, {}


def _read_directory(directory: pathlib.Path) -> Tuple[Any, Dict[str, Any]]:
    found = [_PICTURE.fullmatch(name) for name in sorted(os.listdir(directory))]
    coordinates = [(float(match[1]), float(match[2])) for match in found if match]
    if not coordinates:
        raise ArgumentError("it has no picture with a name such as 00256x_01024y.png")
    return coordinates, {}
