# SPDX-License-Identifier: Apache-2.0
"""The attention module of LongNet's published code."""

from __future__ import annotations

import ast
import functools
import re
import types
from typing import Any, List, Literal, Sequence, Tuple

import torch.nn.functional as F
from torch import Tensor

from .._arguments import integers
from .._config import Config
from .._errors import ArgumentError, UnsupportedError
from ._functional import _untraced, attend
from ._merge import merge
from ._modules import MultiheadDilatedAttention, _branches
from ._published import Returned

_PUBLISHED = Returned()  # what the published forward() returns


class LongNetAttention(MultiheadDilatedAttention):
    """The attention of LongNet's published code (torchscale's DilatedAttention).

    The parameters have the names, shapes, order and initial values (with one seed) of that code, so checkpoints and
    optimizers' states load. The outputs are the same, with one exception: a branch whose dilation r does not divide its
    segment length w, in a sequence of more than w positions. There that code puts rows in wrong places, and the outputs
    here follow LongNet's definition. (Prov-GigaPath's fine-tuning script has such a branch, 23170:4. Its outputs differ
    on sequences of more than 23,170 positions.)

    segment_length, dilated_ratio: a list of each, as in that code's configuration.
    subln: normalise before the output projection. layernorm_eps: its epsilon.
    dropout: the dropout of attention weights. annulus has none, so unless it is 0 the module works only in eval() mode,
        which has no dropout.
    padding: "zero_keys" as that code pads, or "exact".
    misplaced_rows: None, or "as published" for weights that need the outputs of that code: rows are put where it puts
        them. Such a branch is computed by itself, on padded copies of q, k and v. Not possible with process_group,
        "exact" padding or several sequences in a call.
    key_padding_mask: None: forward() ignores the mask, as that code does. "as lengths": forward() takes the mask for the
        lengths of padded sequences, each computed as if it were alone. The mask may then only mask positions at the
        end of a batch entry. forward() reads the mask on the host. Not possible with process_group.

    All other arguments are those of MultiheadDilatedAttention. For backward a module saves for each position the input,
    q, k, v, the attention's output and with subln the normalised output, embed_dim numbers each in the dtype of q. It
    also saves num_heads float32 of lse, with subln two float32, and under autocast with subln the norm's input in
    float32. Nothing is saved twice. The gradient is the true derivative; that code's gradient treats the mixing weights
    of the branches as constants.

    args, scaling, self_attention, encoder_decoder_attention, xpos: the attributes of that code's module.
    misplaced_beyond: the most positions that a sequence may have before that code misplaces rows; None: any number.
    """

    _returned = _PUBLISHED
    _packed: List[int] | None = None  # the starts of the slides whose rows come, while encode_slides() works

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        segment_length: Sequence[int],
        dilated_ratio: Sequence[int],
        *,
        subln: bool = True,
        layernorm_eps: float = 1e-5,
        dropout: float = 0.0,
        padding: str = "zero_keys",
        misplaced_rows: Literal["as published"] | None = None,
        key_padding_mask: Literal["as lengths"] | None = None,
        **others: Any,
    ) -> None:
        super().__init__(
            embed_dim,
            num_heads,
            segment_length,
            dilated_ratio,
            layer_norm=subln,
            layer_norm_eps=layernorm_eps,
            padding=padding,
            **others,
        )
        self.args: Any = types.SimpleNamespace(
            segment_length=[*segment_length], dilated_ratio=[*dilated_ratio], layernorm_eps=layernorm_eps
        )
        self.scaling = self.head_dim**-0.5 if self.config.scale is None else self.config.scale
        self.self_attention = True
        self.encoder_decoder_attention = False
        self.xpos = None
        self.dropout = dropout
        self._set_words(misplaced_rows, key_padding_mask)

    @classmethod
    def from_args(
        cls,
        args: Any,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        self_attention: bool = False,
        encoder_decoder_attention: bool = False,
        subln: bool = False,
        *,
        misplaced_rows: Literal["as published"] | None = None,
        key_padding_mask: Literal["as lengths"] | None = None,
    ) -> LongNetAttention:
        """Makes a module from the arguments of torchscale's DilatedAttention, to replace it in a model's code.

        args: an object with segment_length and dilated_ratio (lists, or strings of lists, also of NumPy's integers) and
            layernorm_eps.
        """
        module = cls(
            embed_dim,
            num_heads,
            *branches_of_args(args, encoder_decoder_attention),
            subln=subln and self_attention,
            layernorm_eps=getattr(args, "layernorm_eps", 1e-5),
            dropout=dropout,
            process_group=group_of_args(args),
            misplaced_rows=misplaced_rows,
            key_padding_mask=key_padding_mask,
        )
        module.args = args
        return module

    @classmethod
    def _in_place_of(
        cls,
        published: Any,
        misplaced_rows: Literal["as published"] | None,
        key_padding_mask: Literal["as lengths"] | None,
        dropout: float,
        returned: Returned,
        group: Any,
    ) -> LongNetAttention:
        """Makes a module that shares all attributes, submodules and hooks of a published module, without copies.

        returned: what its forward() returns. group: the process group that shares the rows; None: that of its args.
        """
        module = cls.__new__(cls)
        module.__dict__.update(published.__dict__)
        branches = _branches(*branches_of_args(published.args, getattr(published, "encoder_decoder_attention", False)))
        width: Any = getattr(published, "embed_dim", None)
        module._set_up(width, published.num_heads, None, branches, False, {"padding": "zero_keys"})
        module.batch_first = True
        module.process_group = group_of_args(published.args) if group is None else group
        module.shards = None
        module.dropout = dropout
        if not hasattr(module, "inner_attn_ln"):
            module.inner_attn_ln = None
        if returned != _PUBLISHED:
            module._returned = returned
        module._set_words(misplaced_rows, key_padding_mask)
        return module

    def _init_parameters(self) -> None:
        """Does nothing, since the constructor of the published code does not call reset_parameters()."""

    def _set_words(
        self, misplaced_rows: Literal["as published"] | None, key_padding_mask: Literal["as lengths"] | None
    ) -> None:
        check_words(misplaced_rows, key_padding_mask)
        if misplaced_rows and self.config.padding != "zero_keys":
            raise ArgumentError(f"padding is {self.config.padding!r}; with misplaced_rows it must be 'zero_keys'")
        if misplaced_rows and self.process_group is not None:
            raise UnsupportedError("misplaced_rows is 'as published' with a process group; leave one of them out")
        if key_padding_mask and self.process_group is not None:
            raise UnsupportedError("key_padding_mask is 'as lengths' with a process group; leave one of them out")
        self.misplaced_rows = misplaced_rows
        self.key_padding_mask = key_padding_mask
        branches = [(branch.segment_length, branch.dilation) for branch in self.config.branches]
        self.misplaced_beyond = min((w for w, r in branches if w % r), default=None)

    def forward(  # type: ignore[override]
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        incremental_state: Any = None,
        key_padding_mask: Tensor | None = None,
        attn_mask: Tensor | None = None,
        rel_pos: Tensor | None = None,
        is_first_step: bool = False,
        is_causal: bool | None = None,
        *,
        sequence_starts: Any = None,
        sequence_lengths: Any = None,
    ) -> Tuple[Tensor, None]:
        """Computes query, key, value [B, N, E] -> (output [B, N, E], None). Arguments have the published names.

        key_padding_mask: [B, N], not 0 at masked positions. It has no effect, as in the published module, unless the
            module's key_padding_mask is "as lengths". incremental_state, attn_mask and rel_pos must be None.
        sequence_starts, sequence_lengths: as MultiheadDilatedAttention's. The published module has neither.
        """
        if incremental_state is not None or attn_mask is not None or rel_pos is not None:
            given = {"incremental_state": incremental_state, "attn_mask": attn_mask, "rel_pos": rel_pos}
            names = " and ".join(name for name, argument in given.items() if argument is not None)
            raise UnsupportedError(f"{names} is given; it must be None")
        if self.dropout and self.training:
            raise UnsupportedError(
                f"dropout is {self.dropout} and the module is in training mode; annulus has no dropout of attention "
                "weights: set dropout = 0, or call eval()"
            )
        if self.key_padding_mask and key_padding_mask is not None:
            lengths = lengths_of_mask(key_padding_mask, query.shape[:-1])
            if lengths is not None and (sequence_starts is not None or sequence_lengths is not None):
                raise ArgumentError(
                    "key_padding_mask masks positions, and sequence_starts or sequence_lengths is given; pass one of them"
                )
            sequence_lengths = lengths or sequence_lengths
        if self._packed is not None:
            sequence_starts = self._starts_of(query, sequence_starts, sequence_lengths)
        result = super().forward(
            query, key, value, is_causal, sequence_starts=sequence_starts, sequence_lengths=sequence_lengths
        )
        return result if self._returned is _PUBLISHED else self._returned.of(result[0])

    def _starts_of(self, query: Tensor, starts: Any, lengths: Any) -> Any:
        """Returns the starts of packed slides. Refuses rows that are not those of encode_slides()."""
        packed: Any = self._packed
        if starts is not None or lengths is not None:
            raise ArgumentError("sequence_starts or sequence_lengths is given within encode_slides(); leave them out")
        if query.shape[:-1] != (1, packed[-1]):
            raise UnsupportedError(
                f"attention gets rows of shape {list(query.shape[:-1])} where encode_slides() packed [1, {packed[-1]}]; "
                "nothing in the encoder may add or remove rows, such as class tokens"
            )
        return packed

    def _attention(self, q: Tensor, k: Tensor, v: Tensor, causal: bool, starts: Any, lengths: Any) -> Tensor:
        if self.misplaced_rows:
            if starts is not None or lengths is not None:
                raise UnsupportedError(
                    "sequence_starts and sequence_lengths with misplaced_rows; leave one of them out"
                )
            if self.misplaced_beyond is not None and q.shape[-3] > self.misplaced_beyond:
                out: Tensor = _attend_as_published(q, k, v, self._configs[1 if causal else 0])
                return out
        return super()._attention(q, k, v, causal, starts, lengths)


