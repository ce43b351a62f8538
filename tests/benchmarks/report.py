# SPDX-License-Identifier: Apache-2.0
"""Measures the figures that this machine can measure. Writes OUT/figures.json, OUT/figures.md, and plots of figures.

  python3 tests/benchmarks/report.py OUT --annulus build/src/cli/annulus --library build/src/libannulus.so
  python3 tests/benchmarks/report.py OUT --figures figures.json     # draws figures of another machine

Without --library, PyTorch or a GPU there are no figures of peers (peers.py). With one GPU there are none of several
GPUs. The page names the figures that are missing. Without matplotlib only figures.json is written. --only measures some
figures, and keeps the other figures of an earlier run or another machine. --quick measures small problems, on a CPU in
a minute or two. It is not part of the test suite.
"""

import argparse
import ctypes
import datetime
import importlib.util
import json
import os
import pathlib
import platform
import shlex
import subprocess
import sys
import traceback

import figures

COMMAND = "python3 tests/benchmarks/report.py OUT --annulus build/src/cli/annulus --library build/src/libannulus.so"
LONGNET = "longnet:2048,2,2,6"
SECONDS = 120  # the most that a command may take


class Skipped(Exception):
    """The reason why a figure is not measured."""


class Machine:
    """Runs the program on this machine's GPUs, or on its CPU if it has no GPU. Remembers the commands of a figure."""

    def __init__(self, program, library, flash3, quick):
        self.program, self.library, self.flash3, self.quick = program, library, flash3, quick
        info = self.run("info")
        self.gpus = next(row["count"] for row in info["devices"] if row["kind"] == "cuda")
        self.cpus = len(os.sched_getaffinity(0))
        self.repeats = 1 if quick else 5
        self.build = info["build"]["build_info"]
        self.begin()

    def begin(self):
        """Begins a figure: forgets the commands and the device of the last one."""
        self.commands, self.device = [], self.cpu_name()

    def cpu_name(self):
        lines = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
        return f"{names[0] if names else platform.machine()}, {self.cpus} CPUs"

    def run(self, *words):
        result = subprocess.run([self.program, *map(str, words), "--format", "json"], stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True, timeout=SECONDS, check=False)
        if result.returncode != 0:
            raise Skipped(f"`annulus {shlex.join(map(str, words))}`: {result.stderr.strip() or result.returncode}")
        return json.loads(result.stdout)

    def remember(self, command):
        if command not in self.commands:
            self.commands.append(command)

    def measure(self, command, tokens, *words):
        """Returns the output of `annulus COMMAND --tokens TOKENS WORDS`."""
        self.remember(f"annulus {command} --tokens N {shlex.join(map(str, words))}")
        return self.run(command, "--tokens", tokens, *words)

    def bench(self, tokens, *words, ranks=1, on_cpu=False):
        """Returns the rows of `annulus bench`: {pass: row}."""
        if self.gpus and not on_cpu:
            place = ["--device", "cuda"]
        else:
            # Each rank has one thread, so that the one rank that is compared has one, too. Else up to 16 threads.
            place = ["--threads", ranks if ranks > 1 else min(self.cpus, 16)]
        if ranks > 1:
            place += ["--ranks", ranks]
        found = self.measure("bench", tokens, *place, "--repeats", self.repeats, *words)
        if "device" in found["machine"]:
            self.device = (f"{ranks} x " if ranks > 1 else "") + found["machine"]["device"]
        return {row["pass"]: row for row in found["cases"]}

    def plan(self, tokens, *words):
        """Returns {quantity: value} of the rank that needs most, by `annulus plan`, for the device's engine."""
        place = ["--device", "cuda"] if self.gpus else []
        return {row["quantity"]: row["largest_rank"] for row in self.measure("plan", tokens, *place, *words)["cost"]}

    def most_ranks(self):
        """Returns the largest power of two that is at most the number of GPUs, or without a GPU, of CPUs and 4."""
        return 1 << (max(1, self.gpus or min(self.cpus, 4)).bit_length() - 1)

    def sizes(self, gpu, cpu, quick):
        return quick if self.quick else gpu if self.gpus else cpu

    def rows(self, heads, dim):
        """Returns the options of a problem: bfloat16 on a GPU, two heads on a CPU."""
        if self.gpus:
            return ["--dtype", "bfloat16", "--heads", heads, "--head-dim", dim]
        return ["--heads", 2, "--head-dim", dim]


