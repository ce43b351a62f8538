# SPDX-License-Identifier: Apache-2.0
"""Several ranks: attend and map give the results of one rank, and plan gives what a run measures."""

import re
import subprocess
import unittest

from program import SANITIZED, ProgramTest, cuda_device_count, has_mpi, json, load, mpirun_command, run, run_json
import oracle
import tap

RANK_COUNTS = (1, 2, 3, 4)
PATTERNS = {
    "longnet": (["--branch", "16:1", "--branch", "48:3"], {"branches": [{"w": 16, "r": 1}, {"w": 48, "r": 3}]}),
    "causal": (["--branch", "0:1", "--branch", "32:2", "--causal"],
               {"branches": [{"w": 0, "r": 1}, {"w": 32, "r": 2}], "causal": True}),
    "residue": (["--branch", "40:4,query=residue"], {"branches": [{"w": 40, "r": 4, "query": "residue"}]}),
    "hilbert": (["--branch", "36:3,order=hilbert,query=every"],
                {"branches": [{"w": 36, "r": 3, "order": "hilbert", "query": "every"}]}),
    "zero keys": (["--branch", "48:5", "--padding", "zero-keys"], {"branches": [{"w": 48, "r": 5}], "zero_keys": True}),
    "inside a shard": (["--branch", "1:1"], {"branches": [{"w": 1, "r": 1}]}),
}
UNIT = {"float64": 1e-13, "float32": 1e-5, "bfloat16": 2.0 ** -7}


def mpirun(ranks, *arguments):
    return subprocess.run([*mpirun_command(ranks), *map(str, arguments)], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, check=False, timeout=120)


