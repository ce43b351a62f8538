# SPDX-License-Identifier: Apache-2.0
"""Slides of different lengths in one run of an encoder, without padding."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any, Dict, Iterator, List, Sequence, Tuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from .._errors import ArgumentError, UnsupportedError
from ._encoder import find_encoder, map_rows, rows_of_input
from ._longnet import LongNetAttention


def encode_slides(model: nn.Module, *inputs: Sequence[Any], **named: Any) -> List[Any]:
    """Returns model(tiles, coordinates) for each slide. The encoder runs once, over the rows of all slides.

        outputs = encode_slides(slide_encoder, [tiles_1, tiles_2], [coordinates_1, coordinates_2])

    inputs: for each positional argument of the model a list with one item for each slide. An item is what the model
        takes for one slide alone, as a batch of one.
    named: arguments by name, the same for all slides.

    The model is one whose attention replace_longnet_attention() replaced. Its encoder is the smallest module around all
    attention. What comes before it (class tokens, positions) and after it (pooling, heads) is the model's own code, and
    runs for one slide at a time; the part before it runs twice. Results and gradients are those of one slide after the
    other. No padding is computed. Autocast and activation checkpointing work. In training, dropout draws other numbers
    than for one slide, and a layer that drop path leaves out is left out for all slides.

    The encoder must treat all rows alike, except for attention: no embeddings of positions within it, no attention of
    another kind. A process group, torch.compile and misplaced_rows are not supported.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model is a {type(model).__name__}; it must be a torch.nn.Module")
    calls = _calls(inputs)
    encoder, attention = find_encoder(model)
    if any(module.process_group is not None for module in attention):
        raise UnsupportedError("the attention has a process group; encode_slides() works on one rank")
    compiled = [module for module in model.modules() if _is_compiled(module)]
    if compiled:
        raise UnsupportedError(f"torch.compile was applied to a {type(compiled[0]).__name__}; pass what it compiled")
    if not calls:
        return []
    given = [_arguments_of_encoder(model, encoder, call, named) for call in calls]
    arguments, keywords, lengths = _pack(given, encoder)
    starts = [0, *itertools.accumulate(lengths)]
    result = _run(encoder, _Packed(attention, starts), arguments, keywords)
    outputs = []
    for call, start, length in zip(calls, starts, lengths):
        part = map_rows(result, (1, starts[-1]), lambda tensor: tensor.narrow(1, start, length))
        outputs.append(_with_result(model, encoder, part, call, named))
    return outputs


def _calls(inputs: Sequence[Any]) -> List[Tuple[Any, ...]]:
    """Returns the positional arguments of each slide."""
    if not inputs:
        raise ArgumentError("there are no inputs; for each argument of the model a list of the slides' is needed")
    for number, items in enumerate(inputs):
        if not isinstance(items, (list, tuple)):
            raise TypeError(f"inputs[{number}] is a {type(items).__name__}; it must be a list with an item for each slide")
        if len(items) != len(inputs[0]):
            raise ArgumentError(f"inputs[0] has {len(inputs[0])} slides and inputs[{number}] {len(items)}")
    return list(zip(*inputs))


def _is_compiled(module: nn.Module) -> bool:
    return "_orig_mod" in module._modules or getattr(module, "_compiled_call_impl", None) is not None


@contextlib.contextmanager
def _in_place_of_forward(encoder: nn.Module, function: Any) -> Iterator[None]:
    """Puts a function in the place of encoder.forward(), which other wrappers may have replaced too."""
    before = encoder.__dict__.get("forward")
    encoder.__dict__["forward"] = function
    try:
        yield
    finally:
        if before is None:
            del encoder.__dict__["forward"]
        else:
            encoder.__dict__["forward"] = before


class _Reached(Exception):
    """The model has called its encoder."""


def _arguments_of_encoder(
    model: nn.Module, encoder: nn.Module, call: Tuple[Any, ...], named: Dict[str, Any]
) -> Tuple[Tuple[Any, ...], Dict[str, Any]]:
    """Runs a model for one slide up to its encoder, and returns what the encoder is called with."""
    found: list = []

    def reached(*arguments: Any, **keywords: Any) -> Any:
        found.append((arguments, keywords))
        raise _Reached

    with _in_place_of_forward(encoder, reached):
        try:
            model(*call, **named)
        except _Reached:
            pass
    if not found:
        raise UnsupportedError(f"the {type(model).__name__} does not call its encoder, a {type(encoder).__name__}")
    pair: Tuple[Tuple[Any, ...], Dict[str, Any]] = found[0]
    return pair


