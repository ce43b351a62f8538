# SPDX-License-Identifier: Apache-2.0
"""Dilated attention for PyTorch: a differentiable function, and modules with projections.

    from annulus.torch import MultiheadDilatedAttention, dilated_attention

    out = dilated_attention(q, k, v, [(2048, 1), (8192, 4)], causal=True)    # [B, N, H, D]
    attention = MultiheadDilatedAttention(512, 8, segment_lengths=[2048, 8192], dilation_rates=[1, 4])
    y, _ = attention(x, x, x)                                                # [B, N, 512]

    replace_longnet_attention(slide_encoder)    # a model of LongNet's published code, such as Prov-GigaPath's
"""

from ._functional import dilated_attention
from ._longnet import LongNetAttention
from ._mass import attention_mass
from ._merge import merge
from ._modules import MultiheadDilatedAttention
from ._packed import encode_slides
from ._ranks import reconnect
from ._replace import AttentionFound, Replacements, replace_longnet_attention

__all__ = [
    "AttentionFound",
    "LongNetAttention",
    "MultiheadDilatedAttention",
    "Replacements",
    "attention_mass",
    "dilated_attention",
    "encode_slides",
    "merge",
    "reconnect",
    "replace_longnet_attention",
]
