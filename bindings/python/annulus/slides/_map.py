# SPDX-License-Identifier: Apache-2.0
"""Maps of slides: masses of tiles, from a model or from queries and keys."""

from __future__ import annotations

import contextlib
import os
import pathlib
import warnings
from typing import Any, Dict, Iterable, Iterator, List, Literal, Tuple, Union

import numpy as np

from .. import _arrays
from .._arguments import integer, pick
from .._attention import attention_mass
from .._cache import cached_config
from .._config import BranchLike, Config
from .._errors import ArgumentError, UnsupportedError
from . import _picture
from ._tiles import Tiles

Of = Literal["all", "class token"]
Quantity = Literal["ratio", "mass"]
Heads = Union[Literal["mean"], int]

_OF = {"all": "all positions attend", "class token": "the class token attends"}
_QUANTITIES = {"ratio": "ratio: mass / expected", "mass": "attention mass"}


class SlideMap:
    """How much each tile of a slide is attended to.

        SlideMap(tiles, mass, expected).save("map.png")

    tiles: the Tiles. mass: [H, tiles], or [tiles] for one head or the mean over heads. expected: the mass that the
        pattern alone explains, which it would be if all scores were equal; as mass, or None if it is not known. of:
        whose probabilities the mass adds up, "all" positions or the "class token".

    The attributes have the names of the arguments; mass and expected are arrays [H, tiles] in the host's memory.
    """

    def __init__(self, tiles: Tiles, mass: Any, expected: Any = None, *, of: Of = "all") -> None:
        self.tiles = tiles
        self.mass = _by_head("mass", mass, len(tiles))
        self.expected = None if expected is None else _by_head("expected", expected, len(tiles))
        if self.expected is not None and self.expected.shape != self.mass.shape:
            raise ArgumentError(
                f"expected has shape {list(self.expected.shape)}; it must be mass's, {list(self.mass.shape)}"
            )
        pick("of", of, _OF)
        self.of: Of = of

    def values(self, quantity: Quantity = "ratio", heads: Heads = "mean") -> np.ndarray:
        """Returns a number for each tile, float64 [tiles].

        quantity: "mass", or "ratio", the mass divided by the expected mass. A ratio of 2 means twice the attention that
            the tile's place explains. A tile that the pattern does not reach has no ratio: NaN.
        heads: "mean", the mean over the heads (the ratio is that of the means), or the number of a head.
        """
        pick("quantity", quantity, _QUANTITIES)
        mass = self._of_heads(self.mass, heads)
        if quantity == "mass":
            return mass
        if self.expected is None:
            raise ArgumentError("quantity is 'ratio' and the map has no expected masses; it must be 'mass'")
        expected = self._of_heads(self.expected, heads)
        ratio = np.full(len(mass), np.nan)
        np.divide(mass, expected, out=ratio, where=expected > 0)
        return ratio

    def _of_heads(self, masses: np.ndarray, heads: Heads) -> np.ndarray:
        if isinstance(heads, str) and heads == "mean":
            return masses.mean(axis=0, dtype=np.float64)
        count = len(masses)
        if isinstance(heads, str) or not -count <= integer("heads", heads) < count:
            raise ArgumentError(f"heads is {heads!r}; it must be 'mean' or the number of a head, below {count}")
        return masses[heads].astype(np.float64)

    def figure(
        self,
        quantity: Quantity | None = None,
        heads: Heads = "mean",
        *,
        range: Tuple[float, float] | None = None,
        thumbnail: Any = None,
        thumbnail_scale: float | None = None,
    ) -> Any:
        """Draws the tiles at their places, with matplotlib. Returns a matplotlib.figure.Figure.

        quantity, heads: as values() takes them. None: "ratio" if the expected masses are known, else "mass".
        range: the numbers of the first and the last colour; None: the quantiles 0.01 and 0.99 of what is drawn. Colours
            of ratios are neutral at 1, and go equally far to both sides.
        thumbnail: a picture of the whole slide, an array [height, width, 3] or the path of a file, to draw the tiles
            over. thumbnail_scale: how many of the unit of the coordinates a pixel of it is wide.

        Overlapping tiles are drawn as their mean. Each tile gets at least two dots on a side: the figure has up to 4096
        dots for that, and refuses smaller tiles.
        """
        if quantity is None:
            quantity = "mass" if self.expected is None else "ratio"
        values = self.values(quantity, heads)
        return _picture.draw(
            self.tiles,
            values,
            title=self._title(int(np.isfinite(values).sum()), heads),
            label=_QUANTITIES[quantity],
            center=1.0 if quantity == "ratio" else None,
            range=range,
            thumbnail=thumbnail,
            thumbnail_scale=thumbnail_scale,
        )

    def _title(self, reached: int, heads: Heads) -> str:
        head_count, tile_count = self.mass.shape
        words = f"What {_OF[self.of]} to: "
        words += (
            f"{tile_count:,} tiles" if reached == tile_count else f"{reached:,} of {tile_count:,} tiles are reached"
        )
        if head_count > 1:
            words += f", mean of {head_count} heads" if heads == "mean" else f", head {heads}"
        return words

    def save(self, path: Union[str, os.PathLike[str]], *arguments: Any, **options: Any) -> None:
        """Writes a picture (.png, .svg, .pdf, as matplotlib can), or all arrays (.npz, which read_map() reads).

        arguments, options: as figure() takes them; for a picture.
        """
        if pathlib.Path(path).suffix != ".npz":
            self.figure(*arguments, **options).savefig(path)
            return
        if arguments or options:
            raise ArgumentError(f"path is '{path}', for the arrays; options are for a picture")
        arrays: Dict[str, Any] = {"mass": self.mass, "of": self.of}
        if self.expected is not None:
            arrays["expected"] = self.expected
        for name in ("coordinates", "tile_size", "unit"):
            arrays[name] = getattr(self.tiles, name)
        np.savez_compressed(path, **arrays)

    def __repr__(self) -> str:
        return f"<SlideMap: {self.mass.shape[1]} tiles, {len(self.mass)} heads, of {self.of!r}>"