def check_words(misplaced_rows: Any, key_padding_mask: Any) -> None:
    """Refuses words that LongNetAttention does not know."""
    if misplaced_rows not in (None, "as published"):
        raise ArgumentError(f"misplaced_rows is {misplaced_rows!r}; it must be None or 'as published'")
    if key_padding_mask not in (None, "as lengths"):
        raise ArgumentError(f"key_padding_mask is {key_padding_mask!r}; it must be None or 'as lengths'")


@_untraced
def lengths_of_mask(mask: Any, shape: Sequence[int]) -> List[int] | None:
    """Returns the number of positions that a key_padding_mask leaves of each batch entry, None if it leaves all.

    Refuses masks that mask a position before one that they do not mask. shape: [B, N].
    """
    if not isinstance(mask, Tensor) or tuple(mask.shape) != tuple(shape):
        has = f"shape {list(mask.shape)}" if isinstance(mask, Tensor) else f"type {type(mask).__name__}"
        raise ArgumentError(f"key_padding_mask has {has}; it must be a tensor of shape {list(shape)}")
    if mask.is_floating_point() or mask.is_complex():
        raise ArgumentError(f"key_padding_mask is {mask.dtype}; it must be torch.bool or an integer dtype")
    masked = mask.detach().ne(0).cpu()
    if not masked.any():
        return None
    gaps = (masked[..., :-1] & ~masked[..., 1:]).nonzero()
    if len(gaps):
        *entry, position = gaps[0].tolist()
        where = f" of batch entry {entry[0]}" if entry else ""
        raise ArgumentError(
            f"key_padding_mask masks position {position}{where} but not position {position + 1}; it must mask "
            "positions at the end alone"
        )
    lengths: List[int] = (~masked).sum(-1).reshape(-1).tolist()
    return lengths


