# SPDX-License-Identifier: Apache-2.0
"""layout="bhnd": arrays [B, heads, N, D] and their transposes [B, N, heads, D] give the same results, bit for bit."""

import unittest
import warnings

import capi
import tap
from capi import np
from exported import Exported

import annulus

try:
    import torch

    from annulus.torch import dilated_attention
except ImportError:
    torch = None

BRANCHES = [(16, 1), (48, 3)]
SHAPE, KV_SHAPE = (2, 83, 4, 16), (2, 83, 2, 16)
CONFIG = annulus.Config(BRANCHES, causal=True)


def heads_first(array):
    return np.ascontiguousarray(array.swapaxes(-3, -2))


class LayoutTest(unittest.TestCase):
    def setUp(self):
        self.arrays = capi.numbers(3, SHAPE, KV_SHAPE, KV_SHAPE, SHAPE)
        self.context = annulus.Context(CONFIG)

    def same(self, found, wanted):
        self.assertEqual(found.shape, wanted.shape)
        self.assertEqual(found.tobytes(), wanted.tobytes())

    def both_ways(self, *arrays, wrap=lambda array: array):
        """Computes forward and backward in both layouts."""
        q, k, v, d_out = arrays
        out, lse = self.context.forward(q, k, v)
        gradients = self.context.backward(q, k, v, out, lse, d_out)
        swapped = [heads_first(array) for array in arrays]
        q, k, v, d_out = map(wrap, swapped)
        new_out, new_lse = self.context.forward(q, k, v, layout="bhnd")
        self.same(new_out, heads_first(out))
        self.same(new_lse, lse)
        new_gradients = self.context.backward(q, k, v, wrap(new_out), wrap(new_lse), d_out, layout="bhnd")
        for found, wanted in zip(new_gradients, gradients):
            self.same(found, heads_first(wanted))

    def test_context(self):
        self.both_ways(*self.arrays)

    def test_without_batch(self):
        self.both_ways(*(array[0] for array in self.arrays))

    def test_arrays_of_other_libraries(self):
        self.both_ways(*self.arrays, wrap=Exported)

    def test_arrays_too_large_for_the_short_way(self):
        self.both_ways(*capi.numbers(4, *[(1, 4100, 4, 16)] * 4))

    def test_attention(self):
        q, k, v, _ = self.arrays
        wanted, lse = annulus.attention(q, k, v, CONFIG, return_lse=True)
        swapped = [array.swapaxes(1, 2) for array in (q, k, v)]  # strides alone
        for arrays in (swapped, [np.ascontiguousarray(array) for array in swapped]):
            out, found = annulus.attention(*arrays, CONFIG, return_lse=True, layout="bhnd")
            self.same(out, heads_first(wanted))
            self.same(found, lse)
        own = np.zeros_like(heads_first(wanted))
        self.assertIs(annulus.attention(*swapped, CONFIG, out=own, layout="bhnd"), own)
        self.same(own, heads_first(wanted))
        window = annulus.attention(swapped[0][:, :, 70:], *swapped[1:], CONFIG, query_start=70, layout="bhnd")
        self.same(window, heads_first(wanted[:, 70:]))

    def test_refusals(self):
        q, k, v, _ = self.arrays
        with self.assertRaisesRegex(annulus.ArgumentError, "layout is 'nhd'; it must be one of 'bnhd', 'bhnd'"):
            annulus.attention(q, k, v, CONFIG, layout="nhd")
        # Grouped heads without a layout: the number of heads is taken for the number of rows.
        swapped = [heads_first(array) for array in (q, k, v)]
        with self.assertRaisesRegex(annulus.ArgumentError, "q has 4 rows and k has 2;.*layout='bhnd'"):
            annulus.attention(*swapped, CONFIG)

    def test_warns_of_axes_that_look_mistaken(self):
        q = np.zeros((1, 8, 200, 8), np.float32)
        calls = [
            lambda **layout: annulus.attention(q, q, q, CONFIG, **layout),
            lambda **layout: self.context.forward(q, q, q, **layout),
            lambda **layout: self.context.backward(q, q, q, q, np.zeros((1, 200, 8), np.float32), q, **layout),
        ]
        if torch:
            t = torch.from_numpy(q)
            calls.append(lambda **layout: dilated_attention(t, t, t, CONFIG, **layout))
        for call in calls:
            with self.assertWarnsRegex(UserWarning, "taken for 8 positions with 200 heads.*layout='bhnd'") as caught:
                call()
            self.assertEqual(caught.filename, __file__)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                call(layout="bnhd")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            annulus.attention(q, q, q, CONFIG, layout="bhnd")
            few = np.zeros((1, 8, 64, 8), np.float32)
            annulus.attention(few, few, few, CONFIG)

    @unittest.skipUnless(torch, "needs PyTorch")
    def test_torch(self):
        def run(layout, *arrays):
            q, k, v = (torch.from_numpy(array).requires_grad_() for array in arrays[:3])
            out, lse = dilated_attention(q, k, v, CONFIG, return_lse=True, layout=layout)
            (out * torch.from_numpy(arrays[3])).sum().backward()
            return [x.detach().numpy() for x in (out, q.grad, k.grad, v.grad, lse)]

        *wanted, lse = run(None, *self.arrays)
        *found, new_lse = run("bhnd", *(heads_first(array) for array in self.arrays))
        for one, other in zip(found, wanted):
            self.same(one, heads_first(other))
        self.same(new_lse, lse)
        tensors = [torch.from_numpy(heads_first(array)) for array in self.arrays[:3]]
        self.same(annulus.attention(*tensors, CONFIG, layout="bhnd").numpy(), heads_first(wanted[0]))
        with self.assertRaisesRegex(annulus.ArgumentError, "q has 2 dimensions"):
            dilated_attention(tensors[0][0, 0], *tensors[1:], CONFIG, layout="bhnd")

    @unittest.skipUnless(torch, "needs PyTorch")
    def test_same_numbers_as_scaled_dot_product_attention(self):
        if not hasattr(torch.nn.functional, "scaled_dot_product_attention"):
            self.skipTest("needs PyTorch 2.0")
        q, k, v = (torch.from_numpy(heads_first(array)) for array in capi.numbers(5, *[(2, 40, 4, 16)] * 3))
        wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        torch.testing.assert_close(dilated_attention(q, k, v, [(0, 1)], causal=True, layout="bhnd"), wanted)


if __name__ == "__main__":
    tap.main()
