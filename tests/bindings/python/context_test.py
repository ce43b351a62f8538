# SPDX-License-Identifier: Apache-2.0
"""Contexts: memory, threads, Ctrl-C, estimates, refusals."""

import copy
import gc
import os
import pickle
import subprocess
import sys
import threading
import unittest
from unittest import mock
import weakref

import capi
import tap
from capi import np
from threads import together

import annulus
from annulus import _arrays, _cache

SHAPE = (1, 64, 2, 16)
Q, K, V, D_OUT = capi.numbers(5, SHAPE, SHAPE, SHAPE, SHAPE)

# Interrupts the main thread in a call that takes minutes at least. The library works afterwards.
INTERRUPTED = """
engine = %r
import annulus, numpy, os, signal, threading
q = numpy.zeros((1, 1000000, 1, 8), "float32")
threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    annulus.attention(q, q, q, [(0, 1)], engine=engine)
except KeyboardInterrupt:
    small = q[:, :64]
    annulus.attention(small, small, small, [(0, 1)], engine=engine)
    print("interrupted")
"""

INTERRUPTED_RANK = """
import annulus, numpy, os, signal, threading
q = numpy.zeros((1, 64, 2, 64), "float32")
ends = annulus.Comm.local(2)
threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    annulus.Context([(0, 1)], comm=ends[0]).forward(q, q, q)
except KeyboardInterrupt:
    try:
        annulus.Context([(0, 1)], comm=ends[1]).forward(q, q, q)
    except annulus.CommError as error:
        print(error.name)
"""

LEFT_ALONE = """
engine = %r
import annulus, numpy, threading, time
q = numpy.zeros((1, 1000000, 1, 8), "float32")
threading.Thread(target=lambda: annulus.attention(q, q, q, [(0, 1)], engine=engine), daemon=True).start()
time.sleep(0.5)
"""

# Forks a process while another thread computes.
FORKED = """
import annulus, numpy, os, signal, threading, time, warnings
warnings.simplefilter("ignore")
q = numpy.zeros((1, 1000000, 1, 8), "float32")
small = q[:, :64]
busy, idle = annulus.Context([(0, 1)]), annulus.Context([(0, 1)])
threading.Thread(target=lambda: busy.forward(q, q, q), daemon=True).start()
time.sleep(0.5)
child = os.fork()
if child:
    os.waitpid(child, 0)
else:
    signal.alarm(60)
    idle.forward(small, small, small)
    try:
        busy.forward(small, small, small)
    except annulus.ArgumentError as error:
        print("forked" in str(error))
"""

# Calls from a handler of atexit that runs after annulus's own, and from __del__ after all handlers.
ENDING = """
import atexit, builtins

class Last:
    def __del__(self):
        compute_all("del")

atexit.register(lambda: compute_all("atexit"))
builtins.last = Last()

import numpy
import annulus
try:
    import torch, annulus.torch
except ImportError:
    torch = None

q = numpy.zeros((1, 64, 2, 8), "float32")
large = numpy.zeros((1, 64, 64, 64), "float32")
config = annulus.Config([(16, 1)])
context, end = annulus.Context(config), annulus.Comm.local(1)[0]
out, lse = context.forward(q, q, q)
calls = {
    "forward": lambda: context.forward(q, q, q),
    "backward": lambda: context.backward(q, q, q, out, lse, out),
    "attention": lambda: annulus.attention(q, q, q, config),
    "new context": lambda: annulus.attention(q, q, q, [(8, 1)]),
    "large": lambda: annulus.attention(large, large, large, config),
    "mass": lambda: annulus.attention_mass(q, q, config),
    "merge": lambda: annulus.merge([(out, lse), (out, lse)]),
    "estimate": lambda: context.estimate(64, 2, 8),
    "repr": lambda: repr(context),
    "comm": lambda: end.rank,
}
if torch:
    t = torch.from_numpy(q)
    calls["torch"] = lambda: annulus.torch.dilated_attention(t, t, t, config)
for call in calls.values():
    call()

def compute_all(when):
    for name, call in calls.items():
        try:
            print(when, name, type(call()))
        except annulus.UnsupportedError as error:
            if "the Python interpreter is ending" not in str(error):
                print(when, name, error)
    print(when)
"""

