# SPDX-License-Identifier: Apache-2.0
"""Replaces a model's attention modules of LongNet's published code by LongNetAttention."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, List, Literal, Tuple

from torch import nn

from .._arguments import flag
from .._errors import ArgumentError, Error, UnsupportedError
from .._mistakes import warn
from ._encoder import find_encoder
from ._longnet import LongNetAttention, check_words
from ._published import PROJECTIONS, difference, looks_published, returned
from ._ranks import is_group
from ._shared import SharedForward


@dataclasses.dataclass(frozen=True)
class AttentionFound:
    """An attention module of a model.

    name: its name in named_modules(). kind: the name of its class.
    replaced: LongNetAttention replaces it (in a dry run: would replace it).
    note: why it is not replaced, or what to know about the replacement; "" if there is nothing to say.
    """

    name: str
    kind: str
    replaced: bool
    note: str

    def __str__(self) -> str:
        words = f"{self.name or '(the model)'}: {self.kind} {'replaced' if self.replaced else 'left as it is'}"
        return f"{words}; {self.note}" if self.note else words


class Replacements:
    """What replace_longnet_attention() found, module by module.

    found: an AttentionFound for each module, in the model's order. str() has a line for each.
    """

    found: Tuple[AttentionFound, ...]

    def __init__(
        self,
        found: List[AttentionFound],
        places: List[Tuple[nn.Module, str, nn.Module, nn.Module]],
        shared: SharedForward | None = None,
    ) -> None:
        self.found = tuple(found)
        self._shared = shared
        self._places = places  # the parent, the name in it, the published module, ours

    @property
    def replaced(self) -> List[str]:
        """The names of the modules that are replaced, or would be after a dry run."""
        return [one.name for one in self.found if one.replaced]

    @property
    def left(self) -> List[str]:
        """The names of the modules that stay as they are."""
        return [one.name for one in self.found if not one.replaced]

    def undo(self) -> None:
        """Puts the published modules back. They share their parameters with the modules that replaced them.

        Raises ArgumentError, and changes nothing, if another module is in such a place by now. Does nothing after a dry
        run, or the second time.
        """
        for holder, name, _, ours in self._places:
            now = holder._modules.get(name)
            if now is not ours:
                raise ArgumentError(
                    f"{name} of a {type(holder).__name__} is a {type(now).__name__} by now, no longer what "
                    "replace_longnet_attention() put there; it cannot be undone"
                )
        for holder, name, published, ours in self._places:
            published.training = ours.training
            holder._modules[name] = published
        self._places = []
        if self._shared is not None:
            self._shared.remove()
            self._shared = None

    def __str__(self) -> str:
        lines = [str(one) for one in self.found]
        return "\n".join(lines or ["no attention module of LongNet's published code"])

    def __repr__(self) -> str:
        return f"<Replacements: {len(self.replaced)} replaced, {len(self.left)} left>"


def replace_longnet_attention(
    model: nn.Module,
    *,
    misplaced_rows: Literal["as published"] | None = None,
    key_padding_mask: Literal["as lengths"] | None = None,
    assume_published: bool = False,
    process_group: Any = None,
    dry_run: bool = False,
) -> Replacements:
    """Puts a LongNetAttention in the place of every attention module of LongNet's published code in a model.

        print(replace_longnet_attention(model))

    A module with the attributes of torchscale's DilatedAttention is replaced if its forward(), and every function that
    forward() calls, is the code that torchscale and Prov-GigaPath published. Comments and line breaks may differ. The
    replacement shares the module's submodules, parameters, hooks and attributes, so state_dict() and optimizers see no
    difference. A module that cannot be replaced stays, and the result says why. If none is replaced, a warning says
    why.

    misplaced_rows, key_padding_mask: as LongNetAttention takes them.
    assume_published: also replace modules whose code is another one, or cannot be read: the caller knows that they
        compute what the published code computes. forward() then returns a tuple, a list or a tensor as theirs does,
        with None for all values but the output.
    process_group: a group of torch.distributed whose ranks share each slide: one slide is computed by all GPUs. Every
        rank calls the model with the same whole slide, with the same parameters, and gets the whole result. Between,
        each rank has a part of the rows in the encoder, the smallest module around all attention. All parameters have
        the gradients of one rank, so every rank makes the same step. In training the ranks draw different numbers for
        dropout. Nothing else may reduce gradients over this group (no DDP). If one module cannot be replaced, none is,
        and an error says why. None, or a group of one rank: the slides are not shared.
    dry_run: change nothing, only say what would be done.

    Wrap the model (DDP, FSDP, checkpointing) before or after. Call torch.compile or fully_shard() on a single attention
    module after. Returns Replacements, whose undo() puts the published modules back.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model is a {type(model).__name__}; it must be a torch.nn.Module")
    check_words(misplaced_rows, key_padding_mask)
    flag("assume_published", assume_published)
    group = _checked_group(process_group)
    found: List[AttentionFound] = []
    places: List[Tuple[nn.Module, str, nn.Module, nn.Module]] = []
    made: Dict[nn.Module, LongNetAttention] = {}  # a module may have several places
    modules = dict(model.named_modules(remove_duplicate=False))
    for name, module in modules.items():
        if isinstance(module, LongNetAttention) or not looks_published(module):
            continue
        parent, _, child = name.rpartition(".")
        try:
            if not name:
                raise UnsupportedError("it is the model itself; put what holds it here")
            ours = made.get(module) or _made(module, child, misplaced_rows, key_padding_mask, assume_published, group)
        except (Error, TypeError) as error:
            found.append(AttentionFound(name, type(module).__name__, False, str(error)))
            continue
        made[module] = ours
        found.append(AttentionFound(name, type(module).__name__, True, _note(ours)))
        places.append((modules[parent], child, module, ours))
    if not made and not any(isinstance(module, LongNetAttention) for module in modules.values()):
        why = str(found[0]) if found else "it has no attention module of LongNet's published code"
        warn(f"nothing of this {type(model).__name__} is replaced: {why}")
    if group is not None and any(not one.replaced for one in found):
        lines = "\n".join(str(one) for one in found if not one.replaced)
        raise UnsupportedError(f"process_group is given, and attention is left that needs all rows of a slide: {lines}")
    if dry_run:
        places = []
    for holder, child, _, replacement in places:
        holder._modules[child] = replacement
    shared = None
    if group is not None and places:
        try:
            encoder, attention = find_encoder(model)
            if any(module.process_group is not group for module in attention):
                raise UnsupportedError("process_group is given, and the encoder has a LongNetAttention without it")
            shared = SharedForward(encoder, group)
        except UnsupportedError:
            Replacements(found, places).undo()
            raise
    return Replacements(found, places, shared)


