# SPDX-License-Identifier: Apache-2.0
"""Arguments of other libraries are refused, with the name of the argument to use here."""

import unittest

import capi
import tap

import annulus

try:
    import torch

    from annulus.torch import MultiheadDilatedAttention, dilated_attention
except ImportError:
    torch = None

BRANCHES = [(16, 1)]

# Name, value, and a word that the message must have.
FOREIGN = [
    ("is_causal", True, "causal="),
    ("softmax_scale", 0.5, "scale="),
    ("dropout_p", 0.1, "no dropout"),
    ("window_size", (16, 0), r"Branch\.window\(left, right\)"),
    ("attn_mask", None, "sequence_lengths="),
    ("attn_bias", None, "no bias"),
    ("key_padding_mask", None, "sequence_lengths="),
    ("cu_seqlens_q", [0, 8], "sequence_starts="),
    ("max_seqlen_k", 8, "leave it out"),
    ("enable_gqa", True, "fewer heads"),
    ("return_attn_probs", True, "return_lse=True"),
    ("segment_lengths", [16], "branches="),
    ("kernel_size", 7, r"Branch\.window\(k // 2, \(k - 1\) // 2, r\)"),
    ("dilation", 2, r"Branch\.window\(k // 2, \(k - 1\) // 2, r\)"),
    ("additional_keys", None, r"annulus\.merge\(\)"),
]


class ArgumentsTest(unittest.TestCase):
    def setUp(self):
        self.arrays = capi.numbers(1, *[(1, 8, 2, 8)] * 3)

    def refused(self, function, *arguments):
        for name, value, words in FOREIGN:
            with self.subTest(name):
                with self.assertRaisesRegex(annulus.ArgumentError, f"^{name} is no argument of annulus.*: .*{words}"):
                    function(*arguments, **{name: value})
        with self.assertRaisesRegex(TypeError, "has no argument 'nonsense'"):
            function(*arguments, nonsense=1)

    def test_attention(self):
        self.refused(annulus.attention, *self.arrays, BRANCHES)

    def test_config(self):
        self.refused(annulus.Config, BRANCHES)
        with self.assertRaisesRegex(annulus.ArgumentError, "is_causal .* causal="):
            annulus.Config.longnet(2048, is_causal=True)
        with self.assertRaisesRegex(annulus.ArgumentError, "is_causal .* causal="):
            annulus.Config(BRANCHES).replace(is_causal=True)

    def test_context(self):
        context = annulus.Context(BRANCHES)
        q, k, v = self.arrays
        out, lse = context.forward(q, k, v)
        for call in (context.forward, context.backward):
            arguments = (q, k, v) if call == context.forward else (q, k, v, out, lse, out)
            with self.assertRaisesRegex(annulus.ArgumentError, "causal .* option of annulus.Config"):
                call(*arguments, causal=True)
            with self.assertRaisesRegex(annulus.ArgumentError, "softmax_scale .* scale="):
                call(*arguments, softmax_scale=1.0)

    @unittest.skipUnless(torch, "needs PyTorch")
    def test_torch(self):
        tensors = [torch.from_numpy(array) for array in self.arrays]
        self.refused(dilated_attention, *tensors, BRANCHES)
        with self.assertRaisesRegex(annulus.ArgumentError, "attn_mask .* no masks"):
            MultiheadDilatedAttention(16, 2, [16], [1], attn_mask=None)


if __name__ == "__main__":
    tap.main()