def figure(text, columns, rows, **plot):
    return {"text": text, "columns": columns, "rows": rows, "plot": plot or None}


def milliseconds(row, name="seconds"):
    return row[name] * 1e3 if row.get(name) is not None else None


def ratio(a, b):
    return a / b if a is not None and b else None


def hilbert(machine):
    rows = []
    for tokens in machine.sizes((16384, 70001, 250001, 1048576), (8192, 16384, 32768, 70001), (1024, 2047)):
        found = [machine.bench(tokens, *machine.rows(16, 64), "--branch", f"8192:4{order}")
                 for order in ("", ",order=hilbert")]
        linear, curve = found
        times = [milliseconds(each[name]) for name in ("forward", "backward") for each in (linear, curve)]
        rows.append([tokens, *times, times[1] / times[0], times[3] / times[2]])
    return figure(
        "One branch of segments of 8192 and dilation 4, in milliseconds.",
        ["tokens", "forward, linear", "forward, Hilbert", "backward, linear", "backward, Hilbert", "ratio, forward",
         "ratio, backward"],
        rows, x=0, series=[1, 2, 3, 4], label="milliseconds")


def several_ranks(machine):
    most = machine.most_ranks()
    if most < 2:
        raise Skipped("it needs two GPUs, or two CPUs where there is none")
    tokens = machine.sizes(262144, 16384, 2048)
    rows, count = [], 2
    while count <= most:
        found = machine.bench(tokens, *machine.rows(16, 128), "--preset", LONGNET, ranks=count)
        forward, backward = found["forward"], found["backward"]
        if count == 2:
            rows.append([1, milliseconds(forward, "row_one_rank_seconds"),
                         milliseconds(backward, "row_one_rank_seconds"), None, None])
        rows.append([count, milliseconds(forward, "row_seconds"), milliseconds(backward, "row_seconds"),
                     forward["row_efficiency"], backward["row_efficiency"]])
        count *= 2
    return figure(
        f"One sequence of {tokens:,} tokens, LongNet's six branches 2048:1 to 65536:32, over GPUs of this machine "
        "(where there are none: threads), in milliseconds of calls in a row. Efficiency is the rate of a rank over "
        "that of one alone, in the same run.",
        ["ranks", "forward", "backward", "efficiency, forward", "efficiency, backward"],
        rows, x=0, series=[1, 2], label="milliseconds")


def memory(machine):
    rows = []
    heads, dtype = 16, "bfloat16" if machine.gpus else "float32"
    for tokens in (4096, 16384, 70001, 250001, 1048576):
        cost = machine.plan(tokens, "--dtype", dtype, "--heads", heads, "--head-dim", 64, "--preset", LONGNET)
        mib = [cost[name] / 2 ** 20 for name in ("tensor_bytes", "forward_workspace_bytes", "backward_workspace_bytes")]
        rows.append([tokens, *mib, 4 * heads * tokens ** 2 / 2 ** 20])
    return figure(
        "LongNet's six branches, 16 heads of 64, in MiB: Q, K, V, O and LSE; what a call needs besides; and what a "
        "matrix of all scores would take in float32.",
        ["tokens", "tensors", "workspace, forward", "workspace, backward", "all scores"],
        rows, x=0, series=[1, 2, 3, 4], label="MiB")


def sgemm(machine):
    rows = []
    quick = machine.quick
    for dim in (32,) if quick else (64, 128):
        for branch, tokens in (("2048:1", 2048 if quick else 8192), ("8192:4", 2048 if quick else 32768)):
            for causal in ([], ["--causal"]):
                found = machine.bench(tokens, "--heads", 4, "--head-dim", dim, "--branch", branch, *causal, on_cpu=True)
                line = [f"{branch}, D = {dim}{', causal' if causal else ''}", tokens]
                for name in ("forward", "backward"):
                    row = found[name]
                    share = next((row[key] for key in row if key.startswith("share_of_")), None)
                    line += [row["flops_per_second"] / 1e9, share]
                rows.append(line)
    return figure(
        "float32, 4 heads: GFLOP/s, and the share of what OpenBLAS's sgemm reaches on as many threads, in turns.",
        ["branch", "tokens", "forward, GFLOP/s", "forward, of sgemm", "backward, GFLOP/s", "backward, of sgemm"],
        rows, x=0, series=[3, 5], label="share of sgemm")


