# SPDX-License-Identifier: Apache-2.0
"""Models of the structure of LongNet's published code, computed by its formula in plain PyTorch.

replace_longnet_attention() takes the code here for published code: this module enters its digests in annulus's table.
"""

import ast
import inspect
import textwrap
import types

import torch

from annulus.torch import _published


def attend(q, k, v, branches, causal, misplaced=False):
    """Computes LongNet's formula: the softmax of each branch over zero-padded segments, with the rows put back to their
    places, and the sum of the branches weighted by the softmax of their denominators.

    misplaced: puts rows where the published code puts them if a dilation does not divide its segment length. The zeros
    that pad a segment stay in, with the rows that they get as queries, and push later rows back.
    """
    batch, length, heads, dim = q.shape
    outs, denominators = [], []
    for w, r in branches:
        w = min(w, length)
        slots = -(-w // r)
        out, lse = torch.zeros_like(q), q.new_full((batch, length, heads), -torch.inf)
        for segment, start in enumerate(range(0, length, w)):
            for head in range(heads):
                phase = head // -(-heads // r)
                rows = torch.arange(start + phase, min(start + w, length), r)
                keys, values, queries = (torch.zeros(batch, slots, dim, dtype=q.dtype) for _ in range(3))
                for slot_rows, tensor in ((queries, q), (keys, k), (values, v)):
                    slot_rows[:, : len(rows)] = tensor[:, rows, head]
                scores = queries @ keys.transpose(1, 2) / dim**0.5
                if causal:
                    future = torch.arange(slots)[None, :] > torch.arange(slots)[:, None]
                    scores = scores.masked_fill(future, -torch.inf)
                if misplaced:
                    places = segment * slots * r + phase + r * torch.arange(slots)
                    places = places[places < length]
                else:
                    places = rows
                out[:, places, head] = (scores.softmax(-1) @ values)[:, : len(places)]
                lse[:, places, head] = scores.logsumexp(-1)[:, : len(places)]
        outs.append(out)
        denominators.append(lse)
    shares = torch.stack(denominators).softmax(0).nan_to_num(0)  # a row that no branch reaches stays 0
    return (shares[..., None] * torch.stack(outs)).sum(0)


class DilatedAttention(torch.nn.Module):
    """The attributes of the published module that models read, with its parameters in its order."""

    def __init__(
        self,
        args,
        embed_dim,
        num_heads,
        dropout=0.0,
        self_attention=False,
        encoder_decoder_attention=False,
        subln=False,
    ):
        super().__init__()
        self.args = args
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.scaling = self.head_dim**-0.5
        self.self_attention = self_attention
        self.encoder_decoder_attention = encoder_decoder_attention
        for name in ("k_proj", "v_proj", "q_proj", "out_proj"):
            setattr(self, name, torch.nn.Linear(embed_dim, embed_dim))
        self.inner_attn_ln = torch.nn.LayerNorm(embed_dim, eps=args.layernorm_eps) if subln else None
        self.dropout_module = torch.nn.Dropout(dropout)
        self.xpos = None

    def forward(
        self,
        query,
        key,
        value,
        incremental_state=None,
        key_padding_mask=None,
        attn_mask=None,
        rel_pos=None,
        is_first_step=False,
        is_causal=False,
    ):
        batch, length, width = query.shape
        q, k, v = (
            projection(rows).view(batch, length, self.num_heads, self.head_dim)
            for projection, rows in ((self.q_proj, query), (self.k_proj, key), (self.v_proj, value))
        )
        branches = list(zip(self.args.segment_length, self.args.dilated_ratio))
        attended = attend(q, k, v, branches, is_causal, misplaced=True).reshape(batch, length, width)
        if self.inner_attn_ln is not None:
            attended = self.inner_attn_ln(attended)
        return self.out_proj(attended), None


class EncoderLayer(torch.nn.Module):
    def __init__(self, args):
        super().__init__()
        width, inner = args.encoder_embed_dim, args.encoder_ffn_embed_dim
        self.self_attn = DilatedAttention(
            args,
            width,
            args.encoder_attention_heads,
            dropout=args.attention_dropout,
            self_attention=True,
            subln=args.subln,
        )
        self.self_attn_layer_norm = torch.nn.LayerNorm(width)
        self.final_layer_norm = torch.nn.LayerNorm(width)
        self.fc1, self.fc2 = torch.nn.Linear(width, inner), torch.nn.Linear(inner, width)
        self.ffn_layernorm = torch.nn.LayerNorm(inner)

    def forward(self, x, encoder_padding_mask):
        residual = x
        x = self.self_attn_layer_norm(x)
        x, _ = self.self_attn(
            query=x,
            key=x,
            value=x,
            key_padding_mask=encoder_padding_mask,
            attn_mask=None,
            rel_pos=None,
            incremental_state=None,
        )
        x = residual = residual + x
        x = self.fc1(self.final_layer_norm(x))
        x = torch.nn.functional.gelu(x.float()).type_as(x)
        return residual + self.fc2(self.ffn_layernorm(x))


class Encoder(torch.nn.Module):
    """Layers over embeddings of tiles [B, N, embed_dim]."""

    def __init__(self, args):
        super().__init__()
        self.args = args
        self.layers = torch.nn.ModuleList([EncoderLayer(args) for _ in range(args.encoder_layers)])
        self.layer_norm = torch.nn.LayerNorm(args.encoder_embed_dim)

    def forward(self, x):
        padding = torch.zeros(x.shape[:2], dtype=torch.bool, device=x.device)
        for layer in self.layers:
            x = layer(x, padding)
        return self.layer_norm(x)


def arguments(embed_dim=64, num_heads=4, **others):
    """Makes a configuration like those of the published code."""
    return types.SimpleNamespace(
        **{
            "encoder_embed_dim": embed_dim,
            "encoder_attention_heads": num_heads,
            "encoder_ffn_embed_dim": embed_dim,
            "encoder_layers": 2,
            "segment_length": [16, 48],
            "dilated_ratio": [1, 3],
            "layernorm_eps": 1e-5,
            "attention_dropout": 0.0,
            "subln": True,
            "multiway": False,
            "xpos_rel_pos": False,
            "seq_parallel": False,
            "flash_attention": True,
            **others,
        }
    )


def digest_of(thing):
    """Returns the name and the digest of a function."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(thing))).body
    return definition.name, _published.digest(definition)


for function in (DilatedAttention.forward, attend):
    known_name, known_digest = digest_of(function)
    _published.DIGESTS[known_name] = (*_published.DIGESTS.get(known_name, ()), known_digest)
