# SPDX-License-Identifier: Apache-2.0
"""The encoder in a model: the module around all attention, whose rows are packed, or shared out over ranks."""

from __future__ import annotations

from typing import Any, Callable, List, Tuple

from torch import Tensor, nn

from .._errors import UnsupportedError
from ._longnet import LongNetAttention
from ._published import looks_published


def find_encoder(model: nn.Module) -> Tuple[nn.Module, List[LongNetAttention]]:
    """Returns the smallest module with all LongNetAttention modules of a model, and these modules.

    It is no list of layers, but the module that has the list. Refuses models without such modules, and encoders with
    attention of another kind, which would mix the rows of all slides or ranks.
    """
    attention = {name: module for name, module in model.named_modules() if isinstance(module, LongNetAttention)}
    if not attention:
        raise UnsupportedError(
            f"the {type(model).__name__} has no LongNetAttention; call replace_longnet_attention() first"
        )
    path: List[str] = []
    for parts in zip(*(name.split(".")[:-1] for name in attention)):
        if len(set(parts)) > 1:
            break
        path.append(parts[0])
    modules = [model]  # from the model to the module with all attention
    for part in path:
        modules.append(modules[-1]._modules[part])
    while len(modules) > 1 and any(isinstance(module, nn.ModuleList) for module in modules[-2:]):
        modules.pop()
    encoder = modules[-1]
    for name, module in encoder.named_modules():
        if isinstance(module, nn.MultiheadAttention) or (
            looks_published(module) and not isinstance(module, LongNetAttention)
        ):
            raise UnsupportedError(
                f"{name} of the {type(encoder).__name__} is a {type(module).__name__}, which mixes all rows; it must be "
                "a LongNetAttention"
            )
        if getattr(module, "embed_positions", None) is not None or getattr(module, "relative_position", None) is not None:
            raise UnsupportedError(
                f"{name or 'the encoder'}, a {type(module).__name__}, has embed_positions or relative_position; only "
                "positions that are added to its input are supported"
            )
    return encoder, list(attention.values())


def rows_of_input(arguments: Tuple[Any, ...], named: Any, encoder: nn.Module) -> Tensor:
    """Returns the first tensor [B, N, E] among the arguments of an encoder."""
    for value in (*arguments, *named.values()):
        if isinstance(value, Tensor) and value.dim() == 3 and value.is_floating_point():
            return value
    raise UnsupportedError(f"the {type(encoder).__name__} gets no tensor [B, N, E]; its rows are not known")


def map_rows(values: Any, shape: Tuple[int, int], change: Callable[[Tensor], Tensor]) -> Any:
    """Returns `values` with change(tensor) for each tensor [*shape, ...], also in tuples, lists and dicts.

    A tensor that is there several times is changed once.
    """
    done: dict = {}

    def mapped(value: Any) -> Any:
        if isinstance(value, Tensor):
            if tuple(value.shape[:2]) != shape:
                return value
            if id(value) not in done:
                done[id(value)] = change(value)
            return done[id(value)]
        if isinstance(value, dict):
            return type(value)((name, mapped(item)) for name, item in value.items())
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*map(mapped, value))
        return type(value)(map(mapped, value)) if type(value) in (list, tuple) else value

    return mapped(values)
