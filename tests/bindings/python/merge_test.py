# SPDX-License-Identifier: Apache-2.0
"""Merged results over different keys equal one call over all keys, in every library; gradients too."""

import unittest

import capi
import tap
from capi import np

import annulus

try:
    import torch
except ImportError:
    torch = None

NEAR, FAR = [(16, 1)], [annulus.Branch(0, 3, query="residue")]
SHAPE, LSE_SHAPE = (2, 50, 4, 16), (2, 4, 50)
Q, K, V, D_OUT = capi.numbers(3, SHAPE, SHAPE, SHAPE, SHAPE, dtype="float64")
D_LSE = capi.numbers(4, LSE_SHAPE, dtype="float64")[0]


def attend(branches, q=Q, k=K, v=V):
    return annulus.attention(q, k, v, branches, return_lse=True)


class MergeTest(unittest.TestCase):
    def test_equal_to_one_call(self):
        whole, whole_lse = attend(NEAR + FAR)
        out, lse = annulus.merge([attend(NEAR), attend(FAR)])
        np.testing.assert_allclose(out, whole, rtol=0, atol=1e-14)
        np.testing.assert_allclose(lse, whole_lse, rtol=0, atol=1e-14)

    def test_dtypes(self):
        for dtype, tolerance in (("float32", 1e-6), ("float16", 2e-3)):
            arrays = [x.astype(dtype) for x in (Q, K, V)]
            out, lse = annulus.merge([attend(NEAR, *arrays), attend(FAR, *arrays)])
            self.assertEqual((out.dtype, lse.dtype), (dtype, "float32"))
            np.testing.assert_allclose(out, attend(NEAR + FAR, *arrays)[0], rtol=0, atol=tolerance)

    def test_without_the_batch_and_in_place(self):
        near, far = (attend(branches, Q[0], K[0], V[0]) for branches in (NEAR, FAR))
        wanted = annulus.merge([near, far])
        self.assertEqual(wanted[0].shape, SHAPE[1:])
        out, lse = annulus.merge([near, far], out=near[0], lse=far[1])
        self.assertIs(out, near[0])
        self.assertIs(lse, far[1])
        np.testing.assert_array_equal(out, wanted[0])
        np.testing.assert_array_equal(lse, wanted[1])

    def test_a_part_without_keys_counts_for_nothing(self):
        near = attend(NEAR)
        none = np.full(SHAPE, np.nan), np.full(LSE_SHAPE, -np.inf)
        out, lse = annulus.merge([none, near])
        np.testing.assert_array_equal(out, near[0])
        np.testing.assert_array_equal(lse, near[1])
        out, lse = annulus.merge([none, none])
        self.assertTrue((out == 0).all() and (lse == -np.inf).all())

    def test_rows_without_keys_of_flash_attention(self):
        """FlashAttention's LSE of +inf acts as -inf."""
        near = attend([(16, 2)])  # half of the rows of a head
        self.assertTrue((near[1] == -np.inf).any())
        flash = np.where(near[1] == -np.inf, np.inf, near[1])
        self.assertTrue(np.isnan(annulus.merge([(near[0], flash), attend(FAR)])[1]).any())
        found = annulus.lse_of_flash_attention(flash)
        self.assertEqual((found.dtype, found.tobytes()), (near[1].dtype, near[1].tobytes()))
        for one, other in zip(annulus.merge([(near[0], found), attend(FAR)]), annulus.merge([near, attend(FAR)])):
            np.testing.assert_array_equal(one, other)
        if torch:
            tensor = annulus.lse_of_flash_attention(torch.from_numpy(flash).float())
            self.assertTrue(torch.equal(tensor, torch.from_numpy(near[1]).float()))

    def test_gradients_of_parts_add_up(self):
        whole, near, far = (annulus.Context(branches) for branches in (NEAR + FAR, NEAR, FAR))
        wanted = whole.backward(Q, K, V, *whole.forward(Q, K, V), D_OUT, d_lse=D_LSE)
        out, lse = near.merge([near.forward(Q, K, V), far.forward(Q, K, V)])
        parts = [context.backward(Q, K, V, out, lse, D_OUT, d_lse=D_LSE) for context in (near, far)]
        for gradients, one in zip(zip(*parts), wanted):
            np.testing.assert_allclose(sum(gradients), one, rtol=0, atol=1e-13)

    def test_refusals(self):
        near = attend(NEAR)
        many = [near] * 49
        for parts, words in (
            ([], r"parts has 0 pairs, \(out, lse\); it must have from 1 to 48"),
            ([near[0]], r"parts\[0\] is a ndarray"),
            ([near, near + near], r"parts\[1\] is a tuple"),
            (many, "parts has 49 pairs"),
            ([near, (near[0][:, :9], near[1])], r"^N of out of parts\[1\] is 9; it must be 50"),
            ([near, (near[0], near[1][0, 0])], r"lse of parts\[1\] has 1 dimensions"),
            ([near, (near[0], near[1].astype("float32"))], r"^lse of parts\[1\] has dtype float32; it must be float64$"),
        ):
            with self.assertRaisesRegex(annulus.ArgumentError, words):
                annulus.merge(parts)