# A process that may start no thread, as with `ulimit -u`.
WITHOUT_THREADS = """
import annulus, numpy, threading

def refuse(*arguments, **options):
    raise RuntimeError("can't start new thread")

threading._start_new_thread = threading._start_joinable_thread = refuse
q = numpy.random.default_rng(1).standard_normal((1, 64, 64, 64), numpy.float32)
large = annulus.attention(q, q, q, [(16, 1)])
print(numpy.array_equal(large[:, :16], annulus.attention(*[q[:, :16]] * 3, [(16, 1)])))
"""


def resident_bytes():
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class ContextTest(unittest.TestCase):
    def growth(self, cycle):
        """Returns how many bytes the process grows by in 1000 cycles, after a few for warming up."""
        for _ in range(200):
            cycle()
        gc.collect()
        before = resident_bytes()
        for _ in range(1000):
            cycle()
        gc.collect()
        return resident_bytes() - before

    def test_memory_of_contexts(self):
        def cycle():
            config = annulus.Config([(16, 1), (64, 4)], causal=True)
            context = annulus.Context(config, threads=1)
            out, lse = context.forward(Q, K, V)
            context.backward(Q, K, V, out, lse, D_OUT)

        self.assertLess(self.growth(cycle), 2 << 20)

    def test_memory_of_calls_and_failures(self):
        def cycle():
            annulus.attention(Q, K, V, [(16, 1)], return_lse=True)
            with self.assertRaises(annulus.Error):
                annulus.attention(Q, K, V[:, :1], [(16, 1)])
            with self.assertRaises(annulus.Error):
                annulus.Config([(0, 0)])

        self.assertLess(self.growth(cycle), 2 << 20)

    def test_memory_of_configs_that_differ(self):
        lengths = iter(range(1, 10000))

        def cycle():
            annulus.attention(Q, K, V, [(next(lengths), 1)])

        self.assertLess(self.growth(cycle), 2 << 20)

    def test_contexts_live_as_long_as_their_configs(self):
        """The cache keeps any number of contexts, so a training loop over many layers makes each once."""
        configs = [annulus.Config([(16, 1), (0, i)]) for i in range(1, 301)]
        made = []
        make = annulus.Context.__init__

        def count(context, config, *arguments, **options):
            made.append(weakref.ref(context))
            make(context, config, *arguments, **options)

        with mock.patch.object(annulus.Context, "__init__", count):
            for _ in range(3):
                for config in configs:
                    annulus.attention(Q, K, V, config)
            self.assertEqual(len(made), len(configs))
            self.assertTrue(all(context() is not None for context in made))
            for branches in ([(16, 3)], [[16, 3]], [{"segment_length": 16, "dilation": 3}], [annulus.Branch(16, 3)]):
                for _ in range(3):
                    annulus.attention(Q, K, V, branches)
            self.assertLessEqual(len(made), len(configs) + 4)
        del configs, config
        gc.collect()
        self.assertTrue(all(context() is None for context in made[:300]))

    def test_the_gil_is_released(self):
        """Ranks wait for one another inside their calls. If a call held the GIL, the other rank could not call."""
        results = {}

        def work(end):
            context = annulus.Context([(0, 1)], comm=end)
            rows = slice(end.rank, end.rank + 1)
            results[end.rank] = context.forward(Q[:, rows], K[:, rows], V[:, rows])[0]

        together(annulus.Comm.local(3), work)
        self.assertEqual(sorted(results), [0, 1, 2])

    def test_threads_that_share_a_context(self):
        wanted = annulus.attention(Q, K, V, [(16, 1)])
        context = annulus.Context([(16, 1)])
        wrong = []

        def work():
            for _ in range(50):
                shared, own = context.forward(Q, K, V)[0], annulus.attention(Q, K, V, [(16, 1)])
                if shared.tobytes() != wanted.tobytes() or own.tobytes() != wanted.tobytes():
                    wrong.append(1)

        workers = [threading.Thread(target=work) for _ in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        self.assertEqual(wrong, [])

    def test_messages_belong_to_their_threads(self):
        found = {}

        def work(dilation):
            for _ in range(100):
                try:
                    annulus.Config([(16, dilation)])
                except annulus.ArgumentError as error:
                    found.setdefault(dilation, set()).add(str(error))

        workers = [threading.Thread(target=work, args=(dilation,)) for dilation in (0, -1, -2, -3)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        self.assertEqual(found, {d: {f"dilation is {d}; it must be at least 1"} for d in (0, -1, -2, -3)})

    def assert_prints(self, script, printed):
        process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
        self.assertEqual((process.returncode, process.stdout, process.stderr), (0, printed, ""))

    def test_ctrl_c(self):
        for engine in ("reference", "cpu"):
            with self.subTest(engine):
                self.assert_prints(INTERRUPTED % engine, "interrupted\n")

    def test_a_context_that_was_left_serves_no_other_call(self):
        q = np.zeros((1, 64, 64, 64), "float32")  # the shortest call that can be interrupted
        config = annulus.Config([(16, 1)])
        wanted = annulus.attention(q, q, q, config)
        before = _cache.cached_context(config, _arrays.CPU)
        with mock.patch.object(threading.Thread, "join", side_effect=KeyboardInterrupt):
            with mock.patch.object(threading.Thread, "is_alive", return_value=True):
                with self.assertRaises(KeyboardInterrupt):
                    annulus.attention(q, q, q, config)
        # The worker may not have begun yet, so whether the context is in use says nothing.
        after = _cache.cached_context(config, _arrays.CPU)
        self.assertIsNot(after, before)
        self.assertEqual(annulus.attention(q, q, q, config).tobytes(), wanted.tobytes())
        self.assertIs(_cache.cached_context(config, _arrays.CPU), after)

    def test_ctrl_c_while_waiting_for_a_rank(self):
        self.assert_prints(INTERRUPTED_RANK, "comm\n")

    def test_exit_while_a_thread_computes(self):
        for engine in ("reference", "cpu"):
            with self.subTest(engine):
                self.assert_prints(LEFT_ALONE % engine, "")

    def test_calls_while_the_interpreter_ends(self):
        self.assert_prints(ENDING, "atexit\ndel\n")

    def test_large_calls_where_no_thread_can_be_started(self):
        self.assert_prints(WITHOUT_THREADS, "True\n")

    def test_fork_while_a_thread_computes(self):
        self.assert_prints(FORKED, "True\n")

    def test_threads_option(self):
        for threads in (1, 2):
            out, _ = annulus.Context([(16, 1)], threads=threads).forward(Q, K, V)
            self.assertEqual(out.tobytes(), annulus.attention(Q, K, V, [(16, 1)]).tobytes())
        with self.assertRaisesRegex(annulus.ArgumentError, "threads is -1"):
            annulus.Context([(16, 1)], threads=-1)

    def test_added_gradients(self):
        context = annulus.Context([(16, 1), (64, 4)])
        out, lse = context.forward(Q, K, V)
        plain = context.backward(Q, K, V, out, lse, D_OUT)
        for add in ((), ("d_q",), ("d_k", "d_v"), ["d_q", "d_k", "d_v"]):
            before = dict(d_q=np.full_like(Q, 7), d_k=np.full_like(K, 8), d_v=np.full_like(V, 9))
            wanted = [gradient + (before[name] if name in add else 0) for name, gradient in zip(before, plain)]
            got = context.backward(Q, K, V, out, lse, D_OUT, add=add, **before)
            for array, name, sum in zip(got, before, wanted):
                self.assertIs(array, before[name])
                self.assertEqual(array.tobytes(), sum.tobytes())
        q, k, v = (x.astype(np.float16) for x in (Q, K, V))
        out, lse = context.forward(q, k, v)
        arrays = dict(d_q=np.zeros_like(Q), d_v=np.ones_like(V))
        wide = context.backward(q, k, v, out, lse, D_OUT.astype(np.float16), add=["d_v"], **arrays)
        narrow = context.backward(q, k, v, out, lse, D_OUT.astype(np.float16))
        self.assertEqual([x.dtype for x in wide], [np.float32, np.float16, np.float32])
        self.assertEqual(wide[0].astype(np.float16).tobytes(), narrow[0].tobytes())
        self.assertEqual(wide[1].tobytes(), narrow[1].tobytes())
        np.testing.assert_allclose(wide[2] - 1, narrow[2], atol=2e-3)
        size = dict(length=64, heads=2, head_dim=16, pass_="backward")
        self.assertGreater(context.workspace_size(**size, add=["d_q"]), context.workspace_size(**size))
        with self.assertRaisesRegex(annulus.ArgumentError, "add has 'd_k', and d_k is None; it must be the array"):
            context.backward(Q, K, V, Q, lse, Q, add=["d_k"])
        with self.assertRaisesRegex(annulus.ArgumentError, "a name in add is 'dq'; it must be one of 'd_q', 'd_k'"):
            context.backward(Q, K, V, Q, lse, Q, add=["dq"])
        with self.assertRaisesRegex(annulus.ArgumentError, "gradient_dtype is bfloat16; it must be None, float32$"):
            context.workspace_size(**size, gradient_dtype="bfloat16")

    def test_engines_for_a_problem(self):
        for engine in ("auto", "cpu", "reference"):
            context = annulus.Context(annulus.Config([(16, 1), (64, 4)], engine=engine))
            for pass_ in ("forward", "backward", "mass"):
                expected = "cpu" if engine == "auto" else engine
                self.assertEqual(context.select_engine(64, 4, 16, kv_heads=2, pass_=pass_), expected)
                self.assertIsNone(context.why_not("reference", 64, 4, 16, pass_=pass_))
                self.assertIn("gemm", context.why_not("gemm", 64, 4, 16, pass_=pass_))
            context.forward(Q, K, V)
            self.assertEqual(context.last_engine, context.select_engine(64, 2, 16))
        with self.assertRaisesRegex(annulus.ArgumentError, "engine is 'abacus'; it must be one of 'auto', "):
            context.why_not("abacus", 64, 4, 16)
        with self.assertRaisesRegex(annulus.ArgumentError, "kv_heads is 3; the key/value heads must divide"):
            context.why_not("cpu", 64, 4, 16, kv_heads=3)
        with self.assertRaisesRegex(annulus.UnsupportedError, "head_dim is 12"):
            context.select_engine(64, 4, 12)

    def test_threads(self):
        self.assertEqual(annulus.Context([(16, 1)], threads=3).threads, 3)
        with mock.patch.dict(os.environ, ANNULUS_NUM_THREADS="5"):
            self.assertEqual(annulus.Context([(16, 1)]).threads, 5)

    def test_estimate(self):
        context = annulus.Context([(16, 1), (64, 4)])
        estimate = context.estimate(64, 4, 16, kv_heads=2, batch=3)
        pairs = 3 * 4 * (64 * 16 + 16 * 16)
        row, statistics = 4 * 3 * 64 * 16, 4 * 3 * 64 * 4
        for pass_, flops, rows, lses in (("forward", 4, 12, 1), ("backward", 10, 24, 1), ("mass", 4, 6, 2)):
            costs = context.estimate(64, 4, 16, pass_=pass_, kv_heads=2, batch=3)
            self.assertEqual((costs.pairs, costs.flops), (pairs, flops * pairs * 16))
            self.assertEqual(costs.tensor_bytes, rows * row + lses * statistics)
            self.assertEqual((costs.sent_bytes, costs.received_bytes, costs.exchange), (0, 0, "auto"))
            self.assertEqual(
                context.workspace_size(64, 4, 16, pass_=pass_, kv_heads=2, batch=3), costs.workspace_bytes
            )
        self.assertEqual(context.estimate(64, 4, 16, batch=3, branch=1).pairs, 3 * 4 * 16 * 16)
        self.assertEqual(context.estimate(64, 4, 16, dtype="bfloat16", query_start=63).pairs, 4 * 16 + 16)
        self.assertEqual(context.estimate(64, 4, 16, query_start=16, query_length=2).pairs, 4 * 2 * 16 + 2 * 16)
        for same in (dict(query_length=64), dict(query_start=0), dict(row_alignment=16)):
            self.assertEqual(context.estimate(64, 4, 16, kv_heads=2, batch=3, **same), estimate)
        for pass_ in ("forward", "backward", "mass"):
            shares = [context.estimate_rank(64, 4, 16, ranks=4, rank=rank, pass_=pass_) for rank in range(4)]
            alone = context.estimate(64, 4, 16, pass_=pass_)
            self.assertEqual(shares[1].sent_bytes, shares[1].received_bytes)
            self.assertGreater(shares[1].sent_bytes, 0)
            self.assertIn(shares[1].exchange, ("ring", "gather"))
            self.assertEqual(sum(share.flops for share in shares), alone.flops)
            self.assertEqual(sum(share.tensor_bytes for share in shares), alone.tensor_bytes)
        words = {
            "query_length is 0; with query_start it must be from 1 to length, 64": dict(query_start=3, query_length=0),
            "query_length is 3; without query_start it must be None or length, 64": dict(query_length=3),
            "query_start is 62; with query_length 3 it must be from 0 to 61": dict(query_start=62, query_length=3),
            "query_length is 0; with query_start": dict(query_start=64),
            "pass_ is 'all'; it must be one of 'forward', 'backward', 'mass'": dict(pass_="all"),
            "dtype is 'int8'": dict(dtype="int8"),
            "branch is 2": dict(branch=2),
        }
        for says, given in words.items():
            with self.subTest(says), self.assertRaisesRegex(annulus.ArgumentError, says):
                context.estimate(64, 4, 16, **given)
        with self.assertRaisesRegex(annulus.ArgumentError, "shards has 1 lengths; there are 2 ranks"):
            context.estimate_rank(64, 4, 16, ranks=2, rank=0, shards=[64])

    def test_copies(self):
        """Copies have the same config and device, and memory of their own. With comm, stream or workspace none is made."""
        context = annulus.Context(annulus.Config([(16, 1)], causal=True), threads=1)
        wanted, _ = context.forward(Q, K, V)
        for copied in (pickle.loads(pickle.dumps(context)), copy.deepcopy({"module": context})["module"]):
            self.assertIsNot(copied._handle.lock, context._handle.lock)
            self.assertEqual((copied.config, copied.device, copied._handle.threads), (context.config, "cpu", 1))
            self.assertEqual(copied.forward(Q, K, V)[0].tobytes(), wanted.tobytes())
        context.set_workspace(np.empty(1 << 16))
        (end,) = annulus.Comm.local(1)
        for held, words in (
            (context, "a Context with workspace given cannot be pickled or copied.* pickle its config"),
            (annulus.Context([(16, 1)], comm=end), "a Context with comm given cannot be pickled"),
            (end, "a Comm cannot be pickled or copied, .*; each process makes its own"),
        ):
            for make in (pickle.dumps, copy.copy):
                with self.assertRaisesRegex(TypeError, words):
                    make(held)

    def test_workspace(self):
        context = annulus.Context([(16, 1)], threads=1)
        size = context.workspace_size(64, 2, 16)
        wanted, _ = context.forward(Q, K, V)
        workspace = np.full(size // 8 + 1, np.nan)
        context.set_workspace(workspace)
        self.assertEqual(context.forward(Q, K, V)[0].tobytes(), wanted.tobytes())
        self.assertFalse(np.isnan(workspace).all())
        context.set_workspace(np.empty(1))
        with self.assertRaisesRegex(annulus.WorkspaceError, "the workspace has 8 bytes") as caught:
            context.forward(Q, K, V)
        self.assertEqual((caught.exception.name, caught.exception.bytes), ("workspace", size))
        context.set_workspace(None)
        self.assertEqual(context.forward(Q, K, V)[0].tobytes(), wanted.tobytes())

    def test_refusals(self):
        cases = [
            (annulus.ArgumentError, "device is 'gpu'", lambda: annulus.Context([(16, 1)], "gpu")),
            (annulus.ArgumentError, "device is 'cpu:0'", lambda: annulus.Context([(16, 1)], "cpu:0")),
            (annulus.UnsupportedError, "stream", lambda: annulus.Context([(16, 1)], stream=1)),
            (annulus.UnsupportedError, "stream", lambda: annulus.Context([(16, 1)], stream=np.int64(1))),
        ]
        words = {
            "the number in device is 99999999999; it does not fit": lambda: annulus.Context(
                [(16, 1)], "cuda:99999999999"
            ),
            "stream is 'x'; it must be the address": lambda: annulus.Context([(16, 1)], stream="x"),
            "threads is None; it must be an int": lambda: annulus.Context([(16, 1)], threads=None),
            "threads is 1.5; it must be an int": lambda: annulus.Context([(16, 1)], threads=1.5),
            "threads is 1099511627776; it does not fit": lambda: annulus.Context([(16, 1)], threads=2**40),
            "comm is 1; it must be an annulus.Comm": lambda: annulus.Context([(16, 1)], comm=1),
            r"comm is \[.*; it must be an annulus.Comm": lambda: annulus.Context([(16, 1)], comm=annulus.Comm.local(1)),
            r"shards is \[1\]; it needs comm, the communicator": lambda: annulus.Context([(16, 1)], shards=[1]),
            "shards is 1; it must be a list of int": lambda: annulus.Context([(16, 1)], comm=end, shards=1),
            "shards is 'x'; it must be a list of int": lambda: annulus.Context([(16, 1)], comm=end, shards="x"),
            r"shards\[0\] is 1.5; it must be an int": lambda: annulus.Context([(16, 1)], comm=end, shards=[1.5]),
            "q has 9 rows and k has 64": lambda: context.backward(Q[:, :9], K, V, Q[:, :9], lse[..., :9], Q[:, :9]),
            "length is '64'; it must be an int": lambda: context.estimate("64", 2, 16),
            "heads is 2.0; it must be an int": lambda: context.estimate(64, 2.0, 16),
            "heads is 1099511627776; it does not fit 32": lambda: context.estimate(64, 2**40, 16),
            "query_start is 0.5; it must be an int": lambda: context.estimate(64, 2, 16, query_start=0.5),
            r"sequence_starts\[1\] is 65; it must be at most 64": lambda: context.estimate(
                64, 2, 16, sequence_starts=[0, 65]
            ),
            r"sequence_lengths\[0\] is -1; it must be": lambda: context.workspace_size(64, 2, 16, sequence_lengths=[-1]),
            "branch is 'a'; it must be an int": lambda: context.estimate(64, 2, 16, branch="a"),
            r"dtype is \['float32'\]": lambda: context.estimate(64, 2, 16, dtype=["float32"]),
            "head_dim is None; it must be an int": lambda: context.workspace_size(64, 2, None),
            "rank is 0.5; it must be an int": lambda: context.estimate_rank(64, 2, 16, ranks=2, rank=0.5),
            "shards is 64; it must be a list": lambda: context.estimate_rank(64, 2, 16, ranks=2, rank=0, shards=64),
            "bytes is '8'; it must be an int": lambda: context.set_workspace(64, "8"),
            "bytes is None; an address goes with": lambda: context.set_workspace(64),
            "bytes is -8; it must be at least 0": lambda: context.set_workspace(64, -8),
            "bytes is 8; it goes with an address": lambda: context.set_workspace(np.empty(8), 8),
        }
        end, context, lse = annulus.Comm.local(1)[0], annulus.Context([(16, 1)]), np.zeros((1, 2, 64), "float32")
        cases += [(annulus.ArgumentError, *case) for case in words.items()]
        if not annulus.device_count("cuda"):
            cases.append((annulus.UnsupportedError, "CUDA", lambda: annulus.Context([(16, 1)], "cuda")))
        for error, words, call in cases:
            with self.subTest(words), self.assertRaisesRegex(error, words):
                call()
        self.assertTrue(issubclass(annulus.OutOfMemoryError, MemoryError))
        self.assertTrue(issubclass(annulus.UnsupportedError, NotImplementedError))


if __name__ == "__main__":
    tap.main()