def read_map(path: Union[str, os.PathLike[str]], tiles: Tiles | None = None) -> SlideMap:
    """Reads a map from a file.

    path: the .npz of SlideMap.save(); or masses in a .npy, as `annulus map --out` writes them: [H, N] or [N], where a
        class token may come before the tiles.
    tiles: the tiles of a .npy; a .npz has its own.
    """
    if pathlib.Path(path).suffix != ".npz":
        if tiles is None:
            raise ArgumentError(f"path is '{path}' and tiles is None; masses alone do not say where the tiles lie")
        masses = np.load(path)
        return SlideMap(tiles, masses[..., _first_tile("path", masses.shape[-1] if masses.ndim else 0, tiles) :])
    with np.load(path) as held:
        missing = [name for name in ("mass", "of", "coordinates", "unit", "tile_size") if name not in held]
        if missing:
            raise ArgumentError(f"path '{path}' has no {', '.join(missing)}; it must be a file of SlideMap.save()")
        if tiles is None:
            tiles = Tiles(held["coordinates"], tile_size=float(held["tile_size"]), unit=str(held["unit"]))
        expected = held["expected"] if "expected" in held else None
        of: Any = str(held["of"])
        return SlideMap(tiles, held["mass"], expected, of=of)


def attention_map(
    q: Any, k: Any, tiles: Tiles, branches: Union[Config, Iterable[BranchLike]], *, of: Of = "all"
) -> SlideMap:
    """Computes the map of queries and keys.

        attention_map(q, k, tiles, annulus.Config.gigapath()).save("map.png")

    q: [1, N, H, D] or [N, H, D], arrays or tensors as annulus.attention() takes them. k: the same with G heads. N is
        the number of tiles, or one more: then position 0 is a class token.
    branches: an annulus.Config, or a list of branches.
    of: whose probabilities are added up. "all": those of all positions. "class token": those of position 0; q may have
        its row alone.
    """
    pick("of", of, _OF)
    config = cached_config(branches, {})
    for name, rows in (("q", q), ("k", k)):
        shape = list(getattr(rows, "shape", ()))
        if len(shape) not in (3, 4) or len(shape) == 4 and shape[0] != 1:
            raise ArgumentError(f"{name} has shape {shape}; it must be [1, N, heads, D] or [N, heads, D], of one slide")
    if len(q.shape) != len(k.shape):
        raise ArgumentError(f"q has {len(q.shape)} axes and k has {len(k.shape)}; they must have equally many")
    first = _first_tile("k", k.shape[-3], tiles)
    start = None
    if of == "class token":
        if first != 1:
            raise ArgumentError(f"of is 'class token'; k has {len(tiles)} rows, and so no class token before the tiles")
        q, start = q[..., :1, :, :], 0
    # Zeros of the smallest head dimension: all scores are equal.
    library = _arrays.library_of(q)
    equal_q, equal_k = (library.zeros_like(rows[..., :8], dtype=library.float32) for rows in (q, k))
    mass = attention_mass(q, k, config, query_start=start, layout="bnhd")
    expected = attention_mass(equal_q, equal_k, config, query_start=start, layout="bnhd")
    return SlideMap(tiles, mass[..., first:], expected[..., first:], of=of)