def published(machine, tokens, words, theirs):
    """Returns rows of tokens, our times of forward on one GPU and on two, their ratio, and the same three numbers of
    `theirs`, {tokens: (one, two)}."""
    rows = []
    two = machine.most_ranks() > 1
    for count in tokens:
        found = machine.bench(count, *words, ranks=2 if two else 1)["forward"]
        one = milliseconds(found, "row_one_rank_seconds" if two else "seconds")
        both = milliseconds(found, "row_seconds")
        their_one, their_both = theirs.get(count, (None, None))
        rows.append([count, one, both, ratio(both, one), their_one, their_both, ratio(their_both, their_one)])
    return rows


OURS_AND_THEIRS = ["tokens", "one", "two", "two / one", "theirs, one", "theirs, two", "theirs, two / one"]
ABOUT_THEIRS = ("Theirs is the published figure of an earlier implementation of ring dilated attention, on GTX 1080s, "
                "where the report gives one. What compares is the ratio of two GPUs to one, and how a figure grows.")
OUR_CHOICE = "What was asked of them is not known beyond the lengths: width 768 and the dilations are our choice."
WIDTH_768 = ["--dtype", "float32", "--heads", 12, "--head-dim", 64]


def published_order(machine):
    if machine.most_ranks() < 2:
        raise Skipped("it needs two GPUs, or two CPUs where there is none")
    theirs = {8192: (12.8, 13.4), 65536: (93.7, 127.8)}
    rows = []
    for tokens in machine.sizes((8192, 16384, 32768, 65536), (8192, 16384), (1024,)):
        times = []
        for order in ("", ",order=hilbert"):
            branches = "--branch", f"2048:1{order}", "--branch", f"4096:2{order}"
            found = machine.bench(tokens, *WIDTH_768, *branches, ranks=2)
            times.append(milliseconds(found["forward"], "row_seconds"))
        plain, curve = theirs.get(tokens, (None, None))
        rows.append([tokens, *times, times[1] / times[0], plain, curve, ratio(curve, plain)])
    return figure(
        f"Branches 2048:1 and 4096:2, forward, float32, milliseconds. {ABOUT_THEIRS} Here also the ratio of the two "
        f"orders. {OUR_CHOICE}",
        ["tokens", "plain", "Hilbert", "Hilbert / plain", "theirs, plain", "theirs, Hilbert",
         "theirs, Hilbert / plain"],
        rows, x=0, series=[1, 2, 4, 5], label="milliseconds")


def published_memory(machine):
    theirs = {512: 74.0, 4096: 293.0}
    rows = []
    for tokens in (512, 1024, 2048, 4096, 8192, 65536):
        cost = machine.plan(tokens, *WIDTH_768, "--branch", "2048:1", "--branch", "4096:2")
        each = [cost[f"{name}_memory_bytes"] / tokens / 1000 for name in ("forward", "backward")]
        rows.append([tokens, *each, theirs.get(tokens, "failed" if tokens == 8192 else None)])
    return figure(
        f"KB, tensors and workspace of branches 2048:1 and 4096:2, float32. {ABOUT_THEIRS} {OUR_CHOICE}",
        ["tokens", "forward", "backward", "theirs"], rows)


def published_segments(machine):
    words = [*WIDTH_768, "--branch", "2048:1", "--branch", "4096:2", "--branch", "8192:4"]
    rows = published(machine, (512, 1024) if machine.quick else (2048, 4096, 8192), words, {8192: (6.4, 1703.0)})
    for row in rows:
        for ranks in (1, 2):
            cost = machine.plan(row[0], *words, "--ranks", ranks)
            row.append(cost["forward_memory_bytes"] / 1e6)
        row += [48.0, 152.0] if row[0] == 8192 else [None, None]
    return figure(
        f"Dilations 1, 2 and 4, forward, float32, milliseconds; MB of memory of each. {ABOUT_THEIRS} {OUR_CHOICE}",
        [*OURS_AND_THEIRS, "MB, one", "MB, two", "theirs, MB, one", "theirs, MB, two"],
        rows, x=0, series=[1, 2, 4, 5], label="milliseconds")


