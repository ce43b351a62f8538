# SPDX-License-Identifier: Apache-2.0
"""Refuses unknown arguments. For names that other libraries use, the message says what to use here."""

from __future__ import annotations

from typing import Any, Mapping

from ._errors import ArgumentError
from .types import ConfigChanges

# Arguments of other libraries, and what to use here.
_ELSEWHERE: Mapping[str, str] = {
    **dict.fromkeys(("is_causal", "is_causal_attention"), "use causal="),
    **dict.fromkeys(("softmax_scale", "sm_scale", "scaling"), "use scale="),
    **dict.fromkeys(
        ("dropout_p", "dropout", "p"), "there is no dropout of attention weights; leave it out where it is 0"
    ),
    **dict.fromkeys(
        ("window_size", "sliding_window", "local_window_size"),
        "use branches=[annulus.Branch.window(left, right)], with the numbers of window_size=(left, right); of a window "
        "of W positions that ends with the query left is W - 1 and right 0",
    ),
    **dict.fromkeys(
        ("attn_mask", "attn_bias", "attention_mask", "mask", "bias", "block_mask"),
        "there are no masks and no bias; use causal=, sequence_lengths= for a padded batch or sequence_starts= for "
        "packed sequences",
    ),
    **dict.fromkeys(
        ("key_padding_mask", "seqused_k"), "use sequence_lengths=, the rows of each batch entry that count"
    ),
    **dict.fromkeys(("cu_seqlens", "cu_seqlens_q", "cu_seqlens_k", "cu_seq_lens"), "use sequence_starts="),
    **dict.fromkeys(("max_seqlen", "max_seqlen_q", "max_seqlen_k"), "it follows from sequence_starts; leave it out"),
    **dict.fromkeys(("cache_seqlens", "q_start"), "use query_start=, the position of q's first row among k's"),
    **dict.fromkeys(("alibi_slopes", "softcap", "score_mod"), "scores are scale * q.k and nothing else; leave it out"),
    "enable_gqa": "k and v may have fewer heads than q without it; leave it out",
    **dict.fromkeys(
        ("return_attn_probs", "return_softmax", "return_softmax_lse", "need_weights"),
        "use return_lse=True, which gives the logarithms of the softmax's denominators; weights there are none, but "
        "annulus.attention_mass() sums them up for each key",
    ),
    **dict.fromkeys(("tensor_layout", "qkv_format", "input_layout"), "use layout='bnhd' or 'bhnd'"),
    **dict.fromkeys(("op", "backend"), "use engine="),
    **dict.fromkeys(
        ("kernel_size", "stride", "dilation"),
        "use branches=[annulus.Branch.window(k // 2, (k - 1) // 2, r)] for a kernel of k positions with dilation r, stride 1; "
        "(w, r) keeps every r-th of each segment of w positions",
    ),
    **dict.fromkeys(
        ("additional_keys", "additional_values"), "call it for these keys, too, and use annulus.merge() on both results"
    ),
    **dict.fromkeys(
        ("segment_length", "segment_lengths", "dilated_ratio", "dilation_rates", "dilations"),
        "use branches=, a list of (segment length, dilation)",
    ),
}


def refuse(function: str, unknown: Mapping[str, Any]) -> None:
    """Raises if there are unknown arguments: ArgumentError with a hint for a name that other libraries use, TypeError
    for any other name."""
    for name in unknown:
        instead = _ELSEWHERE.get(name)
        if name in ConfigChanges.__annotations__:
            instead = "it is an option of annulus.Config, which a Context is made with"
        if instead is None:
            raise TypeError(f"{function} has no argument {name!r}")
        raise ArgumentError(f"{name} is no argument of {function}: {instead}")