class AttendTest(ProgramTest):
    def assert_close(self, found, wanted, tolerance):
        oracle.np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)

    def test_ranks_give_what_the_definition_says(self):
        q, k, v = self.save_inputs((2, 83, 4, 16), (2, 83, 2, 16))
        for name, (options, arguments) in PATTERNS.items():
            wanted_out, wanted_lse = oracle.attention(q, k, v, **arguments)
            for ranks in RANK_COUNTS:
                for exchange in ("ring", "gather"):
                    with self.subTest(name, ranks=ranks, exchange=exchange):
                        (out, _), (lse, _) = self.attend(*options, "--ranks", ranks, "--exchange", exchange)
                        self.assert_close(out, wanted_out, 1e-5)
                        self.assert_close(lse, wanted_lse, 1e-5)

    def test_zigzag_gives_what_one_rank_gives(self):
        """O and LSE are in the order of the sequence."""
        self.save_inputs((2, 83, 4, 16), (2, 83, 2, 16))
        for name, (options, _) in PATTERNS.items():
            (wanted_out, _), (wanted_lse, _) = self.attend(*options)
            for ranks in (1, 2, 3, 5):
                for exchange in ("ring", "gather"):
                    with self.subTest(name, ranks=ranks, exchange=exchange):
                        (out, _), (lse, _) = self.attend(*options, "--ranks", ranks, "--exchange", exchange,
                                                         "--shards", "zigzag")
                        self.assert_close(out, wanted_out, 1e-5)
                        self.assert_close(lse, wanted_lse, 1e-5)

    def test_zigzag_of_packed_sequences_and_fewer_tokens_than_shards(self):
        for tokens, ranks, options in ((83, 3, ["--starts", "0,20,21,70"]), (3, 5, []), (83, 2, ["--lengths", "50"])):
            with self.subTest(tokens=tokens, options=options):
                self.save_inputs((1, tokens, 2, 8))
                options = ["--branch", "0:1", "--branch", "16:2", "--causal", *options]
                warning = "--starts: rows 70 to 82 are in no sequence" if "--starts" in options else ""
                (wanted_out, _), (wanted_lse, _) = self.attend(*options, warning=warning)
                (out, _), (lse, _) = self.attend(*options, "--ranks", ranks, "--shards", "zigzag", warning=warning)
                self.assert_close(out, wanted_out, 1e-5)
                self.assert_close(lse, wanted_lse, 1e-5)

    def test_dtypes_and_three_dimensions(self):
        options, arguments = PATTERNS["longnet"]
        for dtype, tolerance in UNIT.items():
            with self.subTest(dtype):
                q, k, v = (a[None] for a in self.save_inputs((83, 4, 16), dtype=dtype))
                (out, out_dtype), (lse, _) = self.attend(*options, "--ranks", 3)
                wanted_out, wanted_lse = oracle.attention(q, k, v, **arguments)
                self.assertEqual(out_dtype, dtype)
                self.assert_close(out[None], wanted_out, tolerance)
                self.assert_close(lse[None], wanted_lse, 1e-5)

    def test_fewer_tokens_than_ranks(self):
        q, k, v = self.save_inputs((2, 3, 2, 8))
        (out, _), (lse, _) = self.attend("--branch", "0:1", "--ranks", 5)
        wanted_out, wanted_lse = oracle.attention(q, k, v, [{"w": 0, "r": 1}])
        self.assert_close(out, wanted_out, 1e-5)
        self.assert_close(lse, wanted_lse, 1e-5)

    @unittest.skipIf(SANITIZED, "takes a minute under sanitizers")
    def test_parts_of_the_batch(self):
        shape = (3, 8192, 2, 64)
        self.assertGreater(shape[0] * 4 * 8192 ** 2 * 2 * 64 / 2, 5e10)  # more than a piece for each of two ranks
        self.save_inputs(shape)
        (wanted, _), _ = self.attend("--branch", "0:1", "--threads", 2)
        (out, _), _ = self.attend("--branch", "0:1", "--threads", 2, "--ranks", 2)
        self.assert_close(out, wanted, 1e-5)

    def test_cuda(self):
        if cuda_device_count() < 2:
            self.skipTest("needs two CUDA devices")
        options, arguments = PATTERNS["longnet"]
        q, k, v = self.save_inputs((2, 83, 4, 16))
        wanted_out, wanted_lse = oracle.attention(q, k, v, **arguments)
        for way in ([], ["--only-nccl"]):
            with self.subTest(way):
                (out, _), (lse, _) = self.attend(*options, "--device", "cuda", "--ranks", 2, *way)
                self.assert_close(out, wanted_out, 1e-5)
                self.assert_close(lse, wanted_lse, 1e-5)

    def test_refusals(self):
        """attend and map refuse what ranks cannot do."""
        self.save_inputs((1, 40, 2, 8))
        before = self.names()
        good = ["--branch", "16:1", "--ranks", 2]
        attend = self.attend_arguments(*good)
        mass = ["map", "--q", self.path("q.npy"), "--k", self.path("k.npy"), *good, "--out"]
        for arguments, exit_code, says in (
                ([*attend, "--query-start", 0], 2, "--query-start"), ([*attend, "--timeout", "0"], 2, "--timeout"),
                ([*attend, "--only-nccl"], 2, "--only-nccl is for ranks on GPUs"),
                ([*mass, self.path("mass.npy"), "--only-nccl"], 2, "--only-nccl is for ranks on GPUs"),
                ([*attend[:-1], 1, "--device", "cuda", "--only-nccl"], 2, "--only-nccl is for several ranks"),
                ([*attend, "--engine", "gemm"], 2, "gemm"), ([*attend, "--workspace-limit", "1"], 1, "limit"),
                ([*attend, "--device", f"cuda:{cuda_device_count()}"], 2, "--device cuda:"),
                ([*mass, self.path("mass.npy"), "--query-start", 0], 2, "--query-start"),
                ([*mass, self.path("mass.npy"), "--workspace-limit", "1"], 1, "limit"),
                ([*mass, self.path("missing/mass.npy")], 2, "--out")):
            with self.subTest(arguments):
                self.assert_refused(run(*arguments, timeout=60), exit_code, says)
                self.assertEqual(self.names(), before)

    def test_failure_of_one_rank_ends_all(self):
        self.save_inputs((1, 40, 2, 8))
        arguments = self.attend_arguments("--branch", "0:1", "--ranks", 4, out="missing/o.npy")  # rank 0 makes the file
        self.assert_refused(run(*arguments, timeout=60), says="--out")