def branches_of_args(args: Any, encoder_decoder_attention: bool) -> Tuple[Sequence[int], Sequence[int]]:
    """Returns the segment lengths and dilations in a configuration of the published code."""
    for name in ("multiway", "xpos_rel_pos"):
        if getattr(args, name, False):
            raise UnsupportedError(f"{name} of args is set; it is not supported")
    if encoder_decoder_attention:
        raise UnsupportedError("encoder_decoder_attention is set; only self-attention is supported")
    return _list(args, "segment_length"), _list(args, "dilated_ratio")


def group_of_args(args: Any) -> Any:
    """Returns the process group over which the published code would share the sequence, or None for one rank."""
    if not getattr(args, "seq_parallel", False):
        return None
    import torch.distributed as dist

    return dist.group.WORLD if dist.is_initialized() and dist.get_world_size() > 1 else None


def _list(args: Any, name: str) -> Sequence[int]:
    """Returns a list of numbers in a configuration, which may be a string; NumPy 2 writes np.int64(1024) for 1024."""
    numbers = getattr(args, name, None)
    if isinstance(numbers, str):
        try:
            numbers = ast.literal_eval(re.sub(r"\bnp\.u?int\d+\((\d+)\)", r"\1", numbers))
        except (SyntaxError, ValueError):
            pass  # integers() refuses it
    return integers(f"{name} of args", numbers)


# --- Rows in the places where the published code puts them


@functools.lru_cache(maxsize=64)
def _parts(config: Config, length: int) -> Tuple[str | None, Tuple[Tuple[int, int, str], ...]]:
    """Divides the branches by whether the published code misplaces their rows in a sequence of `length` positions.

    Returns the text of a config with the branches in place, or None if there are none. And for each misplaced branch:
    its segment length, the length of its padded segments, and the text of a config with padded segments.
    """
    in_place, misplaced = [], []
    for branch in config.branches:
        w, r = branch.segment_length, branch.dilation
        if w < length and w % r:
            padded = -(-w // r) * r
            misplaced.append((w, padded, config.replace(branches=[(padded, r)])._text))
        else:
            in_place.append(branch)
    return config.replace(branches=in_place)._text if in_place else None, tuple(misplaced)


@_untraced
def _attend_as_published(q: Tensor, k: Tensor, v: Tensor, config: Config) -> Tensor:
    """Computes the output with rows in the places where the published code puts them.

    That code pads each segment with zeros to a multiple of r, and does not remove the zeros' rows when it joins the
    segments. They push later rows back, and the last rows out of the sequence. So the rows of such a branch are the
    first rows of the same attention over padded segments.
    """
    length = q.shape[-3]
    in_place, misplaced = _parts(config, length)
    results = [] if in_place is None else [attend(q, k, v, in_place)]
    for w, padded, text in misplaced:
        segments = -(-length // w)

        def with_padding(rows: Tensor) -> Tensor:
            whole = F.pad(rows, (0, 0, 0, 0, 0, segments * w - length)).unflatten(-3, (segments, w))
            return F.pad(whole, (0, 0, 0, 0, 0, padded - w)).flatten(-4, -3)

        out, lse = attend(with_padding(q), with_padding(k), with_padding(v), text)
        results.append((out.narrow(-3, 0, length), lse.narrow(-1, 0, length)))
    return merge(results)[0]
