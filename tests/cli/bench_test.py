# SPDX-License-Identifier: Apache-2.0
"""annulus bench and annulus info: checks what they print, not how fast anything is."""

import json
import os
import pathlib
import platform
import re
import subprocess
import unittest.mock
import xml.etree.ElementTree

from colors import assert_colors_suit_any_ground
from program import PROGRAM, ProgramTest, cuda_device_count, has_mpi, mpirun_command, run, run_json
import oracle
import tap

SMALL = ["bench", "--tokens", 200, "--heads", 4, "--kv-heads", 2, "--head-dim", 16, "--branch", "64:1", "--branch",
         "128:2,phase=interleave", "--repeats", 2, "--threads", 2]


class BenchTest(ProgramTest):
    def test_a_case_of_ones_own(self):
        for options, dtype, masked in (([], "float32", False), (["--causal", "--dtype", "bfloat16"], "bfloat16", True)):
            with self.subTest(dtype):
                bench = run_json(*SMALL, *options)
                self.assertEqual([row["pass"] for row in bench["cases"]], ["forward", "backward"])
                keys = sum(oracle.branch_keys(200, 4, **branch)[0]
                           for branch in ({"w": 64, "r": 1}, {"w": 128, "r": 2, "phase": "interleave"}))
                pairs = sum(int(keys[:, n, :n + 1].sum()) if masked else int(keys[:, n].sum()) for n in range(200))
                for row, factor in zip(bench["cases"], (4, 10)):
                    self.assertEqual(row["tokens"], 200)
                    self.assertIn("64:1 128:2,phase=interleave", row["case"])
                    self.assertLessEqual(row["seconds_min"], row["seconds"])
                    self.assertLessEqual(row["seconds"], row["seconds_max"])
                    self.assertAlmostEqual(row["flops_per_second"] * row["seconds"] / (factor * 16 * pairs), 1)
                    self.assertAlmostEqual(row["tokens_per_second"] * row["seconds"] / 200, 1)
                    self.assertGreater(row["share_of_sgemm"], 0)
                    self.assertGreater(row["workspace_bytes"], 0)
                    self.assertIn("measured_peak_bytes", row)
                self.assertEqual(bench["machine"]["threads"], 2)
                self.assertEqual(bench["machine"]["sgemm_measurements"], 3)
                self.assertGreater(bench["machine"]["sgemm_flops_per_second"], 0)

    def test_processor(self):
        """The processor's name as the system tells it, or else the architecture."""
        lines = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        names = [line.partition(": ")[2] for line in lines if line.startswith("model name")] or [platform.machine()]
        self.assertEqual(run_json(*SMALL)["machine"]["processor"], names[0])

    def test_threads_of_the_environment(self):
        """ANNULUS_NUM_THREADS counts if --threads is not given, and ranks share its threads."""
        command = SMALL[:SMALL.index("--threads")]
        with unittest.mock.patch.dict(os.environ, ANNULUS_NUM_THREADS="3"):
            self.assertEqual(run_json(*command)["machine"]["threads"], 3)
            self.assertEqual(run_json(*SMALL)["machine"]["threads"], 2)
            self.assertEqual(run_json(*command, "--ranks", 3)["machine"]["threads"], 1)

    def test_sequences(self):
        options = ["--heads", 2, "--head-dim", 16, "--branch", "0:1", "--repeats", 2, "--threads", 2]
        bench = run_json("bench", "--sequences", "5:10:50", *options)
        self.assertEqual([row["pass"] for row in bench["sequences"]], ["forward", "backward"])
        pairs, batch_pairs = 2 * sum(n * n for n in (10, 20, 30, 40, 50)), 2 * 5 * 30 ** 2
        for row in bench["sequences"]:
            self.assertLessEqual(row["seconds_min"], row["seconds"])
            self.assertLessEqual(row["seconds"], row["seconds_max"])
            self.assertAlmostEqual(row["pairs_per_second"] * row["seconds"] / pairs, 1)
            self.assertAlmostEqual(row["batch_pairs_per_second"] * row["batch_seconds"] / batch_pairs, 1)
            ratio = row["seconds"] / (row["batch_seconds"] * pairs / batch_pairs)
            self.assertAlmostEqual(row["time_to_batch_rate"] / ratio, 1)
        one = run_json("bench", "--sequences", "1:33:33", *options)
        self.assertAlmostEqual(one["sequences"][0]["pairs_per_second"] * one["sequences"][0]["seconds"] / (2 * 33 ** 2), 1)

    def test_links(self):
        """Threads and processes measure their links, and plan reads what they write."""
        commands = [[PROGRAM, "bench", "--ranks", "3"]]
        if has_mpi():
            commands.append([*mpirun_command(2), "bench"])
        for command, way in zip(commands, ("3 ranks: threads", "2 ranks: processes over MPI")):
            path = self.path("links.json")
            done = subprocess.run([*command, "--links", str(path), "--repeats", "5", "--format", "json"], text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            links, printed = json.loads(path.read_text(encoding="utf-8")), json.loads(done.stdout)["links"]
            self.assertIn(way, links["source"])
            self.assertEqual(links["same_host"]["bytes_per_second"], printed["same_host_bytes_per_second"])
            self.assertGreater(links["same_host"]["bytes_per_second"], 0)
            self.assertGreaterEqual(links["agreement_seconds"], 0)
            plan = ["plan", "--tokens", 4096, "--heads", 2, "--head-dim", 64, "--dtype", "float16", "--branch", "0:1",
                    "--ranks", 2, "--gpu", "H100", "--links", path]
            self.assert_refused(run(*plan), says="'device' is \"cpu\"")
            path.write_text(json.dumps({**links, "device": "cuda"}), encoding="utf-8")
            self.assertEqual(run_json(*plan)["links"]["source"], links["source"])
            path.unlink()
        for options, says in ((["--ranks", 1], "give --ranks"), (["--ranks", 2, "--weak"], "--links"),
                              (["--ranks", 2, "--exchange", "ring"], "--exchange ring"),
                              (["--ranks", 2, *SMALL[1:9]], "--links"), (["--ranks", 2, "--scaling"], "--")):
            self.assert_refused(run("bench", "--links", self.path("links.json"), *options), says=says)
        self.assert_refused(run("bench", "--links", self.path("missing/links.json"), "--ranks", 2), says="--links")
        self.assertEqual(self.names(), [])

    def test_plot(self):
        """The plot has a bar for each row of the table, as long as its number. On it is a line for the spread, beside
        it the number's text, and above the bars the machine."""
        sequences = ["bench", "--sequences", "5:10:50", "--heads", 2, "--head-dim", 16, "--branch", "0:1", "--repeats",
                     1, "--threads", 2]
        name = "{http://www.w3.org/2000/svg}"
        for arguments, table, value in (
                (SMALL, "cases", "flops_per_second"), ([*SMALL, "--ranks", 2], "cases", "flops_per_second"),
                (sequences, "sequences", "pairs_per_second")):
            with self.subTest(arguments):
                bench = run_json(*arguments, "--plot", self.path("plot.svg"))
                values = [row[value] for row in bench[table]]
                svg = xml.etree.ElementTree.parse(self.path("plot.svg")).getroot()
                bars = [bar for bar in svg.iter(name + "rect") if bar.get("class") in ("mark", "second")]
                self.assertEqual([bar.get("class") for bar in bars], ["mark", "second"])
                fastest = [row[value] * row["seconds"] / row["seconds_min"] for row in bench[table]]
                slowest = [row[value] * row["seconds"] / row["seconds_max"] for row in bench[table]]
                for bar, number in zip(bars, values):
                    self.assertAlmostEqual(float(bar.get("width")) / 400, number / max(fastest), places=3)
                lines = [re.match(r"M([\d.]+) [\d.]+H([\d.]+)M", line.get("d")) for line in svg.iter(name + "path")]
                self.assertEqual(len(lines), len(bars))
                for bar, line, *ends in zip(bars, lines, slowest, fastest):
                    for drawn, rate in zip(line.groups(), ends):
                        self.assertAlmostEqual((float(drawn) - float(bar.get("x"))) / 400, rate / max(fastest), places=3)
                machine = bench["machine"]
                threads = 1 if "--ranks" in arguments else 2
                self.assertEqual(machine["threads"], threads)
                texts = [text.text for text in svg.iter(name + "text")]
                self.assertEqual(texts[:2], [machine["build_info"], f"{machine['processor']}, threads: {threads}"])
                self.assertIn(f"medians of {machine['repeats']}", texts[2])
                self.assertEqual(texts[3].partition("; ")[2], "2 ranks" if "--ranks" in arguments else "")
                for row, text in zip(bench[table], texts[4::2]):
                    self.assertTrue(text.endswith(row["pass"]), text)
                    self.assertTrue(text.startswith(row.get("case", "")), text)
                self.assertEqual(len(texts), 4 + 2 * len(values))
                assert_colors_suit_any_ground(self, self.path("plot.svg"))
        self.path("plot.svg").unlink()
        (self.directory / "directory.svg").mkdir()
        for path in ("missing/plot.svg", "-", "plot.pdf", "/dev/null", "directory.svg"):
            self.assert_refused(run(*SMALL, "--plot", path, cwd=self.directory), says="--plot: ")
        self.assertEqual(self.names(), ["directory.svg"])

    def test_cuda(self):
        if cuda_device_count() == 0:
            self.skipTest("needs a CUDA device")
        bench = run_json(*SMALL, "--device", "cuda")
        self.assertEqual([row["pass"] for row in bench["cases"]], ["forward", "backward"])
        for row in bench["cases"]:
            self.assertAlmostEqual(row["tokens_per_second"] * row["seconds"] / 200, 1)
            for key in ("share_of_gemm", "workspace_bytes"):
                self.assertGreater(row[key], 0)
            # The announced bytes leave room to align a caller's own memory.
            self.assertGreaterEqual(row["measured_peak_bytes"], row["workspace_bytes"] - 256)
        for key in ("gemm_flops_per_second", "copy_bytes_per_second"):
            self.assertGreater(bench["machine"][key], 0)

    def test_text_and_markdown(self):
        for form, mark in (("text", "  forward "), ("markdown", "| forward ")):
            result = run(*SMALL, "--format", form)
            self.assertEqual((result.returncode, result.stderr), (0, ""))
            self.assertIn(mark, result.stdout)

    def test_wide_tables_are_several(self):
        """Each block begins with the case and the pass. All blocks together have every column of the JSON."""
        result = run(*SMALL, "--ranks", 2)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertLessEqual(max(map(len, result.stdout.splitlines())), 132)
        tables = [text.splitlines() for text in result.stdout.split("Cases: ")[1].split("\nRanks\n")[0].split("\n\n")]
        self.assertGreater(len(tables), 1)
        heads = [next(line for line in table if line.startswith("  case")) for table in tables]
        titles = [title for head in heads for title in re.split(r"  +", head.strip())[2:]]
        row = run_json(*SMALL, "--ranks", 2)["cases"][0]
        self.assertEqual(len(titles), len(row) - 2)
        for table in tables:
            self.assertEqual([line.split()[2:] != [] for line in table[-2:]], [True, True])
            self.assertTrue(table[-2].startswith("  64:1 128:2") and table[-1].startswith("  64:1 128:2"), table)

    def test_refusals(self):
        packed = ["--heads", 2, "--head-dim", 8, "--branch", "0:1", "--sequences"]
        no_tokens = "--sequences says how many tokens there are: --tokens and --batch cannot be given with it"
        for options, says in (
                (["--format", "yaml"], "--format yaml: must be text, markdown or json"),
                (["--scaling", "--branch", "8:1"], "--scaling has a problem and a pattern of its own"),
                ([*packed, "5:1:2", "--scaling"], "--scaling has a problem and a pattern of its own"),
                (["--preset", "gigapath", "--tokens", 9, "--heads", 4, "--head-dim", 7], "head dimension D is 7; "),
                ([*packed, "5:1:2", "--tokens", 9], no_tokens), ([*packed, "5:1:2", "--batch", 2], no_tokens),
                ([*packed, "5:1:2", "--ranks", 2], "--sequences is for one rank"),
                *(([*packed, text], f"--sequences {text}: must be COUNT:MIN:MAX, ")
                  for text in ("5", "0:1:2", "5:0:2", "5:3:2", "5:1:x", "5:1:2:3", "9:1:1099511627776")),
                *((options, f"{missing} must be given, at least 1, for a case of your own") for options, missing in (
                    (["--branch", "64:1"], "--tokens"), (["--tokens", 9, "--branch", "64:1"], "--heads"),
                    (["--tokens", 9, "--heads", 2, "--branch", "64:1"], "--head-dim"),
                    (["--causal"], "--tokens"), (["--batch", 4], "--tokens"), (["--scale", 1], "--tokens"),
                    (["--kv-heads", 2], "--tokens"), (["--key-rule", "once"], "--tokens"),
                    (["--sequences", "5:1:2", "--branch", "64:1"], "--heads"))),
                (["--tokens", 9, "--heads", 2, "--head-dim", 8], "no pattern: give --branch or --preset")):
            with self.subTest(options):
                self.assert_refused(run("bench", *options), says=says)


class InfoTest(ProgramTest):
    def test_info(self):
        info = run_json("info")
        runs = {(row["name"], row["device"]): row["runs"] for row in info["engines"]}
        on_cpu = {name for (name, device), is_run in runs.items() if device == "cpu" and is_run}
        self.assertEqual(on_cpu, {"auto", "reference", "cpu"})
        self.assertEqual({name for name, _ in runs}, on_cpu | {"gemm", "fused", "mma"})
        for row in info["engines"]:
            self.assertEqual(row["runs"], row["obstacle"] is None)
            if not row["runs"]:
                self.assertGreater(len(row["obstacle"]), 20)
        devices = {device for _, device in runs}
        count, reason = info["devices"][1]["count"], info["devices"][1]["obstacle"]
        self.assertEqual(devices, {"cpu", *(f"cuda:{i}" for i in range(count))})
        self.assertEqual(reason is None, count > 0)
        if not count:
            self.assertIn("there is no CUDA device: ", reason)
        self.assertTrue(all(runs[name, device] for name in ("auto", "gemm") for device in devices - {"cpu"}))
        self.assert_runs_as_told(runs)
        self.assertEqual([row["kind"] for row in info["devices"]], ["cpu", "cuda"])
        self.assertEqual(info["devices"][0]["count"], 1)
        self.assertEqual(len(info.get("cuda_devices", [])), info["devices"][1]["count"])
        self.assertIn(info["build"]["version"], info["build"]["build_info"])
        text = run("info")
        self.assertEqual((text.returncode, text.stderr), (0, ""))
        self.assertIn(info["build"]["build_info"], text.stdout)

    def assert_runs_as_told(self, runs):
        """attend and info give the same reason."""
        self.save_inputs((1, 64, 1, 64))
        for (name, device), expected in runs.items():
            with self.subTest(name, device=device):
                arguments = self.attend_arguments("--dtype", "bfloat16", "--branch", "0:1", "--engine", name,
                                                  "--device", device)
                self.assertEqual(run(*arguments).returncode, 0 if expected else 2)

    def test_version(self):
        version = run("--version")
        self.assertEqual((version.returncode, version.stderr), (0, ""))
        self.assertEqual(version.stdout, f"annulus {run_json('info')['build']['version']}\n")


if __name__ == "__main__":
    tap.main()
