# SPDX-License-Identifier: Apache-2.0
"""annulus plan: compares its sums with counts of the definition's pairs and rows."""

import json
import re
import xml.etree.ElementTree

from colors import assert_colors_suit_any_ground
from program import ProgramTest, cuda_device_count, np, run, run_json
import oracle
import tap

BRANCHES = [{"w": 16, "r": 1}, {"w": 48, "r": 3}, {"w": 0, "r": 4}]
BRANCH_OPTIONS = ["--branch", "16:1", "--branch", "48:3", "--branch", "0:4"]
TOKENS, HEADS, KV_HEADS, DIM, BATCH = 83, 4, 2, 16, 2
SIZES = ["--tokens", TOKENS, "--heads", HEADS, "--kv-heads", KV_HEADS, "--head-dim", DIM, "--batch", BATCH]


def shards(ranks, rule="even"):
    """Returns the positions of each rank, in ranges."""
    if rule == "even":
        return [[piece] for piece in np.array_split(np.arange(TOKENS), ranks)]
    pieces = np.array_split(np.arange(TOKENS), 2 * ranks)
    pairs = [[pieces[i], pieces[-1 - i]] for i in range(ranks - 1)]
    return pairs + [[np.concatenate(pieces[ranks - 1:ranks + 1])]]  # the last rank's two shards are adjacent