class MapTest(ProgramTest):
    def map_arguments(self, *more):
        return ["map", "--q", self.path("q.npy"), "--k", self.path("k.npy"), "--out", self.path("mass.npy"), *more]

    def assert_mass(self, result, wanted, tolerance=1e-5, warning=""):
        self.assert_done(result, warning)
        oracle.np.testing.assert_allclose(load(self.path("mass.npy"))[0], wanted, rtol=tolerance, atol=tolerance)
        self.path("mass.npy").unlink()

    def test_ranks_give_what_the_definition_says(self):
        """The masses of heads in groups, which are the same with --lse and without."""
        q, k, _ = self.save_inputs((2, 83, 4, 16), (2, 83, 2, 16))
        for name, (options, arguments) in PATTERNS.items():
            wanted = oracle.mass(q, k, **arguments)
            self.attend(*options)
            for ranks, shards, exchange in ((2, "even", "ring"), (3, "zigzag", "gather"), (4, "even", "auto")):
                for more in ([], ["--lse", self.path("lse.npy")]):
                    with self.subTest(name, ranks=ranks, more=more):
                        self.assert_mass(run(*self.map_arguments(*options, "--ranks", ranks, "--shards", shards,
                                                                 "--exchange", exchange, *more)), wanted)

    def test_fewer_tokens_than_ranks_and_dtypes(self):
        for dtype, tolerance in (("float64", 1e-12), ("bfloat16", 1e-2)):
            q, k, _ = self.save_inputs((3, 2, 8), dtype=dtype)
            wanted = oracle.mass(q[None], k[None], [{"w": 0, "r": 1}])[0]
            result = run(*self.map_arguments("--branch", "0:1", "--ranks", 5))
            self.assert_mass(result, wanted, tolerance)

    def test_packed_and_padded_sequences(self):
        q, k, _ = self.save_inputs((2, 83, 2, 8))
        for options, sequences in ((["--starts", "2,30,71"], [(0, 2, 30), (0, 30, 71), (1, 2, 30), (1, 30, 71)]),
                                   (["--lengths", "50,9"], [(0, 0, 50), (1, 0, 9)])):
            wanted = oracle.np.zeros((2, 2, 83))
            for b, begin, end in sequences:
                part = slice(b, b + 1), slice(begin, end)
                wanted[b, :, begin:end] = oracle.mass(q[part], k[part], [{"w": 16, "r": 2}])[0]
            self.assert_mass(run(*self.map_arguments("--branch", "16:2", "--ranks", 3, *options)), wanted,
                             warning="--starts: rows 0 to 1 and 71 to 82 are in no " if "--starts" in options else "")

    def test_picture(self):
        """Three ranks draw the same picture as one, except for rounding in colours and numbers: the size and the words
        are equal."""
        self.save_inputs((1, 53, 2, 8))
        pictures = []
        for ranks in (1, 3):
            path = self.path(f"{ranks}.svg")
            result = run("map", "--q", self.path("q.npy"), "--k", self.path("k.npy"), "--picture", path, "--grid", 10,
                         "--branch", "16:1", "--ranks", ranks)
            if "made without cairo" in result.stderr:
                self.skipTest("the program has no cairo")
            self.assertEqual((result.returncode, result.stderr), (0, ""))
            pictures.append(re.findall(r">([^<]*)</text>", path.read_text(encoding="utf-8")))
        self.assertEqual(*pictures)


@unittest.skipUnless(has_mpi(), "needs mpirun and a build with MPI")
class MpiTest(ProgramTest):
    def test_map(self):
        q, k, _ = self.save_inputs((2, 83, 4, 16), (2, 83, 2, 16))
        options, arguments = PATTERNS["causal"]
        wanted = oracle.mass(q, k, **arguments)
        for ranks, shards in ((2, "even"), (3, "zigzag")):
            for heads, masses in (("each", wanted), ("mean", wanted.mean(1))):
                with self.subTest(ranks=ranks, shards=shards, heads=heads):
                    result = mpirun(ranks, "map", "--q", self.path("q.npy"), "--k", self.path("k.npy"), "--out",
                                    self.path("mass.npy"), *options, "--shards", shards, "--heads", heads)
                    self.assertEqual((result.returncode, result.stdout, result.stderr), (0, "", ""))
                    oracle.np.testing.assert_allclose(load(self.path("mass.npy"))[0], masses, rtol=1e-5, atol=1e-5)
                    self.path("mass.npy").unlink()

    def test_attend(self):
        q, k, v = self.save_inputs((2, 83, 4, 16))
        options, arguments = PATTERNS["causal"]
        wanted_out, wanted_lse = oracle.attention(q, k, v, **arguments)
        for ranks, shards in ((2, "even"), (3, "even"), (3, "zigzag")):
            with self.subTest(ranks=ranks, shards=shards):
                for name in ("o.npy", "lse.npy"):
                    self.path(name).unlink(missing_ok=True)
                result = mpirun(ranks, *self.attend_arguments(*options, "--lse", self.path("lse.npy"), "--shards", shards))
                self.assertEqual((result.returncode, result.stdout, result.stderr), (0, "", ""))
                for name, wanted in (("o.npy", wanted_out), ("lse.npy", wanted_lse)):
                    oracle.np.testing.assert_allclose(load(self.path(name))[0], wanted, rtol=1e-5, atol=1e-5)

    def test_bench_prints_once(self):
        arguments = ["bench", "--tokens", 201, "--heads", 2, "--head-dim", 8, "--branch", "64:2", "--repeats", 1,
                     "--format", "json"]
        result = mpirun(2, *arguments)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        bench = json.loads(result.stdout)
        self.assertEqual([row["rows"] for row in bench["ranks"]], [101, 100, 101, 100])
        self.assertGreater(bench["ranks"][0]["sent_bytes"], 0)

    def test_failures_are_told_once(self):
        self.save_inputs((1, 40, 2, 8))
        before = self.names()
        good = ["--branch", "16:1"]
        for arguments, says in ((self.attend_arguments(*good, "--ranks", 3), "--ranks 3"),
                                (self.attend_arguments(*good, "--query-start", 0), "--query-start"),
                                (self.attend_arguments(*good, out="missing/o.npy"), "--out"),
                                (self.attend_arguments("--branch", "16"), "--branch"),
                                (self.attend_arguments(*good, "--workspace-limit", "1"), "limit")):
            with self.subTest(says):
                result = mpirun(2, *arguments)
                self.assertNotEqual(result.returncode, 0)
                told = [line for line in result.stderr.splitlines() if line.startswith("annulus: ")]
                self.assertEqual(len(told), 1, result.stderr)
                self.assertIn(says, told[0])
                self.assertEqual(self.names(), before)