def published_lengths(machine):
    words = [*WIDTH_768, "--branch", "2048:1", "--branch", "4096:2"]
    rows = published(machine, machine.sizes((4096, 8192, 16384, 32768), (4096, 8192), (1024, 2048)), words,
                     {4096: (11.8, 11.8), 32768: (889.0, 1826.0)})
    their_memory = {4096: 122.0, 32768: 857.0}
    for row in rows:
        row += [machine.plan(row[0], *words, "--ranks", 2)["forward_memory_bytes"] / 1e6, their_memory.get(row[0])]
    return figure(
        f"12 heads, dilations 1 and 2, forward, float32, milliseconds; MB of memory of each of two. {ABOUT_THEIRS}",
        [*OURS_AND_THEIRS, "MB, two", "theirs, MB"], rows, x=0, series=[1, 2, 4, 5], label="milliseconds")


class Peers:
    """Runs peers.py on the first GPU."""

    def __init__(self, machine):
        if not machine.gpus:
            raise Skipped("it needs a GPU")
        if not importlib.util.find_spec("torch"):
            raise Skipped("it needs PyTorch")
        if not machine.library:
            raise Skipped("it needs --library")
        import peers

        if not peers.torch.cuda.is_available():
            raise Skipped("PyTorch finds no GPU")
        self.peers = peers
        self.library = ctypes.CDLL(machine.library)
        machine.device = f"{peers.torch.cuda.get_device_name()}, PyTorch {peers.torch.__version__}"
        machine.remember(COMMAND + (" --flash3 FILE" if machine.flash3 else ""))
        # Kernels of dense attention, and their names in peers.py.
        self.kernels = {"cuDNN": "dense", "FlashAttention-2": "flash"}
        if machine.flash3:
            peers.torch.ops.load_library(machine.flash3)
            self.kernels["FlashAttention-3"] = "flash3"

    def rates(self, case, engines, peers):
        """Returns {pass: {contender: FLOP/s}}."""
        try:
            found = self.peers.contenders(self.library, case, engines, peers, False)
        except SystemExit as error:
            raise Skipped(str(error)) from None  # results disagree
        rates = {}
        for name in ("forward", "backward"):
            taking_part = [each for each in found if name == "forward" or each.has_backward]
            rates[name] = self.peers.measure(case, name, taking_part, 1).rates if taking_part else {}
        del found
        self.peers.torch.cuda.empty_cache()
        return rates


def tflops(rates, names):
    return [rates[name].get(each) and rates[name][each] / 1e12 for name in ("forward", "backward") for each in names]


def both_passes(names):
    return [f"{name}, {each}" for name in ("forward", "backward") for each in names]


def by_length(machine):
    measured = Peers(machine)
    case = measured.peers.Case
    names = ["annulus", "LongNet's way", *(f"{name}, all pairs" for name in measured.kernels)]
    rows = []
    for tokens in machine.sizes((16384, 32768, 65536, 131072, 262144), (), (65536,)):
        sparse = case("LongNet", measured.peers.LONGNET, tokens, 16, 128)
        full = case("all pairs", ((tokens, 1),), tokens, 16, 128)
        sparse_rates = measured.rates(sparse, ["fused"], ["longnet"])
        kernels = list(measured.kernels.values())
        full_rates = measured.rates(full, [], kernels) if tokens <= 131072 else {"forward": {}, "backward": {}}
        line = [tokens]
        for name in ("forward", "backward"):
            for rated_case, found, contender in ((sparse, sparse_rates, "fused"), (sparse, sparse_rates, "longnet"),
                                              *((full, full_rates, kernel) for kernel in kernels)):
                rate = found[name].get(contender)
                line.append(rated_case.flops[name] / rate * 1e3 if rate else None)
        rows.append(line)
    return figure(
        "LongNet's six branches 2048:1 to 65536:32, and attention of all pairs, in milliseconds: bfloat16, 16 heads of "
        "128.",
        ["tokens", *both_passes(names)], rows, x=0, series=list(range(1, 1 + len(names))),
        label="milliseconds, forward")


