# SPDX-License-Identifier: Apache-2.0
"""Communicators: ranks as threads compute the same as one rank; refusals."""

import gc
import threading
import unittest

import capi
import tap
from capi import np
from threads import together

import annulus

SHAPE, KV_SHAPE = (2, 96, 4, 16), (2, 96, 2, 16)
ARRAYS = capi.numbers(11, SHAPE, KV_SHAPE, KV_SHAPE, SHAPE, dtype="float64")


class CommTest(unittest.TestCase):
    def test_ranks_as_threads_equal_one_rank(self):
        for exchange in ("ring", "gather"):
            for lengths in ([32, 32, 32], [40, 0, 56]):
                for shards in (None, lengths):
                    with self.subTest(exchange=exchange, lengths=lengths, shards=shards):
                        config = annulus.Config([(16, 1), (96, 4)], causal=True, exchange=exchange)
                        self.compare(config, lengths, shards)

    def test_longformer_on_ranks_equals_one_rank(self):
        for exchange in ("ring", "gather"):
            for lengths in ([33, 31, 32], [1, 0, 95]):
                with self.subTest(exchange=exchange, lengths=lengths):
                    self.compare(annulus.Config.longformer(7, global_tokens=3, exchange=exchange), lengths, None)

    def test_ranks_with_several_shards_equal_one_rank(self):
        for config in (annulus.Config([(16, 1), (96, 4)], causal=True), annulus.Config.longformer(9, global_tokens=5)):
            self.compare_shards(config)

    def compare_shards(self, config):
        q, k, v, d_out = ARRAYS
        context = annulus.Context(config)
        out, lse = context.forward(q, k, v)
        wanted = [out, lse, *context.backward(q, k, v, out, lse, d_out)]
        for shards in (annulus.Shards.zigzag(96, 3), annulus.Shards([40, 0, 7, 30, 19], [2, 0, 0, 2, 1])):
            with self.subTest(shards=shards, config=config):
                found = [None] * 3

                def work(end):
                    mine = [shards.cut(array, end.rank) for array in ARRAYS]
                    self.assertEqual(mine[0].shape[1], shards.rows(end.rank))
                    context = annulus.Context(config, comm=end, shards=shards)
                    out, lse = context.forward(*mine[:3])
                    found[end.rank] = [out, lse, *context.backward(*mine[:3], out, lse, mine[3])]
                    traffic = context.last_traffic
                    share = context.estimate_rank(
                        96, 4, 16, pass_="backward", kv_heads=2, batch=2, dtype="float64", ranks=3, rank=end.rank,
                        shards=shards,
                    )
                    self.assertEqual(traffic.sent_bytes, share.sent_bytes)
                    own = context.estimate(96, 4, 16, pass_="backward", kv_heads=2, batch=2, dtype="float64")
                    self.assertEqual(own, share)

                together(annulus.Comm.local(3), work)
                for i, one in enumerate(wanted):
                    joined = shards.join([parts[i] for parts in found], axis=2 if i == 1 else 1)
                    np.testing.assert_allclose(joined, one, rtol=1e-10, atol=1e-12)

    def test_messages_of_an_estimate(self):
        """A shard gets a message from each shard whose keys it attends to, also from a shard of its own rank."""
        for causal, shards, counts in (
            (False, annulus.Shards([24, 24, 24, 24]), [3, 3, 3, 3]),
            (True, annulus.Shards([24, 24, 24, 24]), [0, 1, 2, 3]),
            (True, annulus.Shards.zigzag(96, 2), [2, 1]),  # the shards of rank 1 are neighbours, and count as one
        ):
            context = annulus.Context(annulus.Config([(0, 1)], causal=causal, exchange="ring"))
            for rank, count in enumerate(counts):
                for pass_ in ("forward", "backward"):
                    with self.subTest(causal=causal, shards=shards, rank=rank, pass_=pass_):
                        options = {"pass_": pass_, "ranks": len(counts), "rank": rank, "shards": shards}
                        self.assertEqual(context.estimate_rank(96, 2, 8, **options).received_messages, count)
        self.assertEqual(context.estimate(96, 2, 8).received_messages, 0)

    def test_shards(self):
        shards = annulus.Shards.zigzag(11, 2)
        self.assertEqual((shards.lengths, shards.owners), ((3, 3, 3, 2), (0, 1, 1, 0)))
        self.assertEqual(shards.slices(0), [slice(0, 3), slice(9, 11)])
        self.assertEqual((shards.rows(0), shards.rows(1), shards.length), (5, 6, 11))
        self.assertEqual(shards, annulus.Shards([3, 3, 3, 2], [0, 1, 1, 0]))
        self.assertEqual(repr(shards), "annulus.Shards([3, 3, 3, 2], owners=[0, 1, 1, 0])")
        balanced = annulus.Shards.balanced
        for branches, causal, best in (
            ([(0, 1)], True, annulus.Shards.zigzag),
            ([(0, 1)], False, annulus.Shards.even),
            ([(64, 1), (1024, 16)], True, annulus.Shards.even),
        ):
            config = annulus.Config(branches, causal=causal)
            positions, found = np.arange(1001)[None], balanced(config, 1001, 3, 2)
            for rank in range(3):
                np.testing.assert_array_equal(found.cut(positions, rank), best(1001, 3).cut(positions, rank))
        # Two long documents and short ones: each rank has a long one, and the first short one fills both up.
        starts = np.cumsum([0, 601, 499, 101, 63, 301, 237, 300, 201])
        packed = balanced(annulus.Config([(0, 1)], causal=True), starts[-1], 2, 2, sequence_starts=starts)
        self.assertEqual((packed.rows(0), packed.rows(1)), (1152, 1151))
        first, second = (packed.owners[np.searchsorted(np.cumsum(packed.lengths), row, "right")] for row in (0, 601))
        self.assertNotEqual(first, second)
        self.assertEqual(np.intersect1d(starts, np.cumsum(packed.lengths)).size, len(packed.lengths) - 1)
        padded = balanced(annulus.Config([(0, 1)], causal=True), 1001, 2, 2, sequence_lengths=[1001, 0, 300])
        self.assertEqual(padded.length, 1001)
        self.assertEqual(repr(annulus.Shards.even(11, 2)), "annulus.Shards([6, 5])")
        self.assertEqual(annulus.Shards.zigzag(1000, np.uint8(200)), annulus.Shards.zigzag(1000, 200))
        whole = np.arange(22).reshape(1, 11, 2)
        np.testing.assert_array_equal(shards.cut(whole, 0)[0, :, 0], [0, 2, 4, 18, 20])
        np.testing.assert_array_equal(shards.join([shards.cut(whole, rank) for rank in range(2)]), whole)
        self.assertEqual(shards.cut(whole, 2).shape, (1, 0, 2))
        for message, make in {
            r"owners has 1 ranks; there are 2 lengths": lambda: annulus.Shards([1, 2], [0]),
            r"lengths\[1\] is -2; it must be at least 0": lambda: annulus.Shards([1, -2]),
            r"owners\[0\] is -1; it must be at least 0": lambda: annulus.Shards([1], [-1]),
            r"ranks is 0; it must be from 1 to 4096": lambda: balanced([(0, 1)], 4, 0),
            r"length is 0; it must be at least 1": lambda: balanced([(0, 1)], 0, 2),
            r"sequence_lengths is 3; it must be a list of int": lambda: balanced([(0, 1)], 4, 2, sequence_lengths=3),
            r"ranks 0; they must be at least 0 and 1": lambda: annulus.Shards.even(4, 0),
            r"length is 4 and ranks -1; they must be at least 0 and 1": lambda: annulus.Shards.zigzag(4, -1),
            r"rank is -1; it must be at least 0": lambda: shards.rows(-1),
            r"axis is 9; array has 3 dimensions": lambda: shards.cut(whole, 0, 9),
            r"axis is -4; parts\[0\] has 3 dimensions": lambda: shards.join([whole, whole], -4),
            r"array has 10 rows along axis 1; the shards have 11": lambda: shards.cut(whole[:, 1:], 0),
            r"parts\[0\] has 6 rows along axis 1; rank 0 holds 5": lambda: shards.join([whole[:, :6], whole[:, 6:]]),
            r"parts has 1 arrays; there is a shard of rank 1": lambda: shards.join([whole[:, :5]]),
        }.items():
            with self.assertRaisesRegex(annulus.ArgumentError, message):
                make()

    def compare(self, config, lengths, shards):
        q, k, v, d_out = ARRAYS
        context = annulus.Context(config)
        out, lse = context.forward(q, k, v)
        wanted = [out, lse, *context.backward(q, k, v, out, lse, d_out)]
        found = [np.full_like(array, np.nan) for array in wanted]
        starts = np.cumsum([0, *lengths])

        def work(end):
            rows = slice(starts[end.rank], starts[end.rank + 1])
            mine = [array[:, rows] for array in ARRAYS]
            context = annulus.Context(config, comm=end, shards=shards)
            out, lse = context.forward(*mine[:3])
            found[0][:, rows], found[1][..., rows] = out, lse
            self.assertGreater(context.last_traffic.received_bytes + context.last_traffic.sent_bytes, -1)
            gradients = context.backward(*mine[:3], out, lse, mine[3])
            for array, gradient in zip(found[2:], gradients):
                array[:, rows] = gradient

        together(annulus.Comm.local(3), work)
        for one, other in zip(found, wanted):
            np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12)

    def test_one_rank_is_no_rank(self):
        (end,) = annulus.Comm.local(1)
        self.assertEqual((end.rank, end.size, end.kind), (0, 1, "local"))
        found = annulus.Context([(16, 1)], comm=end).forward(*ARRAYS[:3])[0]
        self.assertEqual(found.tobytes(), annulus.attention(*ARRAYS[:3], [(16, 1)]).tobytes())

    def test_ends(self):
        ends = annulus.Comm.local(4)
        self.assertEqual([(end.rank, end.size) for end in ends], [(i, 4) for i in range(4)])
        self.assertEqual(repr(ends[2]), "<annulus.Comm local rank 2 of 4>")

    def test_mpi(self):
        """Uses a communicator of this process alone. The tests of the ring cover several processes."""
        try:
            from mpi4py import MPI
        except ImportError:
            self.skipTest("needs mpi4py")
        try:
            end = annulus.Comm.mpi(MPI.COMM_SELF)
        except annulus.UnsupportedError:
            self.skipTest("needs annulus with MPI")
        with self.assertRaisesRegex(annulus.ArgumentError, "communicator is 'x'; it must be one of mpi4py"):
            annulus.Comm.mpi("x")
        self.assertEqual((end.rank, end.size, end.kind), (0, 1, "mpi"))
        found = annulus.Context([(16, 1)], comm=end).forward(*ARRAYS[:3])[0]
        self.assertEqual(found.tobytes(), annulus.attention(*ARRAYS[:3], [(16, 1)]).tobytes())

    def test_an_aborted_communicator(self):
        ends = annulus.Comm.local(2)
        context = annulus.Context([(16, 1)], comm=ends[0])
        self.assertIsNone(ends[0].failure)
        threading.Timer(0.2, ends[1].abort).start()
        with self.assertRaises(annulus.CommError) as caught:
            context.forward(*ARRAYS[:3])
        self.assertEqual((caught.exception.name, caught.exception.status), ("comm", 101))
        self.assertEqual((caught.exception.library, caught.exception.code), ("", 0))
        for end in ends:
            self.assertIsInstance(end.failure, annulus.CommError)
            self.assertEqual(str(end.failure), str(caught.exception))

    def test_a_rank_that_declines(self):
        """The other rank learns why, and the communicator stays usable."""
        config = annulus.Config([(16, 1)])

        def work(end):
            context = annulus.Context(config, comm=end)
            if end.rank == 1:
                context.set_workspace(np.empty(1))
            with self.assertRaises(annulus.WorkspaceError if end.rank == 1 else annulus.DeclinedError) as caught:
                context.forward(*ARRAYS[:3])
            self.assertIn("the workspace has 8 bytes", str(caught.exception))
            context.set_workspace(None)
            self.assertIsNone(end.failure)
            context.forward(*ARRAYS[:3])

        together(annulus.Comm.local(2), work)

    def test_a_context_keeps_its_communicator(self):
        ends = annulus.Comm.local(1)
        context = annulus.Context([(16, 1)], comm=ends.pop())
        gc.collect()
        context.forward(*ARRAYS[:3])

    def test_refusals(self):
        (end,) = annulus.Comm.local(1)
        cases = [
            (annulus.ArgumentError, "ranks is 5000", lambda: annulus.Comm.local(5000)),
            (annulus.ArgumentError, "seconds", lambda: end.set_timeout(0)),
            (
                annulus.ArgumentError,
                "shards has 2 lengths",
                lambda: annulus.Context([(16, 1)], comm=end, shards=[1, 2]),
            ),
            (annulus.ArgumentError, "address is 0; it must not be", lambda: annulus.Comm.from_nccl(0)),
            (annulus.ArgumentError, "communicator is 0; it must not be", lambda: annulus.Comm.mpi(0)),
        ]
        words = {
            "ranks is -1; it must be at least 1": lambda: annulus.Comm.local(-1),
            "ranks is '2'; it must be an int": lambda: annulus.Comm.local("2"),
            "ranks is 1099511627776; it does not fit": lambda: annulus.Comm.local(2**40),
            "seconds is 'x'; it must be a number": lambda: end.set_timeout("x"),
            "seconds is None; it must be a number": lambda: end.set_timeout(None),
            "id is b'short'; it must be the 128 bytes": lambda: annulus.Comm.from_nccl_id(b"short", 2, 0, 0),
            "rank is None; it must be an int": lambda: annulus.Comm.from_nccl_id(bytes(128), 2, None, 0),
            r"devices\[1\] is 'a'; it must be an int": lambda: annulus.Comm.nccl_devices([0, "a"]),
            "devices is None; it must be a list": lambda: annulus.Comm.nccl_devices(None),
            "ranks is 0; it must be at least 1": lambda: annulus.Comm.nccl_devices([]),
            "creation_timeout is 0; it must be above 0": lambda: annulus.Comm.nccl_devices(1, creation_timeout=0),
            "creation_timeout is -1; it": lambda: annulus.Comm.nccl_devices(1, creation_timeout=-1),
            "creation_timeout is inf": lambda: annulus.Comm.from_nccl_id(
                bytes(128), 2, 0, 0, creation_timeout=float("inf")
            ),
            "creation_timeout is 'x'; it must be a number": lambda: annulus.Comm.nccl_devices(1, creation_timeout="x"),
            "may_abort is 'x'": lambda: annulus.Comm.from_nccl(8, may_abort="x"),
            "only_nccl is 2; it must be": lambda: annulus.Comm.nccl_devices(1, only_nccl=2),
            "only_nccl is 'x'; it must be": lambda: annulus.Comm.from_nccl_id(bytes(128), 2, 0, 0, only_nccl="x"),
            "only_nccl is None; it must be": lambda: annulus.Comm.from_nccl(8, only_nccl=None),
            "address is 'x'; it must be an int": lambda: annulus.Comm.from_nccl("x"),
        }
        cases += [(annulus.ArgumentError, *case) for case in words.items()]
        if not annulus.device_count("cuda"):
            cases += [
                (annulus.UnsupportedError, "", lambda: annulus.Comm.from_nccl_id(bytes(128), 2, 0, 0)),
                (annulus.UnsupportedError, "", lambda: annulus.Comm.nccl_devices(2)),
                (annulus.UnsupportedError, "", lambda: annulus.Comm.nccl_devices(2, only_nccl=True)),
            ]
        for error, words, call in cases:
            with self.subTest(words), self.assertRaisesRegex(error, words):
                call()


if __name__ == "__main__":
    tap.main()