class BenchTest(ProgramTest):
    SIZES = ["--heads", 4, "--kv-heads", 2, "--head-dim", 16]

    @unittest.skipIf(SANITIZED, "takes minutes under sanitizers")
    def test_plan_says_what_a_run_measures(self):
        for name, (options, _) in PATTERNS.items():
            for ranks, tokens, dtype, shards in ((2, 128, "float32", "even"), (4, 83, "bfloat16", "even"),
                                                 (5, 3, "float64", "even"), (4, 83, "float32", "zigzag"),
                                                 (5, 3, "float32", "zigzag")):
                for exchange in ("auto", "ring", "gather"):
                    with self.subTest(name, ranks=ranks, tokens=tokens, shards=shards, exchange=exchange):
                        problem = ["--tokens", tokens, *self.SIZES, "--dtype", dtype, *options, "--ranks", ranks,
                                   "--exchange", exchange, "--shards", shards]
                        bench = run_json("bench", *problem, "--repeats", 1, "--threads", ranks)
                        self.assert_equal_costs(run_json("plan", *problem, "--threads", 1), bench)

    def assert_equal_costs(self, plan, bench):
        self.assertEqual([case["exchange"] for case in bench["cases"]], [plan["problem"]["exchange"]] * 2)
        planned = {row["quantity"]: row for row in plan["cost"]}
        for name in ("forward", "backward"):
            rows = [row for row in bench["ranks"] if row["pass"] == name]
            self.assertEqual(sum(row["rows"] for row in rows), plan["problem"]["tokens"])
            for key in ("workspace_bytes", "sent_bytes", "received_bytes"):
                measured = [row[key] for row in rows]
                told = planned[f"{name}_{key}"]
                self.assertEqual((sum(measured), max(measured), min(measured)),
                                 (told["total"], told["largest_rank"], told["smallest_rank"]), (name, key))

    def test_speeds(self):
        sizes = ["--tokens", 60, *self.SIZES, "--branch", "16:1", "--repeats", 2, "--threads", 2]
        for weak in (False, True):
            with self.subTest(weak=weak):
                bench = run_json("bench", *sizes, "--ranks", 3, *["--weak"] * weak)
                for row, factor in zip(bench["cases"], (4, 10)):
                    tokens = 180 if weak else 60
                    pairs = 4 * sum(length ** 2 for length in [16] * (tokens // 16) + [tokens % 16])
                    alone = 4 * (3 * 16 ** 2 + 12 ** 2)
                    self.assertEqual((row["tokens"], row["ranks"]), (tokens, 3))
                    self.assertAlmostEqual(row["flops_per_second"] * row["seconds"] / (factor * 16 * pairs), 1)
                    self.assertAlmostEqual(
                        row["one_rank_flops_per_second"] * row["one_rank_seconds"] / (factor * 16 * alone), 1)
                    self.assertAlmostEqual(row["flops_per_second_per_rank"] * 3 / row["flops_per_second"], 1)
                    self.assertAlmostEqual(
                        row["flops_per_second"] / row["one_rank_flops_per_second"] / row["speed_up"], 1)
                    self.assertAlmostEqual(row["speed_up"] / 3 / row["efficiency"], 1)
                    share = row["flops_per_second_per_rank"] * row["seconds"] / row["row_seconds"]
                    alone = row["one_rank_flops_per_second"] * row["one_rank_seconds"] / row["row_one_rank_seconds"]
                    self.assertAlmostEqual(share / alone / row["row_efficiency"], 1)
                    self.assertLessEqual(0, row["row_host_seconds"])
                    self.assertLessEqual(row["row_host_seconds"], 1.01 * row["row_seconds"])
                    self.assertLessEqual(row["seconds_min"], row["seconds"])
                    self.assertLessEqual(row["seconds"], row["seconds_max"])
                self.assertEqual(bench["machine"]["threads"], 1)

    def test_refusals(self):
        case = ["--tokens", 60, *self.SIZES, "--branch", "16:1"]
        for options, says in ((["--scaling", "--ranks", 2], "--scaling"), ([*case, "--weak"], "--weak"),
                              ([*case, "--ranks", 2, "--weak", "--tokens", 2 ** 62], "tokens")):
            with self.subTest(options):
                self.assert_refused(run("bench", *options, timeout=60), says=says)


if __name__ == "__main__":
    tap.main()