def _checked_group(group: Any) -> Any:
    """Returns a process group of several ranks, or None."""
    if group is None:
        return None
    if not is_group(group):
        raise ArgumentError(f"process_group is {group!r}; it must be None or a group of torch.distributed")
    import torch.distributed as dist

    return group if dist.get_world_size(group) > 1 else None


def _made(
    module: Any,
    name: str,
    misplaced_rows: Literal["as published"] | None,
    key_padding_mask: Literal["as lengths"] | None,
    assume_published: bool,
    group: Any,
) -> LongNetAttention:
    """Makes the replacement of a published module, or raises an error that says why it cannot.

    name: the last part of the module's name.
    """
    names = [kind.__name__.lower() for kind in type(module).__mro__]
    if not (hasattr(module, "dense_to_sparse") or any("dilated" in one for one in names)):
        raise UnsupportedError(
            "it is not known as dilated attention: it has no dense_to_sparse(), and no class of it is called dilated"
        )
    if getattr(module, "xpos", None) is not None:
        raise UnsupportedError("it has xpos, relative positions; they are not supported")
    parts = (*PROJECTIONS, "inner_attn_ln")
    for part in parts:
        if hasattr(getattr(module, part, None), "split_position"):
            raise UnsupportedError(f"{part} is a {type(getattr(module, part)).__name__}; multiway is not supported")
    known = (*parts, "_flat_param")  # the last one is FSDP's
    beside = [parameter for parameter, _ in module.named_parameters() if parameter.split(".")[0] not in known]
    if beside:
        raise UnsupportedError(f"it has parameters of its own, {', '.join(beside)}; what they do is not known")
    if "forward" in module.__dict__:
        raise UnsupportedError("its forward() was replaced by another, as some wrappers do; replace before that")
    if name == "_orig_mod" or getattr(module, "_compiled_call_impl", None) is not None:
        raise UnsupportedError("torch.compile was applied to it by itself; replace before that")
    if hasattr(module, "unshard") and hasattr(module, "reshard"):
        raise UnsupportedError("fully_shard() was applied to it by itself; replace before that")
    other = None if assume_published else difference(module)
    if other is not None:
        raise UnsupportedError(f"{other}; if it computes what the published one computes, pass assume_published=True")
    what = returned(module)
    if what is None:
        raise UnsupportedError(
            "the source of its forward() does not say whether it returns a tuple, a list or a tensor"
        )
    return LongNetAttention._in_place_of(module, misplaced_rows, key_padding_mask, _dropout_of(module), what, group)


def _note(ours: LongNetAttention) -> str:
    notes = []
    if ours._returned.has_others:
        notes.append("of the values that its forward() returns only the output is computed, the others become None")
    if ours.dropout:
        notes.append(f"dropout of attention weights is {ours.dropout}: in eval() mode alone")
    if ours.misplaced_beyond is not None and not ours.misplaced_rows:
        beyond = f"beyond {ours.misplaced_beyond} positions"
        notes.append(f"{beyond}, where the published code misplaces rows, outputs differ")
    return "; ".join(notes)


def _dropout_of(module: Any) -> float:
    for name in ("dropout", "dropout_module"):
        dropout = getattr(module, name, None)
        if dropout is not None:
            return float(getattr(dropout, "p", dropout))
    return 0.0
