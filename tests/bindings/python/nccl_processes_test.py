# SPDX-License-Identifier: Apache-2.0
"""Two processes over NCCL, with a GPU each. They make many calls in a row, also beside other work. In further tests one
process is killed before or during the calls, is stopped, aborts, exits or leaves.

Rows travel by one of these routes:

    host      through memory of the host and of the other GPU
    one asks  by NCCL alone, for which one process asks, over whatever links NCCL finds
    sockets   by NCCL alone over sockets, as between hosts

nccl_processes_test.py runs itself as `nccl_processes_test.py WAY ROUTE DIRECTORY RANK`.
"""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import tap

try:
    import torch
except ImportError:
    tap.skip_all("needs PyTorch")

import annulus

RANKS = 2
TIMEOUT = 5.0  # seconds that a rank waits for another
LENGTHS = (3001, 2999)
CONFIG = annulus.Config([(512, 1), (2048, 4), (0, 16)], causal=True)
ROUTES = ("host", "one asks", "sockets")


def environment(route, rank):
    """Returns the environment of a rank. Over sockets NCCL takes each rank for a host of its own."""
    if route != "sockets":
        return os.environ
    options = {"P2P_DISABLE": "1", "SHM_DISABLE": "1", "NET": "Socket", "HOSTID": f"annulus-test-{rank}"}
    return {**os.environ, **{f"NCCL_{name}": value for name, value in options.items()}}


def shared_memory():
    """Returns the names of annulus in shared memory, without those of NCCL."""
    return {name for name in os.listdir("/dev/shm") if not name.startswith("nccl")}


def wait_for(path):
    while not path.exists():
        time.sleep(0.01)


def connect(route, directory, rank, name="id"):
    file = pathlib.Path(directory, name)
    if rank == 0:
        new = file.with_suffix(".new")
        new.write_bytes(annulus.Comm.nccl_id())
        new.rename(file)
    wait_for(file)
    only_nccl = route == "sockets" or (route == "one asks" and rank == 1)
    return annulus.Comm.from_nccl_id(file.read_bytes(), RANKS, rank, rank, only_nccl=only_nccl)


def whole_inputs(rank):
    torch.manual_seed(1)
    return [torch.randn(1, sum(LENGTHS), 4, 64, device=f"cuda:{rank}", dtype=torch.bfloat16) for _ in range(4)]


def mine(whole, rank):
    return whole[:, sum(LENGTHS[:rank]) : sum(LENGTHS[: rank + 1])].contiguous()


def both_passes(context, q, k, v, d_out):
    out, lse = context.forward(q, k, v)
    return (out, *context.backward(q, k, v, out, lse, d_out))


def agree_in_many_calls(rank, comm):
    """Queues a hundred calls before it reads the first result. Sizes change, so outboxes grow."""
    whole = whole_inputs(rank)
    context = annulus.Context(CONFIG, f"cuda:{rank}", comm=comm)
    alone = annulus.Context(CONFIG, f"cuda:{rank}")
    wanted = [mine(x, rank) for x in both_passes(alone, *whole)]
    small = [x[:, : 100 * (rank + 1)].contiguous() for x in whole]
    part = [mine(x, rank) for x in whole]
    both_passes(context, *small)
    found = [both_passes(context, *part) for _ in range(50)]
    both_passes(context, *small)
    torch.cuda.synchronize()
    for results in found:
        for one, other, first in zip(results, wanted, found[0]):
            scale = float(other.abs().max())
            torch.testing.assert_close(one.float(), other.float(), rtol=0, atol=0.02 * scale)
            assert torch.equal(one, first)


def agree_in_a_graph(rank, comm):
    """Captures a call after a first one, and replays it on new data between other calls."""
    whole = whole_inputs(rank)
    part = [mine(x, rank) for x in whole]
    context = annulus.Context(CONFIG, f"cuda:{rank}", comm=comm)
    out, lse = context.forward(*part[:3])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        context.forward(*part[:3], out=out, lse=lse)
    for _ in range(3):
        for x, own in zip(whole, part):
            x.mul_(-0.5)
            own.mul_(-0.5)
        graph.replay()
        torch.cuda.synchronize()
        found = out.clone()
        context.forward(*part[:3], out=out, lse=lse)
        torch.cuda.synchronize()
        assert torch.equal(found, out)


def agree_beside_others(route, directory, rank, comm):
    """Makes a hundred calls on two communicators with a stream each, beside all-reduces of the caller."""
    torch.distributed.init_process_group("nccl", init_method=f"file://{directory}/store", rank=rank, world_size=RANKS)
    whole = whole_inputs(rank)
    part = [mine(x, rank) for x in whole]
    comms = [comm, connect(route, directory, rank, "second id")]
    configs = [CONFIG, annulus.Config([(0, 1)])]
    streams = [torch.cuda.Stream() for _ in comms]
    contexts = [annulus.Context(config, f"cuda:{rank}", comm=one) for config, one in zip(configs, comms)]
    wanted = []
    for config, context in zip(configs, contexts):
        wanted.append(both_passes(context, *part))
        one_rank = both_passes(annulus.Context(config, f"cuda:{rank}"), *whole)
        for one, other in zip(wanted[-1], one_rank):
            torch.testing.assert_close(
                one.float(), mine(other, rank).float(), rtol=0, atol=0.02 * float(other.abs().max())
            )
    sums = torch.ones(10**6, device=f"cuda:{rank}")
    torch.cuda.synchronize()
    found = []
    for _ in range(25):
        for context, stream in zip(contexts, streams):
            with torch.cuda.stream(stream):
                found.append(both_passes(context, *part))
            torch.distributed.all_reduce(sums, op=torch.distributed.ReduceOp.AVG)
    torch.cuda.synchronize()
    assert bool((sums == 1).all())
    for i, results in enumerate(found):
        for one, other in zip(results, wanted[i % 2]):
            assert torch.equal(one, other)
    torch.distributed.destroy_process_group()