def _with_result(model: nn.Module, encoder: nn.Module, result: Any, call: Tuple[Any, ...], named: Dict[str, Any]) -> Any:
    """Runs a model for one slide with a result of its encoder that is there already."""
    results = [result]

    def next_result(*_: Any, **__: Any) -> Any:
        if not results:
            raise UnsupportedError(f"the {type(model).__name__} calls its encoder more than once")
        return results.pop()

    with _in_place_of_forward(encoder, next_result):
        return model(*call, **named)


# --- The rows of all slides


def _pack(
    given: List[Tuple[Tuple[Any, ...], Dict[str, Any]]], encoder: nn.Module
) -> Tuple[List[Any], Dict[str, Any], List[int]]:
    """Joins what the encoder is called with for each slide. Returns its arguments, and the number of rows of each
    slide."""
    names = [*given[0][1]]
    if any(len(arguments) != len(given[0][0]) or [*keywords] != names for arguments, keywords in given):
        raise UnsupportedError(f"the model calls its {type(encoder).__name__} with other arguments for other slides")
    rows = [rows_of_input(arguments, keywords, encoder) for arguments, keywords in given]
    for number, tensor in enumerate(rows):
        if tensor.shape[0] != 1:
            raise ArgumentError(
                f"slide {number} is a batch of {tensor.shape[0]} for the {type(encoder).__name__}; it must be one slide"
            )
    lengths = [tensor.shape[1] for tensor in rows]
    packed: Dict[Tuple[int, ...], Any] = {}  # a tensor that is several arguments stays one

    def joined(name: Any, values: Tuple[Any, ...]) -> Any:
        if all(isinstance(value, Tensor) for value in values):
            if all(tuple(value.shape[:2]) == (1, length) for value, length in zip(values, lengths)):
                key = tuple(map(id, values))
                if key not in packed:
                    packed[key] = torch.cat(values, 1)
                return packed[key]
        elif not any(isinstance(value, Tensor) for value in values) and all(value == values[0] for value in values):
            return values[0]
        raise UnsupportedError(
            f"argument {name!r} of the {type(encoder).__name__} is neither a tensor [1, N, ...] of N rows nor the same for "
            "all slides"
        )

    arguments = [joined(number, values) for number, values in enumerate(zip(*(one for one, _ in given)))]
    return arguments, {name: joined(name, tuple(one[name] for _, one in given)) for name in names}, lengths


# --- The run. Checkpointed layers compute again in backward, and need the slides' starts there too.


class _Packed:
    """Tells attention modules the starts of packed slides."""

    def __init__(self, attention: List[LongNetAttention], starts: List[int]) -> None:
        self.attention = attention
        self.starts = starts

    def enter(self) -> None:
        for module in self.attention:
            module.__dict__["_packed"] = self.starts

    def enter_backward(self, gradient: Tensor) -> None:
        """Is the hook of the encoder's results. Backward ends at the encoder's input, or before it for some leaves."""
        self.enter()
        engine: Any = torch.autograd.Variable._execution_engine
        engine.queue_callback(self.leave)

    def leave(self) -> None:
        for module in self.attention:
            module.__dict__.pop("_packed", None)


class _Input(torch.autograd.Function):
    """Returns its input. In backward it is the last of the encoder's nodes: the encoder needs no starts any more."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, makes_gradient: Tensor, packed: _Packed) -> Tensor:
        ctx.packed = packed
        return rows.view_as(rows)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tuple[Tensor, None, None]:
        ctx.packed.leave()
        return gradient, None, None


def _run(encoder: nn.Module, packed: _Packed, arguments: List[Any], keywords: Dict[str, Any]) -> Any:
    """Runs the encoder on packed rows. In its backward, its attention knows the starts too."""
    shape = (1, packed.starts[-1])
    rows = rows_of_input((*arguments,), keywords, encoder)
    records = torch.is_grad_enabled() and (
        rows.requires_grad or any(parameter.requires_grad for parameter in encoder.parameters())
    )
    if records:
        switch = torch.zeros((), device=rows.device, requires_grad=True)  # rows alone may need no gradient

        def through_input(tensor: Tensor) -> Tensor:
            return _Input.apply(tensor, switch, packed) if tensor.is_floating_point() else tensor

        arguments, keywords = map_rows((arguments, keywords), shape, through_input)
    packed.enter()
    try:
        result = encoder(*arguments, **keywords)
    finally:
        packed.leave()
    found = []

    def with_hook(tensor: Tensor) -> Tensor:
        found.append(tensor)
        if tensor.requires_grad:
            tensor.register_hook(packed.enter_backward)
        return tensor

    result = map_rows(result, shape, with_hook)
    if not found:
        raise UnsupportedError(
            f"the {type(encoder).__name__} returns no tensor [1, N, ...] with its {shape[1]} rows; its result cannot be "
            "divided among the slides"
        )
    return result
