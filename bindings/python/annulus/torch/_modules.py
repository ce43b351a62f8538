# SPDX-License-Identifier: Apache-2.0
"""Multi-head attention modules: projections around dilated_attention()."""

from __future__ import annotations

import math
from typing import Any, Sequence, Tuple, Union

import torch
from torch import Tensor, nn

from .._arguments import flag, integer, integers
from .._config import Config
from .._errors import ArgumentError, UnsupportedError
from .._shards import Shards
from ._functional import _cast, attend, check_tensor


def _branches(segment_lengths: Sequence[int], dilation_rates: Sequence[int]) -> list[Tuple[int, int]]:
    lengths, rates = integers("segment_lengths", segment_lengths), integers("dilation_rates", dilation_rates)
    if len(lengths) != len(rates):
        raise ArgumentError(
            f"there are {len(lengths)} segment lengths and {len(rates)} dilation rates; each branch has one of both"
        )
    return list(zip(lengths, rates))


class MultiheadDilatedAttention(nn.Module):
    """Multi-head dilated attention with projections, as torch.nn.MultiheadAttention is for full attention.

    embed_dim: E, the width of inputs and outputs; num_heads: H, with E / H a multiple of 8 up to 256.
    segment_lengths, dilation_rates: one number of each for every branch; a segment length 0 is the whole sequence.
    kv_heads: G, the number of heads of keys and values, a divisor of num_heads; None: num_heads.
    bias: the projections have a bias.
    dropout: must be 0: there is no dropout of attention weights.
    layer_norm: normalise before the output projection, as MAGNETO does (inner_attn_ln).
    is_causal: a position attends only to itself and to earlier positions.
    batch_first: inputs and outputs are [B, N, E]; otherwise [N, B, E]. B may be left out.
    process_group, shards: sequence parallelism; each rank of the group passes and gets its shard of the sequence, see
        dilated_attention(). Each rank gets its summand of the parameters' gradients: sum them over the group.
    options: options of annulus.Config: padding, key_rule, head_shard, scale, engine, allow_tf32, workspace_limit,
        exchange.

    With head_shard=(first, total) the module is one process's part of a module with `total` heads. It has num_heads of
    the heads, from `first` on, of E / total numbers each, and projections of that width. The sum of all parts' outputs
    is the output of the whole module; the caller makes that sum, an all-reduce. Only the part with head 0 has the bias
    of the output projection.

    For backward a module saves for each position its input, q, k, v, the attention's output (E numbers each; k and v
    kv_heads * D) and lse (num_heads float32). layer_norm adds its output and two float32; under autocast also its
    input, in float32. Nothing is saved twice, whatever the number of branches.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        segment_lengths: Sequence[int],
        dilation_rates: Sequence[int],
        *,
        kv_heads: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        layer_norm: bool = False,
        layer_norm_eps: float = 1e-5,
        is_causal: bool = False,
        batch_first: bool = True,
        process_group: Any = None,
        shards: Union[Shards, Sequence[int], str, None] = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        if dropout:
            raise UnsupportedError(f"dropout is {dropout}; it must be 0: annulus has no dropout of attention weights")
        self._set_up(embed_dim, num_heads, kv_heads, _branches(segment_lengths, dilation_rates), is_causal, options)
        self.batch_first = batch_first
        self.process_group = process_group
        self.shards = shards

        place = {"device": device, "dtype": dtype}
        kv_dim, width = self.kv_heads * self.head_dim, self.num_heads * self.head_dim
        is_part = self.config.head_shard is not None
        if layer_norm and is_part:
            raise UnsupportedError("layer_norm is True and head_shard given: a norm is over all heads, a part has some")
        # In the order of LongNet's published code, since optimizers save their states by the order of parameters.
        self.k_proj = nn.Linear(embed_dim, kv_dim, bias=bias, **place)
        self.v_proj = nn.Linear(embed_dim, kv_dim, bias=bias, **place)
        self.q_proj = nn.Linear(embed_dim, width, bias=bias, **place)
        has_head_0 = (self.config.head_shard or (0, 0))[0] == 0
        self.out_proj = nn.Linear(width, embed_dim, bias=bias and has_head_0, **place)
        self.inner_attn_ln = nn.LayerNorm(embed_dim, eps=layer_norm_eps, **place) if layer_norm else None
        self._init_parameters()

    def _set_up(
        self,
        embed_dim: int,
        num_heads: int,
        kv_heads: int | None,
        branches: list[Tuple[int, int]],
        is_causal: bool,
        options: dict[str, Any],
    ) -> None:
        """Checks and sets the sizes, the heads and the config."""
        if "causal" in options:
            raise ArgumentError("causal is an option of annulus.Config; here it is is_causal")
        embed_dim, num_heads = integer("embed_dim", embed_dim), integer("num_heads", num_heads)
        kv_heads = num_heads if kv_heads is None else integer("kv_heads", kv_heads)
        if embed_dim < 1:
            raise ArgumentError(f"embed_dim is {embed_dim}; it must be at least 1")
        self.config = Config(branches, **options)
        shard = self.config.head_shard
        all_heads = num_heads if shard is None else shard[1]
        if num_heads < 1 or embed_dim % all_heads:
            what = "num_heads" if shard is None else "the total of head_shard"
            raise ArgumentError(f"{what} is {all_heads}; it must divide embed_dim, which is {embed_dim}")
        if shard is not None and shard[0] + num_heads > shard[1]:
            raise ArgumentError(f"head_shard is {shard} and num_heads {num_heads}; they must end within the total")
        if kv_heads < 1 or num_heads % kv_heads:
            raise ArgumentError(f"kv_heads is {kv_heads}; it must divide num_heads, which is {num_heads}")
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.kv_heads = kv_heads
        self.head_dim = embed_dim // all_heads
        if self.head_dim % 8 or self.head_dim > 256:
            raise UnsupportedError(
                f"embed_dim / num_heads is {self.head_dim}; it must be a multiple of 8 from 8 to 256"
            )
        self._width = num_heads * self.head_dim  # the numbers in a row of q
        self.is_causal = flag("is_causal", is_causal)
        self._configs = tuple(self.config.replace(causal=causal) for causal in (False, True))

    def _init_parameters(self) -> None:
        """Sets the parameters of a new module."""
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws weights from Xavier's uniform distribution, with gain 1/sqrt(2) for k, v and q. Sets the bias of the
        output projection to 0, and leaves all other biases as they are."""
        for projection in (self.k_proj, self.v_proj, self.q_proj):
            nn.init.xavier_uniform_(projection.weight, gain=1 / math.sqrt(2))
        nn.init.xavier_uniform_(self.out_proj.weight)
        if self.out_proj.bias is not None:
            nn.init.zeros_(self.out_proj.bias)

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        is_causal: bool | None = None,
        *,
        key_padding_mask: Tensor | None = None,
        attn_mask: Tensor | None = None,
        need_weights: bool = False,
        sequence_starts: Any = None,
        sequence_lengths: Any = None,
    ) -> Tuple[Tensor, None]:
        """Computes query, key, value [B, N, E] -> (output [B, N, E], None). Without key it is query, without value key.

        is_causal: overrides the module's. Masks must be None and need_weights False, since there are none.
        sequence_starts, sequence_lengths: the sequences that the N rows consist of, as dilated_attention() takes them.
            The attention of rows outside every sequence is 0; norm and output projection are applied to these zeros.
        """
        if key_padding_mask is not None or attn_mask is not None or need_weights:
            raise UnsupportedError(
                "key_padding_mask, attn_mask and need_weights: there are no masks but is_causal, and no weights"
            )
        # Checks each tensor once. Usually all three are one tensor. On short sequences a GPU waits for the host.
        self._check("query", query, query)
        if key is None:
            key = query
        elif key is not query:
            self._check("key", key, query)
        if value is None:
            value = key
        elif value is not query and value is not key:
            self._check("value", value, query)
        self._check_has_values()
        causal = self.is_causal if is_causal is None else flag("is_causal", is_causal)
        return self._attend(query, key, value, causal, sequence_starts, sequence_lengths), None

    def _check(self, name: str, rows: Any, query: Tensor) -> None:
        check_tensor(name, rows)
        if rows.dim() not in (2, 3) or rows.shape[-1] != self.embed_dim or rows.shape != query.shape:
            axes = "B, N" if self.batch_first else "N, B"
            raise ArgumentError(
                f"{name} has shape {list(rows.shape)}; it must be [{axes}, {self.embed_dim}], B may be left out, and "
                f"the same as query's, {list(query.shape)}"
            )

    def _check_has_values(self) -> None:
        weight = getattr(self.q_proj, "weight", None)  # checks one projection for all, since each check takes time
        if isinstance(weight, Tensor) and weight.is_meta:
            raise UnsupportedError(
                "the module's parameters are on the device meta, where they have no values; to_empty(device=...) and "
                "load_state_dict() or reset_parameters() give them some"
            )

    def _heads(self, rows: Tensor, heads: int) -> Tensor:
        """Returns rows [B, N, heads · D] (or [N, B, …]) as [B, N, heads, D], without a copy."""
        return self._batch_first(rows.view(*rows.shape[:-1], heads, self.head_dim))

    def _batch_first(self, rows: Tensor) -> Tensor:
        """Exchanges the axes N and B of [N, B, heads, D] or [B, N, heads, D], if the module has B second."""
        return rows if self.batch_first or rows.dim() < 4 else rows.transpose(0, 1)

    def _attend(
        self, query: Tensor, key: Tensor, value: Tensor, causal: bool, starts: Any = None, lengths: Any = None
    ) -> Tensor:
        # Casts once. Under autocast each projection would cast its input again, and save the copy for backward.
        (rows,) = _cast(query)
        key_rows = rows if key is query else _cast(key)[0]
        value_rows = rows if value is query else key_rows if value is key else _cast(value)[0]
        q_rows = self.q_proj(rows)
        if q_rows.shape[-1] != self._width or self.num_heads * self.head_dim != self._width:
            raise ArgumentError(
                f"q_proj gives {q_rows.shape[-1]} numbers a position and num_heads is {self.num_heads}; of heads of "
                f"{self.head_dim} numbers the module has {self._width // self.head_dim}. Where its heads are shared out "
                "over processes, each must say which it has: head_shard=(first, total)"
            )
        q = self._heads(q_rows, self.num_heads)
        k = self._heads(self.k_proj(key_rows), self.kv_heads)
        v = self._heads(self.v_proj(value_rows), self.kv_heads)
        out = self._batch_first(self._attention(q, k, v, causal, starts, lengths)).flatten(-2)
        if self.inner_attn_ln is not None:
            weight = getattr(self.inner_attn_ln, "weight", None)
            out = self.inner_attn_ln(out if weight is None else out.to(weight.dtype))  # under autocast they differ
        return self.out_proj(out)

    def _attention(self, q: Tensor, k: Tensor, v: Tensor, causal: bool, starts: Any, lengths: Any) -> Tensor:
        out, _ = attend(
            q,
            k,
            v,
            self._configs[1 if causal else 0]._text,
            process_group=self.process_group,
            shards=self.shards,
            sequence_starts=starts,
            sequence_lengths=lengths,
        )
        return out

    def extra_repr(self) -> str:
        """Returns the sizes and the config, for print()."""
        return f"embed_dim={self.embed_dim}, num_heads={self.num_heads}, kv_heads={self.kv_heads}, {self.config!r}"