def counts(branch, ranges, causal):
    """Returns the (query, key) pairs of a rank's queries, and the key/value rows of other ranks that they attend to.
    Each range receives its own rows."""
    keys, _ = oracle.branch_keys(TOKENS, HEADS, **branch)
    if causal:
        keys = keys * np.tri(TOKENS, dtype=int)
    own = np.concatenate(ranges)
    pairs = rows = 0
    for part in ranges:
        wanted = keys[:, part].reshape(KV_HEADS, HEADS // KV_HEADS, len(part), TOKENS).any((1, 2))
        wanted[:, own] = False
        pairs += BATCH * int(keys[:, part].sum())
        rows += BATCH * int(wanted.sum())
    return pairs, rows


class PlanTest(ProgramTest):
    def plan(self, *options):
        plan = run_json("plan", *SIZES, *options)
        return plan["problem"], {row["quantity"]: row for row in plan["cost"]}, plan["branches"]

    def test_sums_over_ranks_and_branches(self):
        for ranks in (1, 2, 5, 83, 100):
            for causal, rule in ((False, "even"), (True, "even"), (False, "zigzag"), (True, "zigzag")):
                with self.subTest(ranks=ranks, causal=causal, rule=rule):
                    problem, cost, branches = self.plan("--ranks", ranks, *BRANCH_OPTIONS, *["--causal"] * causal,
                                                        "--shards", rule)
                    rank_ranges = shards(ranks, rule)
                    self.assertEqual(problem["tokens_per_rank"], max(sum(map(len, ranges)) for ranges in rank_ranges))
                    per_shard = [[counts(branch, ranges, causal) for branch in BRANCHES] for ranges in rank_ranges]
                    pairs = np.array(per_shard, float)[..., 0]
                    rows = np.array(per_shard)[..., 1]
                    for key, factor in (("forward_flops", 4 * DIM), ("backward_flops", 10 * DIM)):
                        self.assertEqual(cost[key]["total"], factor * pairs.sum())
                        self.assertEqual(cost[key]["largest_rank"], factor * pairs.sum(1).max())
                        self.assertEqual([row[key] for row in branches], list(factor * pairs.sum(0)))
                    row_bytes = 2 * DIM * 4  # of K and V together
                    self.assertLessEqual(cost["forward_sent_bytes"]["total"], row_bytes * rows.sum())
                    for key in ("forward", "backward"):
                        self.assertEqual(cost[key + "_sent_bytes"]["total"], cost[key + "_received_bytes"]["total"])
                        self.assertEqual(cost[key + "_sent_bytes"]["total"] == 0, ranks == 1)
                        for what in ("sent_bytes", "received_bytes", "workspace_bytes"):
                            row = cost[f"{key}_{what}"]
                            self.assertLessEqual(row["smallest_rank"] * ranks, row["total"])
                            self.assertGreaterEqual(row["largest_rank"] * ranks, row["total"])
                    self.assertEqual([row["received_bytes"] for row in branches], list(row_bytes * rows.sum(0)))
                    self.assertEqual([row["largest_rank_received_bytes"] for row in branches],
                                     list(row_bytes * rows.max(0)))
                    self.assertAlmostEqual(sum(row["forward_flops_share"] for row in branches), 1)

    def test_engines(self):
        """The engine that would compute on one rank."""
        for options, engine in (([], "cpu"), (["--engine", "reference"], "reference"), (["--ranks", 2], None)):
            problem, _, _ = self.plan(*BRANCH_OPTIONS, *options)
            self.assertEqual([problem["forward_engine"], problem["backward_engine"]], [engine, engine])

    def test_rules_that_share_causal_work_evenly(self):
        """One branch over all 8000 positions: with even shards the last of 4 ranks has 7/4 of the mean."""
        for rule, largest in (("even", 7 / 4), ("zigzag", 1), ("balanced", 1)):
            plan = run_json("plan", "--tokens", 8000, "--heads", 1, "--head-dim", 8, "--branch", "0:1", "--causal",
                            "--ranks", 4, "--shards", rule)
            flops = next(row for row in plan["cost"] if row["quantity"] == "forward_flops")
            self.assertAlmostEqual(flops["largest_rank"] / (flops["total"] / 4), largest, delta=0.001)

    def test_memory(self):
        for dtype, element, statistic in (("float64", 8, 8), ("float32", 4, 4), ("bfloat16", 2, 4), ("float16", 2, 4)):
            with self.subTest(dtype):
                _, cost, _ = self.plan("--ranks", 5, *BRANCH_OPTIONS, "--dtype", dtype)
                token = BATCH * 2 * (HEADS + KV_HEADS) * DIM * element
                statistics = BATCH * HEADS * statistic
                self.assertEqual(cost["tensor_bytes"]["total"], TOKENS * (token + statistics))
                self.assertEqual(cost["tensor_bytes"]["largest_rank"], 17 * (token + statistics))
                self.assertEqual(cost["gradient_bytes"]["total"], TOKENS * token)
                self.assertEqual(
                    cost["forward_memory_bytes"]["total"],
                    sum(cost[key]["total"] for key in ("tensor_bytes", "forward_workspace_bytes")))
                self.assertEqual(
                    cost["backward_memory_bytes"]["total"],
                    sum(cost[key]["total"] for key in
                        ("tensor_bytes", "gradient_bytes", "backward_workspace_bytes")))

    def test_units_of_numbers(self):
        sizes = ["--heads", 2, "--head-dim", 8]
        for text, number in (("1M", 10 ** 6), ("3k", 3000), ("3K", 3000), ("2G", 2 * 10 ** 9), ("1T", 10 ** 12),
                             ("1B", 10 ** 9), ("1e9", 10 ** 9), ("25e3", 25000), ("7e0", 7),
                             ("2Ki", 2048), ("5Mi", 5 << 20), ("1Gi", 1 << 30), ("1Ti", 1 << 40), ("77", 77)):
            with self.subTest(text):
                plan = run_json("plan", "--tokens", text, *sizes, "--branch", "64:1")
                self.assertEqual(plan["problem"]["tokens"], number)
        cost = [run_json("plan", "--tokens", "1M", *sizes, *more)["cost"] for more in (
            ["--branch", "2Ki:1", "--branch", "1M:1k,phase=fixed:1k", "--preset", "longnet:1Ki,2,2,2"],
            ["--branch", "2048:1", "--branch", "1000000:1000,phase=fixed:1000", "--preset", "longnet:1024,2,2,2"])]
        self.assertEqual(*cost)

    def test_aliases_of_dtypes(self):
        for alias, dtype in (("fp64", "float64"), ("fp32", "float32"), ("bf16", "bfloat16"), ("fp16", "float16")):
            self.assertEqual(self.plan("--branch", "8:1", "--dtype", alias), self.plan("--branch", "8:1", "--dtype", dtype))

    def test_labels_of_branches(self):
        for options, labels in (
                (["--preset", "longnet:2048,4,2,3", "--branch", "5:1,query=every"],
                 ["2048:1", "8192:2", "32768:4", "5:1,query=every"]),
                (["--preset", "gigapath"], ["1024:1", "5792:2", "32768:4", "185363:8", "1048576:16"])):
            _, _, branches = self.plan(*options)
            self.assertEqual([row["branch"] for row in branches], labels)

    def test_labels_of_presets_are_their_branches(self):
        sizes = ["--tokens", 2_000_000, "--heads", 16, "--head-dim", 48]
        for preset in ("gigapath", "longnet:2048,4,2,3"):
            preset_branches = run_json("plan", *sizes, "--preset", preset)["branches"]
            one_by_one = [part for row in preset_branches for part in ("--branch", row["branch"])]
            self.assertEqual(run_json("plan", *sizes, *one_by_one)["branches"], preset_branches)

    def test_huge_problems(self):
        plan = run_json("plan", "--tokens", 10 ** 9, "--heads", 16, "--head-dim", 128, "--dtype", "bfloat16", "--ranks",
                        1000, "--preset", "longnet:2048,2,2,6")
        cost = {row["quantity"]: row for row in plan["cost"]}
        self.assertEqual(cost["gradient_bytes"]["total"], 4 * 2 * 16 * 128 * 10 ** 9)
        self.assertEqual(cost["gradient_bytes"]["largest_rank"], 4 * 2 * 16 * 128 * 10 ** 6)

    def test_every_format_shows_every_branch(self):
        for options in ([], ["--format", "text"], ["--format", "markdown"], ["--format", "json"]):
            result = run("plan", *SIZES, *BRANCH_OPTIONS, *options)
            self.assertEqual((result.returncode, result.stderr), (0, ""))
            for label in ("16:1", "48:3", "0:4"):
                self.assertIn(label, result.stdout)
        for line in run("plan", *SIZES, *BRANCH_OPTIONS, "--format", "markdown").stdout.splitlines():
            self.assertTrue(line == "" or line.startswith(("### ", "| ", "|-")), line)


H100 = ["--gpu", "H100", "--dtype", "bfloat16"]
GPUS = {"A100": 8.0, "L40S": 8.9, "H100": 9.0, "H200": 9.0, "B200": 10.0}


class GpuTest(ProgramTest):
    """GPUs that need not be here."""

    def times(self, *options):
        plan = run_json("plan", *options)
        return plan, {row["quantity"]: (row["forward"], row["backward"]) for row in plan["time"]}

    def test_every_plan_names_its_device(self):
        sizes = [*SIZES, *BRANCH_OPTIONS]
        self.assertEqual(run_json("plan", *sizes)["problem"]["device"], "cpu")
        self.assertNotIn("time", run_json("plan", *sizes))
        for name, capability in GPUS.items():
            with self.subTest(name):
                plan, times = self.times(*sizes, "--gpu", name, "--dtype", "float16")
                self.assertEqual(plan["problem"]["device"], name)
                self.assertEqual(plan["gpu"]["compute_capability"], capability)
                engine = "fused" if capability == 9.0 else "mma"
                self.assertEqual([plan["problem"][f"{pass_}_engine"] for pass_ in ("forward", "backward")], 2 * [engine])
                self.assertGreater(min(times["seconds"]), 0)

    def test_engines(self):
        for name, dtype, dim, engine, engines in (
                ("H100", "float32", 64, "auto", ["mma", "mma"]), ("H100", "float32", 136, "auto", ["mma", "gemm"]),
                ("L40S", "float32", 200, "auto", ["gemm", "gemm"]), ("A100", "float32", 200, "auto", ["mma", "gemm"]),
                ("H100", "float16", 256, "auto", ["fused", "fused"]), ("H100", "float16", 64, "mma", ["mma", "mma"]),
                ("H200", "bfloat16", 64, "gemm", ["gemm", "gemm"])):
            with self.subTest(name=name, dtype=dtype, dim=dim, engine=engine):
                plan, times = self.times("--tokens", 1000, "--heads", 2, "--head-dim", dim, "--dtype", dtype, "--branch",
                                         "0:1", "--gpu", name, "--engine", engine)
                problem = plan["problem"]
                self.assertEqual([problem["forward_engine"], problem["backward_engine"]], engines)
                # Gemm has no prediction.
                self.assertEqual([seconds is None for seconds in times["seconds"]], [e == "gemm" for e in engines])

    def test_limits_of_engines(self):
        """Beyond the limits of `fused` and `mma` it is gemm, and an error if --engine names one of them."""
        sizes = ["--heads", 2, "--head-dim", 64, *H100]
        curve = ["--tokens", 5120, "--branch", "512:2,order=hilbert"]
        many = [part for i in range(1, 66) for part in ("--branch", f"{8 * i}:1")]
        once = ["--tokens", 5000, "--key-rule", "once"]
        for options, engine in (
                (["--tokens", 5000, "--branch", "64:1", "--scale", -1], "gemm"),
                (["--tokens", 5000, "--branch", "64:1", "--scale", 2], "fused"),
                (["--tokens", 5000, *many], "gemm"), (["--tokens", 5000, *many[2:]], "fused"),
                (["--tokens", 1 << 30, "--branch", "64:1"], "gemm"),
                (["--tokens", (1 << 30) - 1, "--branch", "64:1"], "fused"),
                ([*once, "--branch", "64:2", "--branch", "96:3"], "gemm"),
                ([*once, "--branch", "64:2", "--branch", "96:6"], "fused"),
                ([*once, "--branch", "64:2", "--branch", "96:6,query=every"], "gemm"),
                ([*once, "--branch", "64:1", "--branch", "96:6,query=every"], "fused"),
                ([*curve, "--ranks", 2], "fused"), ([*curve, "--ranks", 3], "gemm"),
                ([*curve[:3], "512:2,order=hilbert,query=every"], "fused"),
                ([*curve[:3], "512:2,order=hilbert,query=every", "--causal"], "gemm")):
            with self.subTest(options=options):
                problem = run_json("plan", *sizes, *options)["problem"]
                self.assertEqual([problem["forward_engine"], problem["backward_engine"]], 2 * [engine])
                if engine == "gemm":
                    for name in ("fused", "mma"):
                        self.assert_refused(run("plan", *sizes, *options, "--engine", name), says="; gemm does")

    def test_kernel_times(self):
        """Times on one GPU are within 20 % of times that were measured (doc/performance.md)."""
        for tokens, options, measured in (
                (250001, ["--heads", 16, "--head-dim", 128, "--preset", "longnet:2048,2,2,6"], (11.6e-3, 38.9e-3)),
                (70000, ["--heads", 16, "--head-dim", 48, "--preset", "gigapath"], (3.37e-3, 9.45e-3)),
                (16384, ["--heads", 16, "--head-dim", 128, "--branch", "0:1", "--causal"], (1.66e-3, 5.17e-3))):
            _, times = self.times("--tokens", tokens, *options, *H100)
            for predicted, seconds in zip(times["seconds"], measured):
                self.assertLess(abs(predicted / seconds - 1), 0.2, (tokens, options))

    def test_times_add_up(self):
        for ranks, hosts, options in ((1, 1, []), (2, 1, []), (6, 3, []), (6, 3, ["--exchange", "ring"]),
                                      (4, 2, ["--causal", "--shards", "zigzag"])):
            with self.subTest(ranks=ranks, hosts=hosts, options=options):
                plan, times = self.times("--tokens", 100_003, "--heads", 4, "--head-dim", 64, "--branch", "2048:1",
                                         "--branch", "0:16", "--ranks", ranks, "--hosts", hosts, *options, *H100)
                for i in range(2):
                    part = {key: pair[i] for key, pair in times.items()}
                    self.assertAlmostEqual(part["seconds"], sum(part[key] for key in (
                        "kernel_seconds", "exposed_seconds", "launch_seconds", "agreement_seconds")))
                    self.assertLessEqual(part["exposed_seconds"], part["message_seconds"])
                    self.assertAlmostEqual(part["efficiency"], part["mean_kernel_seconds"] / part["seconds"])
                    self.assertEqual(part["message_seconds"] > 0, ranks > 1)
                self.assertEqual("links" in plan, ranks > 1)

    def test_links(self):
        """Messages take as long as the file says: an exchange of all rows forward, and of their gradients backward."""
        path = self.path("links.json")
        link = {"exchange_seconds": 3.0, "bytes_per_second": 1e6}
        near = {"annulus_links": 1, "source": "a test", "device": "cuda", "agreement_seconds": 7.0, "same_host": link}
        far = {**near, "other_hosts": {"exchange_seconds": 5.0, "bytes_per_second": 2e6}}
        sizes = ["--tokens", 4096, "--heads", 2, "--head-dim", 64, "--ranks", 4, *H100]
        for contents, hosts, branch, exchange, rate in (
                (near, 1, "0:1", 3.0, 1e6), (far, 1, "0:1", 3.0, 1e6), (far, 2, "0:1", 5.0, 2e6),
                (far, 2, "2048:1", 3.0, 1e6)):  # segments inside a host
            with self.subTest(hosts=hosts, branch=branch):
                path.write_text(json.dumps(contents), encoding="utf-8")
                plan, times = self.times(*sizes, "--branch", branch, "--exchange", "gather", "--hosts", hosts, "--links",
                                         path)
                self.assertEqual(plan["links"]["source"], "a test")
                self.assertEqual(times["agreement_seconds"], (7.0, 7.0))
                sent = {row["quantity"]: row["largest_rank"] for row in plan["cost"]}
                self.assertAlmostEqual(times["message_seconds"][0], exchange + sent["forward_sent_bytes"] / rate)
                self.assertAlmostEqual(times["message_seconds"][1], 2 * exchange + sent["backward_sent_bytes"] / rate)
        good = [*sizes, "--branch", "0:1", "--links", path]
        for contents, says in (
                ("{", "is not JSON"), ({**near, "device": "cpu"}, "'device' is \"cpu\""), ({**near, "device": 1}, "'device' is 1"),
                ({**near, "other_host": link}, "unknown 'other_host'"),
                ({**near, "same_host": {**link, "rate": 1}}, "same_host: unknown 'rate'"), ("[]", "must be an object"), ({}, "'annulus_links' is missing"),
                ({**near, "annulus_links": 2}, "'annulus_links' is 2"), ({**near, "source": 3}, "'source' is 3"),
                ({**near, "agreement_seconds": -1}, "'agreement_seconds' is -1"),
                ({**near, "same_host": {**link, "bytes_per_second": 0}}, "'bytes_per_second' is 0"),
                ({**near, "same_host": []}, "must be an object"),
                ({key: value for key, value in far.items() if key != "same_host"}, "has no link in a host")):
            with self.subTest(says):
                path.write_text(contents if isinstance(contents, str) else json.dumps(contents), encoding="utf-8")
                self.assert_refused(run("plan", *good), says=says)
        path.write_text(json.dumps(near), encoding="utf-8")
        self.assert_refused(run("plan", *good, "--hosts", 2), says="has no link between hosts")
        self.assert_refused(run("plan", *good, "--links", self.path("none.json")), says="--links")

    def test_least_ranks(self):
        """The tensors and workspace of a rank fit with that number of ranks, and not with one less."""
        sizes = ["--tokens", 40_000_000, "--heads", 16, "--head-dim", 128, "--branch", "2048:1", "--branch", "8192:4"]
        plan = run_json("plan", *sizes, *H100)
        for pass_ in ("forward", "backward"):
            least = plan["gpu"][f"{pass_}_least_ranks"]
            self.assertGreater(least, 1)
            for ranks in (least - 1, least):
                cost = {row["quantity"]: row for row in run_json("plan", *sizes, *H100, "--ranks", ranks)["cost"]}
                self.assertEqual(cost[f"{pass_}_memory_bytes"]["smallest_rank"] <= plan["gpu"]["memory_bytes"],
                                 ranks == least, ranks)
        self.assertEqual(run_json("plan", *SIZES, *BRANCH_OPTIONS, *H100)["gpu"]["backward_least_ranks"], 1)

    def test_memory_of_ranks(self):
        """The workspace is at least what two H200s took (doc/ranks.md), and less than float32 sums of all rows."""
        longnet = ["--preset", "longnet:2048,4,4,5"]
        for rows, heads, options, measured in (
                (65536, 16, longnet, (48.5, 104)), (65537, 16, longnet, (160, 438)),
                (65537, 8, ["--branch", "window:4095,0:1", "--causal"], (32.5, 84.5))):
            plan = run_json("plan", "--tokens", 2 * rows, "--heads", heads, "--head-dim", 128, *options, "--dtype",
                            "bfloat16", "--gpu", "H200", "--ranks", 2)
            cost = {row["quantity"]: row["largest_rank"] for row in plan["cost"]}
            for pass_, bytes_, sums in zip(("forward", "backward"), measured, (1, 3)):
                workspace = cost[f"{pass_}_workspace_bytes"]
                self.assertGreaterEqual(workspace, bytes_ * 2**20, (rows, options, pass_))
                self.assertLess(workspace, 4 * sums * 128 * heads * rows, (rows, options, pass_))
        # Sums of all rows, as many heads share a key, and as the whole sequence is one segment.
        for options, sums in ((["--kv-heads", 2, *longnet], 2 * 2), (["--kv-heads", 16, "--branch", "0:1"], 3 * 16)):
            plan = run_json("plan", "--tokens", 70001, "--heads", 16, "--head-dim", 128, *options, "--gpu", "H200",
                            "--dtype", "bfloat16", "--ranks", 2)
            cost = {row["quantity"]: row["largest_rank"] for row in plan["cost"]}
            self.assertGreaterEqual(cost["backward_workspace_bytes"], 4 * 128 * sums * 35001)

    def test_memory_that_does_not_suffice(self):
        """A pass that does not fit has no times, and ranks that cannot be found have a reason."""
        sizes = ["--heads", 16, "--head-dim", 128, "--branch", "2048:1", "--dtype", "bfloat16"]
        for tokens, gpu, ranks, has_times in (
                (2_500_000, "H200", 1, (True, True)), (2_500_000, "H100", 1, (True, False)),
                (3_000_000, "L40S", 1, (False, False)), (3_000_000, "L40S", 6, (True, True))):
            options = ["--tokens", tokens, "--gpu", gpu, "--ranks", ranks]
            plan, times = self.times(*sizes, *options)
            cost = {row["quantity"]: row["largest_rank"] for row in plan["cost"]}
            fits = tuple(cost[f"{pass_}_memory_bytes"] <= plan["gpu"]["memory_bytes"] for pass_ in ("forward", "backward"))
            self.assertEqual(fits, has_times, options)
            for values in times.values():
                self.assertEqual(tuple(value is not None for value in values), has_times, options)
        result = run("plan", "--tokens", "100G", "--heads", 64, "--head-dim", 128, "--branch", "2048:1", *H100)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertRegex(result.stdout, "GPUs with enough memory, backward +more than 4,?096")
        self.assertIn("both passes exceed the memory", result.stdout)

    def test_room_for_sums(self):
        """Forward's workspace is at most 1,280 MiB only if sums hold the reached rows alone."""
        sizes = ["--tokens", 4_000_000, "--heads", 8, "--head-dim", 64]
        all_rows, cap = 4 * 66 * 8 * 4_000_000, 1280 << 20
        nine = [part for i in range(9) for part in ("--branch", f"{64 << i}:{1 << i}")]
        for branches, least in (
                (nine, cap), ([*nine, "--branch", "0:512"], all_rows),
                (["--branch", "64:1", "--branch", "0:6"], cap), (["--branch", "64:2", "--branch", "0:6"], cap),
                (["--branch", "64:1", "--branch", "0:6", "--branch", "0:8,query=residue"], all_rows),
                (["--branch", "64:2", "--branch", "0:3"], all_rows),
                (["--branch", "64:1", "--branch", "4096:4,order=hilbert"], all_rows + 8 * 4_000_000)):
            with self.subTest(branches=branches):
                cost = {row["quantity"]: row for row in run_json("plan", *sizes, *branches, *H100)["cost"]}
                self.assertEqual(cost["forward_workspace_bytes"]["total"], least)
        curve = [*sizes, "--branch", "4096:4,order=hilbert", *H100]
        totals = [{row["quantity"]: row["total"] for row in run_json("plan", *curve, "--engine", engine)["cost"]}
                  for engine in ("fused", "mma")]
        for pass_, row_bytes in (("forward", 4 * 64), ("backward", 4 * 64 + 8)):
            key = f"{pass_}_workspace_bytes"
            self.assertEqual(totals[1][key] - totals[0][key], 8 * 4_000_000 * row_bytes)

    def test_queries_of_a_branch(self):
        """With the query rule residue all rows are queries, as with every; with dilated one of r."""
        sizes = ["--tokens", 100_000, "--heads", 8, "--head-dim", 64, "--branch", "2048:1", *H100]
        rules = {rule: self.times(*sizes, "--branch", f"0:16,query={rule}")[1]["kernel_seconds"]
                 for rule in ("dilated", "residue", "every")}
        for i in range(2):
            self.assertAlmostEqual(rules["residue"][i], rules["every"][i])
            self.assertLess(rules["dilated"][i], rules["residue"][i])

    def test_hosts(self):
        """Without --hosts eight ranks share a host."""
        sizes = [*SIZES, *BRANCH_OPTIONS, *H100]
        for ranks, hosts in ((1, 1), (8, 1), (9, 2), (17, 3)):
            self.assertEqual(run_json("plan", *sizes, "--ranks", ranks)["problem"]["hosts"], hosts)

    def slow_exchanges(self, seconds):
        """Returns the path of links whose exchanges take this time, whatever their bytes."""
        path = self.path("links.json")
        link = {"exchange_seconds": seconds, "bytes_per_second": 1e30}
        path.write_text(json.dumps({"annulus_links": 1, "source": "a test", "device": "cuda", "agreement_seconds": 0,
                                    "same_host": link}), encoding="utf-8")
        return path

    def test_zigzag_ring(self):
        """A rank's two shards exchange at the same time: the ring has as many rounds as shards besides one. The two
        shards in the middle are one."""
        path = self.slow_exchanges(3.0)
        _, times = self.times("--tokens", 4096, "--heads", 2, "--head-dim", 64, "--branch", "0:1", "--shards", "zigzag",
                              "--ranks", 4, "--exchange", "ring", "--links", path, *H100)
        self.assertAlmostEqual(times["message_seconds"][0], 6 * 3.0)
        self.assertAlmostEqual(times["message_seconds"][1], 2 * 6 * 3.0)

    def test_rings_of_several_sequences(self):
        """Round i of a call is round i of every sequence. Five documents on four ranks lie on two ranks each at most,
        and a middle rank has parts of two documents; two documents on five ranks lie on three ranks each."""
        sizes = ["--heads", 2, "--head-dim", 64, "--branch", "0:1", "--exchange", "ring",
                 "--links", self.slow_exchanges(3.0), *H100]
        for sequences, ranks, rounds in (("5:40:40", 4, 1), ("2:100:100", 5, 2), ("10:40:40", 2, 0)):
            _, times = self.times("--sequences", sequences, "--ranks", ranks, *sizes)
            self.assertAlmostEqual(times["message_seconds"][0], rounds * 3.0)
            self.assertAlmostEqual(times["message_seconds"][1], 2 * rounds * 3.0)

    def test_tf32(self):
        sizes = ["--tokens", 100_000, "--heads", 8, "--head-dim", 64, "--branch", "0:1", "--gpu", "H100"]
        _, exact = self.times(*sizes)
        _, tf32 = self.times(*sizes, "--tf32")
        for i in range(2):
            self.assertLess(tf32["seconds"][i], exact["seconds"][i])

    def test_sequences(self):
        """Pairs of packed sequences, on this machine and on a GPU."""
        options = ["--sequences", "5:10:50", "--heads", 2, "--head-dim", 16, "--branch", "0:1", "--dtype", "float16"]
        pairs = 2 * sum(n * n for n in (10, 20, 30, 40, 50))
        for more in ([], ["--gpu", "A100"], ["--ranks", 3, "--shards", "balanced"]):
            plan = run_json("plan", *options, *more)
            self.assertEqual((plan["problem"]["tokens"], plan["problem"]["sequences"]), (150, 5))
            cost = {row["quantity"]: row["total"] for row in plan["cost"]}
            self.assertEqual(cost["forward_flops"], 4 * 16 * pairs)

    def test_windows(self):
        longformer = ["--branch", "window:9,9", "--branch", "global:2,queries=all", "--key-rule", "once"]
        for options, engine in ((["--branch", "window:9,0:3"], "fused"), (longformer, "fused"),
                                ([*longformer, "--branch", "global:1,first=9"], "gemm"),
                                (["--key-rule", "once", *5 * ["--branch", "window:9,9"]], "gemm"),
                                (["--engine", "gemm", *longformer], "gemm"),
                                (["--ranks", 2, "--branch", "window:9,0:3"], "fused"),
                                (["--ranks", 2, "--engine", "gemm", "--branch", "window:9,0:3"], "gemm")):
            with self.subTest(options=options):
                problem = run_json("plan", *SIZES, *H100, *options)["problem"]
                self.assertEqual((problem["forward_engine"], problem["backward_engine"]), (engine, engine))

    def test_refusals(self):
        good = [*SIZES, *BRANCH_OPTIONS]
        for options, says in (
                (["--gpu", "V100"], "--gpu"), (["--hosts", 2, "--ranks", 2], "give --gpu"),
                (["--links", "x.json"], "give --gpu"), (["--gpu", "H100", "--device", "cuda"], "--device cuda:0"),
                ([*H100, "--hosts", 2], "--hosts 2"), (["--gpu", "H100", "--dtype", "float64"], "--dtype float64"),
                (["--gpu", "H100", "--engine", "fused"], "--engine fused"),
                (["--gpu", "A100", "--dtype", "float16", "--engine", "fused"], "--engine fused"),
                (["--gpu", "H100", "--engine", "mma", "--key-rule", "once", *5 * ["--branch", "window:9,9"]], "counts keys once"),
                (["--gpu", "H100", "--engine", "mma", "--key-rule", "once", *2 * ["--branch", "global:2"]],
                 "global positions"),
                (["--gpu", "H100", "--engine", "cpu"], "--engine cpu"), ([*H100, "--threads", 2], "--threads 2"),
                ([*H100, "--workspace-limit", "1Gi"], "--workspace-limit"), (["--hosts", 1], "give --gpu"),
                (["--sequences", "5:10:50"], "--sequences")):
            with self.subTest(options=options):
                self.assert_refused(run("plan", *good, *options), says=says)
        if cuda_device_count() == 0:
            self.assert_refused(run("plan", *good, "--device", "cuda"), says="such as --gpu H100")
        self.assert_refused(run("plan", *good[2:8], *BRANCH_OPTIONS, "--sequences", "1:2"), says="COUNT:MIN:MAX")


class PictureTest(ProgramTest):
    """Compares the drawn cells with the definition's mask."""

    def draw(self, tokens, heads, *options, cell=1):
        """Returns the shades of the cells for each head, and the largest number in the legend."""
        path = self.path("pattern.svg")
        result = run("plan", "--tokens", tokens, "--heads", heads, "--head-dim", 8, *options, "--svg", path)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertIn("Cost", result.stdout)
        svg = xml.etree.ElementTree.parse(path).getroot()
        side = -(-tokens // cell)
        panels, name = {}, "{http://www.w3.org/2000/svg}"
        for panel in svg.iter(name + "g"):
            shades = np.zeros((side, side), int)
            for drawn in panel.iter(name + "path"):
                for x, y, length, back in re.findall(r"M(\d+) (\d+)h(\d+)v1h-(\d+)z", drawn.get("d")):
                    self.assertEqual(length, back)
                    row = shades[int(y), int(x):int(x) + int(length)]
                    self.assertEqual((len(row), row.any()), (int(length), False))
                    row[:] = drawn.get("data-shade")
            for part in panel.get("data-heads").split(", "):
                first, _, last = part.partition("-")
                for head in range(int(first), int(last or first) + 1):
                    self.assertNotIn(head, panels)
                    panels[head] = shades
        self.assertEqual(sorted(panels), list(range(heads)))
        assert_colors_suit_any_ground(self, path)
        labels = [text.text for text in svg.iter(name + "text")]
        return np.array([panels[head] for head in range(heads)]), labels

    def test_every_rule(self):
        for options, branches, more in (
                (["--branch", "16:1"], [{"w": 16, "r": 1}], {}),
                (["--branch", "16:1", "--branch", "32:2", "--branch", "0:4", "--causal"],
                 [{"w": 16, "r": 1}, {"w": 32, "r": 2}, {"w": 0, "r": 4}], {"causal": True}),
                (["--branch", "24:3,phase=interleave,query=every"],
                 [{"w": 24, "r": 3, "phase": "interleave", "query": "every"}], {}),
                (["--branch", "40:4,query=residue", "--causal"], [{"w": 40, "r": 4, "query": "residue"}],
                 {"causal": True}),
                (["--branch", "36:3,order=hilbert", "--branch", "9:2,heads=1-2,phase=fixed:1"],
                 [{"w": 36, "r": 3, "order": "hilbert"},
                  {"w": 9, "r": 2, "first_head": 1, "head_count": 2, "phase": "1"}], {}),
                (["--branch", "16:1", "--branch", "32:1", "--key-rule", "once", "--padding", "zero-keys", "--scale", 3],
                 [{"w": 16, "r": 1}, {"w": 32, "r": 1}], {"once": True}),
                (["--branch", "8:1,heads=2"], [{"w": 8, "r": 1, "first_head": 2, "head_count": 1}], {})):
            for tokens in (1, 50, 128):
                with self.subTest(options, tokens=tokens):
                    keys = sum(oracle.branch_keys(tokens, 4, **branch)[0] for branch in branches)
                    keys = np.minimum(keys, 1) if more.get("once") else keys
                    keys = keys * np.tri(tokens, dtype=int) if more.get("causal") else keys
                    shades, labels = self.draw(tokens, 4, *options)
                    np.testing.assert_array_equal(shades, keys)
                    self.assertEqual([label for label in labels if label.isdigit()],
                                     [str(times) for times in range(1, keys.max() + 1)])

    def test_more_tokens_than_cells(self):
        """Cells are a multiple of the dilation, unless that leaves fewer than 32."""
        for tokens, dilation, cell in ((300, 2, 4), (300, 5, 5), (300, 10, 3), (320, 10, 10), (299, 13, 3)):
            with self.subTest(tokens=tokens, dilation=dilation):
                shades, labels = self.draw(tokens, 2, "--branch", "100:1", "--branch",
                                           f"0:{dilation},phase=interleave", "--causal", cell=cell)
                keys = sum(oracle.branch_keys(tokens, 2, **branch)[0]
                           for branch in ({"w": 100, "r": 1}, {"w": 0, "r": dilation, "phase": "interleave"}))
                keys = keys * np.tri(tokens, dtype=int)
                firsts = np.arange(0, tokens, cell)
                lengths = np.diff(firsts, append=tokens)
                means = np.add.reduceat(np.add.reduceat(keys, firsts, 1), firsts, 2) / np.outer(lengths, lengths)
                np.testing.assert_array_equal(shades, np.ceil(means / means.max() * 4 - 1e-9))
                self.assertIn(f"up to {means.max():.3g}", labels)

    def test_ranks(self):
        """A line at each shard except the first, in both directions, and the rank's number beside its rows."""
        name = "{http://www.w3.org/2000/svg}"
        for tokens, ranks, shards, starts, owners in (
                (32, 4, "even", [8, 16, 24], [0, 1, 2, 3]), (1000, 3, "even", [334, 667], [0, 1, 2]),
                (90, 2, "zigzag", [23, 68], [0, 0, 1]), (64, 64, "even", list(range(1, 64)), []),
                (65, 65, "even", [], []), (32, 1, "even", [], [])):
            with self.subTest(tokens=tokens, ranks=ranks):
                path = self.path("pattern.svg")
                result = run("plan", "--tokens", tokens, "--heads", 1, "--head-dim", 8, "--branch", "16:1", "--ranks",
                             ranks, "--shards", shards, "--svg", path)
                self.assertEqual((result.returncode, result.stderr), (0, ""))
                svg = xml.etree.ElementTree.parse(path).getroot()
                frame = next(box for box in svg.iter(name + "rect") if box.get("class") == "faint")
                left, top, side = (float(frame.get(key)) for key in ("x", "y", "width"))
                cell = -(-tokens // 128)
                unit = side / (-(-tokens // cell) * cell)
                borders = [line for line in svg.iter(name + "path") if line.get("class") == "border"]
                self.assertEqual(sorted(int(line.get("data-position")) for line in borders), starts)
                for line in borders:
                    at = unit * int(line.get("data-position"))
                    x, y, right, column, begin, down = map(float, re.fullmatch(
                        r"M(\S+) (\S+)h(\S+)M(\S+) (\S+)v(\S+)", line.get("d")).groups())
                    np.testing.assert_allclose((x, y, right, column, begin, down),
                                               (left, top + at, side, left + at, top, side), rtol=1e-4)
                texts = list(svg.iter(name + "text"))
                numbers = [int(text.text) for text in texts if text.get("text-anchor") == "end"]
                self.assertEqual(sorted(numbers), owners)
                self.assertEqual(any("without borders" in text.text for text in texts), ranks == 65)
                self.assertEqual(any("lines: borders" in text.text for text in texts), 1 < ranks < 65)
                self.assertEqual(texts[0].text.endswith(f"; {ranks} ranks"), ranks > 1)

    def test_refusals(self):
        for tokens, heads, path, says in ((2049, 1, "x.svg", "2048 tokens"), (64, 65, "x.svg", "64 heads"),
                                          (64, 1, "missing/x.svg", "--svg: "), (64, 1, "-", "--svg: "),
                                          (64, 1, "x.png", "--svg: 'x.png': the name must end in .svg"),
                                          (64, 1, "svg", "--svg: 'svg': the name must end in .svg")):
            with self.subTest(says):
                self.assert_refused(run("plan", "--tokens", tokens, "--heads", heads, "--head-dim", 8, "--branch", "8:1",
                                        "--svg", path, cwd=self.directory), says=says)
                self.assertEqual(self.names(), [])


if __name__ == "__main__":
    tap.main()