def fail_together(way, directory, rank, comm):
    comm.set_timeout(TIMEOUT)
    part = [mine(x, rank) for x in whole_inputs(rank)]
    context = annulus.Context(CONFIG, f"cuda:{rank}", comm=comm)
    if way != "killed before":
        both_passes(context, *part)
    torch.cuda.synchronize()
    pathlib.Path(directory, f"running{rank}").touch()
    if way == "killed before" and rank == 1:
        time.sleep(600)  # until it is killed
    started = time.monotonic()
    try:
        for i in range(10**6):
            if rank == 1 and i == 100:  # while the other rank still computes
                if way == "leaving":
                    return
                if way == "exiting":
                    os._exit(0)  # destroys nothing
                if way == "aborting":
                    os.abort()
            both_passes(context, *part)
            if i % 20 == 19:
                torch.cuda.synchronize()
            started = time.monotonic()
        raise AssertionError("nothing failed")
    except (annulus.CommError, annulus.DeclinedError) as error:
        late = time.monotonic() - started
        assert way == "stopped" or late < TIMEOUT + 5, late
        assert comm.failure is not None, error
    started = time.monotonic()
    torch.cuda.synchronize()  # nothing waits on the GPU any more
    assert time.monotonic() - started < 10
    # The remaining process computes alone.
    alone = annulus.Context(CONFIG, f"cuda:{rank}")
    assert bool(torch.isfinite(both_passes(alone, *part)[0]).all())
    torch.cuda.synchronize()


def work(way, route, directory, rank):
    torch.cuda.set_device(rank)
    comm = connect(route, directory, rank)
    if way == "many":
        agree_in_many_calls(rank, comm)
    elif way == "graph":
        agree_in_a_graph(rank, comm)
    elif way == "beside others":
        agree_beside_others(route, directory, rank, comm)
    else:
        fail_together(way, directory, rank, comm)
    if route != "host":
        assert b"memfd:annulus" not in pathlib.Path("/proc/self/maps").read_bytes(), "there is memory of the host"
    del comm
    print("done")


class NcclProcessesTest(unittest.TestCase):
    def run_ranks(self, way, disturb=None, route="host"):
        before = shared_memory()
        with tempfile.TemporaryDirectory() as directory:
            ranks = [
                subprocess.Popen(
                    [sys.executable, __file__, way, route, directory, str(rank)],
                    env=environment(route, rank),
                    text=True,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                )
                for rank in range(RANKS)
            ]
            try:
                if disturb:
                    for rank in range(RANKS):
                        wait_for(pathlib.Path(directory, f"running{rank}"))
                    time.sleep(0.5)
                    disturb(ranks[1])
                outcomes = [rank.communicate(timeout=120) for rank in ranks]
            finally:
                for rank in ranks:
                    rank.kill()
            self.assertEqual(shared_memory() - before, set(), "left in shared memory")
            return [(rank.returncode, out, err[-3000:]) for (out, err), rank in zip(outcomes, ranks)]

    def expect_done(self, outcome):
        self.assertEqual(outcome[:2], (0, "done\n"), outcome[2])

    def expect_all_done(self, way, routes, disturb=None):
        for route in routes:
            with self.subTest(route):
                for outcome in self.run_ranks(way, disturb, route):
                    self.expect_done(outcome)

    def test_many_calls(self):
        self.expect_all_done("many", ROUTES)

    def test_graph(self):
        self.expect_all_done("graph", ROUTES)

    def test_beside_others(self):
        self.expect_all_done("beside others", ("host", "one asks"))

    def test_one_is_killed(self):
        cases = [("killed before", "host"), *(("killed", route) for route in ROUTES)]
        for way, route in cases:
            with self.subTest(way, route=route):
                outcomes = self.run_ranks(way, lambda rank: rank.kill(), route)
                self.expect_done(outcomes[0])
                self.assertEqual(outcomes[1][0], -signal.SIGKILL)

    def test_one_ends_by_itself(self):
        for way, code in (("exiting", 0), ("aborting", -signal.SIGABRT)):
            with self.subTest(way):
                outcomes = self.run_ranks(way)
                self.expect_done(outcomes[0])
                self.assertEqual(outcomes[1][:2], (code, ""))

    def test_one_is_stopped_beyond_the_timeout(self):
        def stop(rank):
            os.kill(rank.pid, signal.SIGSTOP)
            time.sleep(3 * TIMEOUT)
            os.kill(rank.pid, signal.SIGCONT)

        self.expect_all_done("stopped", ROUTES, stop)

    def test_one_leaves(self):
        self.expect_all_done("leaving", ("host", "one asks"))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        work(*sys.argv[1:4], int(sys.argv[4]))
    elif min(torch.cuda.device_count(), annulus.device_count("cuda")) < RANKS:
        tap.skip_all(f"needs {RANKS} GPUs")
    else:
        tap.main()
