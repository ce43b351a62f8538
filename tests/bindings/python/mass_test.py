# SPDX-License-Identifier: Apache-2.0
"""The attention mass of keys equals sums of probabilities that this file computes: in every library, with windows,
sequences and several ranks."""

import unittest

import capi
import tap
from capi import np
from threads import together

import annulus

try:
    import torch

    import annulus.torch
except ImportError:
    torch = None

BRANCHES = [(16, 1), annulus.Branch(0, 3, query="residue")]
BATCH, LENGTH, HEADS, KV_HEADS, DIM = 2, 50, 4, 2, 16
Q, K, V = capi.numbers(
    3,
    (BATCH, LENGTH, HEADS, DIM),
    (BATCH, LENGTH, KV_HEADS, DIM),
    (BATCH, LENGTH, KV_HEADS, DIM),
    dtype="float64",
)


def counts(length, causal):
    """Returns how often query n reaches key m by BRANCHES, [n, m], in a sequence of `length` positions."""
    n, m = np.indices((length, length))
    found = (n // 16 == m // 16).astype(int) + (n % 3 == m % 3)
    return np.where(causal & (m > n), 0, found)


def mass_of(q, k, start=0, causal=False):
    """Computes the masses by the definition. q's rows are the positions from `start` on."""
    keys = np.repeat(k, q.shape[2] // k.shape[2], axis=2)
    weights = np.exp(np.einsum("bnhd,bmhd->bhnm", q, keys) / np.sqrt(q.shape[3]))
    weights = weights * counts(k.shape[1], causal)[start : start + q.shape[1]]
    return (weights / weights.sum(-1, keepdims=True)).sum(-2)


def equal(mass, wanted, tolerance=1e-12):
    np.testing.assert_allclose(np.asarray(mass), wanted, rtol=tolerance, atol=tolerance)


class MassTest(unittest.TestCase):
    def test_is_the_sum_of_probabilities(self):
        for causal in (False, True):
            _, lse = annulus.attention(Q, K, V, BRANCHES, causal=causal, return_lse=True)
            mass = annulus.attention_mass(Q, K, BRANCHES, causal=causal, lse=lse)
            self.assertEqual((mass.shape, mass.dtype), ((BATCH, HEADS, LENGTH), "float64"))
            equal(mass, mass_of(Q, K, causal=causal))
            equal(mass.sum(-1), np.full((BATCH, HEADS), LENGTH))
            np.testing.assert_array_equal(annulus.attention_mass(Q, K, BRANCHES, causal=causal), mass)

    def test_dtypes_and_layouts(self):
        for dtype, tolerance in (("float32", 1e-5), ("float16", 4e-3)):
            q, k = Q.astype(dtype), K.astype(dtype)
            mass = annulus.attention_mass(q, k, BRANCHES)
            self.assertEqual(mass.dtype, "float32")
            equal(mass, mass_of(q.astype("float64"), k.astype("float64")), tolerance)
        exchanged = (np.ascontiguousarray(x.swapaxes(1, 2)) for x in (Q, K))
        equal(annulus.attention_mass(*exchanged, BRANCHES, layout="bhnd"), mass_of(Q, K))
        equal(annulus.attention_mass(Q[0], K[0], BRANCHES), mass_of(Q, K)[0])

    def test_of_chosen_queries(self):
        for start, rows in ((0, 1), (7, 1), (20, 25)):
            q = Q[:, start : start + rows]
            equal(annulus.attention_mass(q, K, BRANCHES, query_start=start), mass_of(q, K, start))

    def test_of_sequences(self):
        wanted = np.zeros((BATCH, HEADS, LENGTH))
        for begin, end in ((3, 20), (20, 48)):
            wanted[:, :, begin:end] = mass_of(Q[:, begin:end], K[:, begin:end])
        equal(annulus.attention_mass(Q, K, BRANCHES, sequence_starts=[3, 20, 48]), wanted)
        wanted = np.zeros((BATCH, HEADS, LENGTH))
        wanted[:1, :, :31] = mass_of(Q[:1, :31], K[:1, :31])
        equal(annulus.attention_mass(Q, K, BRANCHES, sequence_lengths=[31, 0]), wanted)

    def test_into_an_array(self):
        mass = np.full((BATCH, LENGTH, HEADS), np.nan)
        context = annulus.Context(BRANCHES)
        _, lse = context.forward(Q, K, V)
        size = context.workspace_size(LENGTH, HEADS, DIM, kv_heads=KV_HEADS, batch=BATCH, dtype="float64", pass_="mass")
        self.assertGreater(size, Q.nbytes + K.nbytes)
        memory = np.empty(-(-size // 8))
        context.set_workspace(memory)
        view = mass.swapaxes(1, 2)
        self.assertIs(context.attention_mass(Q, K, lse, mass=view), view)
        equal(mass, mass_of(Q, K).swapaxes(1, 2))
        context.set_workspace(memory[:-40])
        with self.assertRaises(annulus.WorkspaceError):
            context.attention_mass(Q, K, lse)

    def test_of_ranks(self):
        lengths = (29, 0, 21)
        masses = [None] * len(lengths)

        def work(end):
            start = sum(lengths[: end.rank])
            q, k = (x[:, start : start + lengths[end.rank]] for x in (Q, K))
            masses[end.rank] = annulus.Context(BRANCHES, comm=end).attention_mass(q, k)

        together(annulus.Comm.local(len(lengths)), work)
        equal(np.concatenate(masses, -1), mass_of(Q, K))

    def test_refusals(self):
        _, lse = annulus.attention(Q, K, V, BRANCHES, return_lse=True)
        for arguments, options, words in (
            ((Q, K[:, :9], BRANCHES), {}, "q has 50 rows and k has 9"),
            ((Q, K, BRANCHES), {"lse": lse.astype("float32")}, "lse has dtype float32; it must be float64"),
            ((Q, K, BRANCHES), {"lse": lse, "mass": np.empty((2, 4, 9))}, "N of mass is 9"),
            ((Q, K, BRANCHES), {"is_causal": True}, "use causal="),
            ((Q, K, annulus.Config(BRANCHES)), {"causal": True}, "causal beside a config"),
        ):
            with self.assertRaisesRegex(annulus.ArgumentError, words):
                annulus.attention_mass(*arguments, **options)


@unittest.skipIf(torch is None, "PyTorch is not there")
class TorchMassTest(unittest.TestCase):
    def test_is_that_of_numpy(self):
        q, k, v = (torch.from_numpy(x).requires_grad_() for x in (Q, K, V))
        _, lse = annulus.torch.dilated_attention(q, k, v, BRANCHES, return_lse=True)
        for given in (lse, None):
            mass = annulus.torch.attention_mass(q, k, BRANCHES, lse=given)
            self.assertFalse(mass.requires_grad)
            equal(mass, mass_of(Q, K))
        transposed = q.transpose(1, 2), k.transpose(1, 2)
        equal(annulus.torch.attention_mass(*transposed, BRANCHES, layout="bhnd"), mass_of(Q, K))
        one = annulus.torch.attention_mass(q[:, 9:10], k, BRANCHES, query_start=9)
        equal(one, mass_of(Q[:, 9:10], K, 9))
        equal(annulus.attention_mass(q.detach(), k.detach(), BRANCHES), mass_of(Q, K))

    def test_bfloat16_and_autocast(self):
        q, k = (torch.from_numpy(x).bfloat16() for x in (Q, K))
        wanted = mass_of(q.double().numpy(), k.double().numpy())
        mass = annulus.torch.attention_mass(q, k, BRANCHES)
        self.assertEqual(mass.dtype, torch.float32)
        equal(mass, wanted, 2e-2)
        with torch.autocast("cpu", torch.bfloat16):
            equal(annulus.torch.attention_mass(q.float(), k.float(), BRANCHES), wanted, 2e-2)

    def test_refusals(self):
        q, k = torch.from_numpy(Q), torch.from_numpy(K)
        with self.assertRaisesRegex(TypeError, "k is a ndarray"):
            annulus.torch.attention_mass(q, K, BRANCHES)
        with self.assertRaisesRegex(annulus.ArgumentError, "needs process_group"):
            annulus.torch.attention_mass(q, k, BRANCHES, shards=[25, 25])


if __name__ == "__main__":
    tap.main()