def slide_map(model: Any, tiles: Tiles, *, layer: int = -1, of: Of = "all") -> SlideMap:
    """Computes the map of a slide encoder of LongNet's published code, such as Prov-GigaPath's.

        slide_map(slide_encoder, read_tiles("slide.h5")).save("map.png")

    model: a torch.nn.Module that is called as model(embeddings [1, tiles, E], coordinates [1, tiles, 2]), on the
        device and with the dtype of its parameters, in eval() mode and without gradients. Attention of the published
        code is replaced for the call, as replace_longnet_attention() does. Afterwards the model is as it was.
    tiles: with embeddings. The model gets their coordinates as they are.
    layer: the number of the attention module in the model's order; -1: the last one.
    of: whose probabilities are added up. "all": those of all positions, so that each tile has a ratio. "class token":
        those of position 0, which reaches all tiles of its first segment and fewer beyond.
    """
    import torch

    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model is a {type(model).__name__}; it must be a torch.nn.Module")
    pick("of", of, _OF)
    if tiles.embeddings is None:
        raise ArgumentError("tiles have no embeddings; the model needs them: Tiles(coordinates, embeddings)")
    parameter = next((one for one in model.parameters() if one.is_floating_point()), torch.empty(0))
    inputs = [
        torch.as_tensor(rows).to(parameter.device, dtype)[None]
        for rows, dtype in ((tiles.embeddings, parameter.dtype), (tiles.coordinates, torch.float32))
    ]
    with _in_eval_mode(model), _replaced(model) as attentions:
        count = len(attentions)
        if not -count <= integer("layer", layer) < count:
            raise ArgumentError(f"layer is {layer}; the model has {count} attention modules, from 0 to {count - 1}")
        attention = attentions[layer]
        q, k = _projected(attention, lambda: model(*inputs))
    if attention.process_group is not None:
        raise UnsupportedError("the model's sequences are shared by a process group; a map needs the whole sequence")
    length = k.shape[-3]
    beyond = attention.misplaced_beyond
    if attention.misplaced_rows and beyond is not None and length > beyond:
        raise UnsupportedError(
            f"misplaced_rows is 'as published' and there are {length} positions; beyond {beyond} the published code "
            "puts rows in wrong places, which a map cannot follow"
        )
    return attention_map(q, k, tiles, attention._configs[1 if attention.is_causal else 0], of=of)


# --- The model


@contextlib.contextmanager
def _in_eval_mode(model: Any) -> Iterator[None]:
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


@contextlib.contextmanager
def _replaced(model: Any) -> Iterator[List[Any]]:
    """Replaces the published attention modules of a model while it runs. Yields all LongNetAttention of the model."""
    from ..torch import LongNetAttention, replace_longnet_attention

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is found is said below
        done = replace_longnet_attention(model)
    try:
        if done.left:
            raise UnsupportedError("a map needs all attention of the model replaced:\n" + str(done))
        attentions = [module for module in model.modules() if isinstance(module, LongNetAttention)]
        if not attentions:
            raise ArgumentError(f"model, a {type(model).__name__}, has no attention module of LongNet's published code")
        yield attentions
    finally:
        done.undo()


def _projected(attention: Any, call: Any) -> Tuple[Any, Any]:
    """Returns the queries and keys of a module in one call of the model, [B, N, heads, D]."""
    import torch

    found: Dict[str, List[Any]] = {"q_proj": [], "k_proj": []}
    hooks = [
        getattr(attention, name).register_forward_hook(
            lambda _module, _inputs, rows, name=name: found[name].append(rows)
        )
        for name in found
    ]
    try:
        with torch.no_grad():
            call()
    finally:
        for hook in hooks:
            hook.remove()
    q, k = found["q_proj"], found["k_proj"]
    if len(q) != 1 or len(k) != 1:
        raise UnsupportedError(
            f"the model called the attention module {len(q)} times; it must be once. If torch.compile() was applied to "
            "the model, give the model before that"
        )
    return attention._heads(q[0], attention.num_heads), attention._heads(k[0], attention.kv_heads)


# --- Arrays


def _by_head(name: str, masses: Any, count: int) -> np.ndarray:
    masses = _on_host(masses)
    shape = masses.shape
    if masses.ndim == 3 and shape[0] == 1:
        masses = masses[0]
    masses = masses[None] if masses.ndim == 1 else masses
    if masses.ndim != 2 or masses.shape[1] != count or not len(masses):
        raise ArgumentError(f"{name} has shape {list(shape)}; it must be [H, {count}] or [{count}], one for each tile")
    return masses


def _on_host(array: Any) -> np.ndarray:
    """Returns an array of any library as NumPy's."""
    for copy in ("cpu", "get"):  # PyTorch's and CuPy's
        array = getattr(array, copy)() if hasattr(array, copy) else array
    return np.asarray(array)


def _first_tile(name: str, positions: int, tiles: Tiles) -> int:
    """Returns the position of the first tile: 0, or 1 behind a class token."""
    first = positions - len(tiles)
    if first not in (0, 1):
        raise ArgumentError(
            f"{name} has {positions} positions and there are {len(tiles)} tiles; there must be equally many, or one "
            "position more, a class token before the tiles"
        )
    return first