@unittest.skipIf(torch is None, "needs PyTorch")
class TorchMergeTest(unittest.TestCase):
    def parts(self, empty_rows=True):
        generator = torch.Generator().manual_seed(5)
        outs = [torch.randn(2, 3, 2, 8, dtype=torch.float64, generator=generator) for _ in range(3)]
        lses = [torch.randn(2, 2, 3, dtype=torch.float64, generator=generator) for _ in range(3)]
        if empty_rows:
            lses[0][0, 0] = -torch.inf
            outs[0][0, :, 0] = torch.nan
            lses[1][0, 0, 1] = lses[2][0, 0, 1] = -torch.inf  # the row has no keys at all
        return [tensor.requires_grad_() for tensor in outs + lses]

    @staticmethod
    def merge(*tensors):
        half = len(tensors) // 2
        return annulus.torch.merge(zip(tensors[:half], tensors[half:]))

    def test_gradcheck(self):
        self.assertTrue(torch.autograd.gradcheck(self.merge, self.parts(empty_rows=False)))
        self.assertTrue(torch.autograd.gradgradcheck(self.merge, self.parts(empty_rows=False)))

    def test_rows_without_keys_have_no_gradient(self):
        tensors = self.parts()
        out, lse = self.merge(*tensors)
        finite = torch.where(torch.isinf(lse), torch.zeros_like(lse), lse)
        gradients = torch.autograd.grad(out.sum() + finite.sum(), tensors)
        self.assertTrue(all(torch.isfinite(gradient).all() for gradient in gradients))
        self.assertTrue((gradients[0][0, :, 0] == 0).all() and (gradients[3][0, 0] == 0).all())
        self.assertTrue((gradients[1][0, 1, 0] == 0).all())
        self.assertTrue((gradients[1][1] != 0).all())

    def test_gradient_through_attention(self):
        def gradients(attend):
            q, k, v = (torch.from_numpy(x).requires_grad_() for x in (Q, K, V))
            out, lse = attend(q, k, v)
            loss = (out * torch.from_numpy(D_OUT)).sum() + (lse * torch.from_numpy(D_LSE)).sum()
            return torch.autograd.grad(loss, (q, k, v))

        def together(q, k, v):
            return annulus.torch.dilated_attention(q, k, v, NEAR + FAR, return_lse=True)

        def apart(q, k, v):
            parts = [annulus.torch.dilated_attention(q, k, v, branches, return_lse=True) for branches in (NEAR, FAR)]
            return annulus.torch.merge(parts)

        for got, wanted in zip(gradients(apart), gradients(together)):
            torch.testing.assert_close(got, wanted, rtol=0, atol=1e-12)

    def test_half_precision(self):
        outs = [torch.randn(1, 5, 2, 8).bfloat16().requires_grad_() for _ in range(2)]
        lses = [torch.randn(1, 2, 5).requires_grad_() for _ in range(2)]
        out, lse = annulus.torch.merge(zip(outs, lses))
        self.assertEqual((out.dtype, lse.dtype), (torch.bfloat16, torch.float32))
        out.float().sum().backward()
        weights = torch.stack([tensor.detach() for tensor in lses]).softmax(0).transpose(-1, -2)[..., None]
        for part, weight in zip(outs, weights):
            torch.testing.assert_close(part.grad.float(), weight.expand(part.shape), rtol=2**-8, atol=1e-6)

    def test_refusals(self):
        """Refusals have the messages of annulus.merge()."""
        out, lse = torch.zeros(1, 3, 2, 8), torch.zeros(1, 2, 3)
        for parts, words in (
            ([], "parts has 0 pairs"),
            ([(out, lse), (out[:, :2], lse)], r"^N of out of parts\[1\] is 2"),
        ):
            with self.assertRaisesRegex(annulus.ArgumentError, words):
                annulus.torch.merge(parts)
        with self.assertRaisesRegex(TypeError, r"lse of parts\[1\] is a ndarray"):
            annulus.torch.merge([(out, lse), (out, np.zeros((1, 2, 3), "float32"))])


if __name__ == "__main__":
    tap.main()