def by_head_dim(machine):
    measured = Peers(machine)
    names, contenders = ["annulus", *measured.kernels], ["fused", *measured.kernels.values()]
    rows = []
    for dim in machine.sizes((32, 64, 96, 128, 256), (), (64,)):
        case = measured.peers.Case("2048:1", ((2048, 1),), 65536, 1024 // dim, dim)
        rows.append([f"D = {dim}", *tflops(measured.rates(case, contenders[:1], contenders[1:]), contenders)])
    return figure(
        "Dense segments of 2048 in 65,536 tokens, bfloat16, as many heads as make 1024 features: TFLOP/s.",
        ["head dimension", *both_passes(names)], rows, x=0, series=list(range(1, 1 + 2 * len(names))), label="TFLOP/s")


def by_pattern(machine):
    measured = Peers(machine)
    rows = []
    for case in measured.peers.CASES:
        if case.dim not in (128, 48) or case.causal or (machine.quick and case.title != "2048:1"):
            continue
        rates = measured.rates(case, ["fused", "gemm"], ["dense", "longnet"])
        rows.append([case.name, *tflops(rates, ["fused", "gemm", "dense", "longnet"])])
    return figure(
        "bfloat16, TFLOP/s: the engines; cuDNN's attention over dense segments of the same head dimension (2048 long, "
        "but for dense cases); and LongNet's published procedure over cuDNN.",
        ["branches", *both_passes(["fused", "gemm", "cuDNN", "LongNet's way"])],
        rows, x=0, series=[1, 2, 3, 4], label="TFLOP/s, forward")


FIGURES = {
    "length": ("By length, beside other ways", by_length),
    "head_dim": ("By head dimension, beside other kernels", by_head_dim),
    "pattern": ("By pattern, beside other ways", by_pattern),
    "ranks": ("Over several ranks", several_ranks),
    "memory": ("Memory by length", memory),
    "hilbert": ("The Hilbert order beside the linear one", hilbert),
    "sgemm": ("The CPU engine beside sgemm", sgemm),
    "published_order": ("Published table: plain and Hilbert order on two GPUs", published_order),
    "published_memory": ("Published table: memory of a token", published_memory),
    "published_segments": ("Published table: segments of 2048, 4096 and 8192", published_segments),
    "published_lengths": ("Published table: width 768, segments of 2048 and 4096", published_lengths),
}


def measure(machine, written, only):
    """Measures all figures. If `only` has keys, measures these figures and keeps the other figures of the file
    `written`. After each figure, writes all finished figures to the file."""
    today = datetime.date.today().isoformat()
    done = {}
    if only and written.exists():
        done = {each["key"]: each for each in json.loads(written.read_text(encoding="utf-8"))["figures"]}
    for key, (title, make) in FIGURES.items():
        if only and key not in only:
            continue
        print(f"{datetime.datetime.now():%H:%M:%S} {key}", file=sys.stderr, flush=True)
        machine.begin()
        try:
            made = dict(make(machine), commands=machine.commands, device=machine.device, date=today)
        except Exception as error:  # the other figures are still measured
            if not isinstance(error, Skipped):
                traceback.print_exc()
            print(f"  not measured: {error}", file=sys.stderr, flush=True)
            made = {"skipped": str(error)}
        done[key] = {"key": key, "title": title, **made}
        report = {
            "machine": {"date": today, "build": machine.build, "gpus": machine.gpus},
            "figures": [done[each] for each in FIGURES if each in done],
        }
        written.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return report


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path, help="the directory to write to")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--annulus", help="the program, to measure with")
    source.add_argument("--figures", type=pathlib.Path, help="figures.json of an earlier run, to draw")
    parser.add_argument("--library", help="libannulus.so, for figures of peers")
    parser.add_argument("--flash3", metavar="FILE", help="as peers.py takes it, for figures of FlashAttention-3")
    parser.add_argument("--only", metavar="KEY", nargs="+", choices=FIGURES, default=[],
                        help=f"measure these alone, and keep what OUT has of the others: {', '.join(FIGURES)}")
    parser.add_argument("--quick", action="store_true", help="small problems")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.figures:
        report = json.loads(arguments.figures.read_text(encoding="utf-8"))
    else:
        written = arguments.out / "figures.json"
        machine = Machine(arguments.annulus, arguments.library, arguments.flash3, arguments.quick)
        report = measure(machine, written, arguments.only)
        if not importlib.util.find_spec("matplotlib"):
            print(f"There is no matplotlib: draw {written} elsewhere, by --figures.", file=sys.stderr)
            return
    figures.write_page(report, arguments.out)


if __name__ == "__main__":
    main()
