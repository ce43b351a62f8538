# SPDX-License-Identifier: Apache-2.0
"""gpu.py runs programs that pass, fail, crash, hang or skip. Shell scripts stand in for them and for nvidia-smi."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

TESTS = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(TESTS), str(TESTS / "cli")]
import gpu  # noqa: E402
import tap  # noqa: E402

NVIDIA_SMI = """#!/bin/sh
echo "0, GPU-a, 81559"
echo "1, GPU-b, 81559"
"""
# A GoogleTest program of 200 cases, of which its report lists one for each run. Records its GPUs and its shard.
PROGRAM = """#!/bin/sh
echo "GPUs ${CUDA_VISIBLE_DEVICES:-all} shard ${GTEST_SHARD_INDEX:-none}" >> "$RECORD"
for option; do
    case $option in
    --gtest_list_tests) echo Suite.; i=0; while [ $i -lt 200 ]; do echo "  Case$i"; i=$((i + 1)); done; exit 0 ;;
    --gtest_output=xml:*) report=${option#--gtest_output=xml:} ;;
    esac
done
%s
"""
CASES = """
cat > "$report" << 'END'
<testsuites><testsuite name="Suite"><testcase name="Case" classname="Suite">%s</testcase></testsuite></testsuites>
END
"""
PASSES = CASES % ""
SKIPS = CASES % '<skipped message="a.cpp:1&#x0A;no such dtype"/>'
FAILS = CASES % '<failure message="1 is not 2"/>' + "exit 1"


class Gpu(unittest.TestCase):
    def run_programs(self, programs, **changes):
        """Runs gpu.py on programs by name, in another folder than Meson recorded. Returns its status and lines."""
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "meson-info").mkdir()
            listed = []
            for program, body in {"nvidia-smi": None, **programs}.items():
                text = PROGRAM % body if body is not None else NVIDIA_SMI
                (folder / program).write_text(text, encoding="utf-8")
                (folder / program).chmod(0o755)
                test = {
                    "name": program, "cmd": [f"/gone/build/{program}"], "env": {"RECORD": "/gone/build/record"},
                    "timeout": 20, "suite": ["annulus:cuda"], "is_parallel": True, "protocol": "gtest", **changes,
                }
                listed += [test] if body is not None else []
            directories = {"directories": {"source": "/gone", "build": "/gone/build"}}
            (folder / "meson-info" / "meson-info.json").write_text(json.dumps(directories), encoding="utf-8")
            (folder / "meson-info" / "intro-tests.json").write_text(json.dumps(listed), encoding="utf-8")
            environment = {key: value for key, value in os.environ.items() if key != "CUDA_VISIBLE_DEVICES"}
            ran = subprocess.run(
                [sys.executable, TESTS / "gpu.py", folder], stdout=subprocess.PIPE, check=False, text=True, timeout=300,
                env={**environment, "PATH": f"{folder}:{environment['PATH']}"},
            )
            self.record = (folder / "record").read_text(encoding="utf-8")
            return ran.returncode, ran.stdout.splitlines()

    def test_shards_of_passing_programs(self):
        names = ["gemm_table", "gemm_patterns", "gemm_ranks_table"]
        status, lines = self.run_programs(dict.fromkeys(names, PASSES))
        shards = sum(gpu.shard_count(name, 200) for name in names)
        self.assertEqual((status, lines[-1]), (0, f"{shards} passed, 0 failed, 0 skipped"))
        for wanted in ("GPUs GPU-a shard", "GPUs GPU-b shard", "GPUs all shard 1"):
            self.assertIn(wanted, self.record)

    def test_reasons_of_skipped_cases(self):
        status, lines = self.run_programs({"a": PASSES, "b": SKIPS, "c": "echo 'skipped: too old'; exit 77"})
        self.assertEqual(status, 0)
        self.assertIn("skipped 1: no such dtype (b)", lines)
        self.assertIn("skipped 1: too old (c)", lines)

    def test_failures(self):
        for body, said in (
            (FAILS, "1 is not 2"),
            ("echo about to crash; kill -SEGV $$", "about to crash"),
            (PASSES + "exit 3", "exit status 3"),
            ("exit 0", "exit status 0"),  # without a report
            ("exec sleep 100", "no end within 1 s"),
        ):
            with self.subTest(said):
                limit = {"timeout": 1} if "sleep" in body else {}
                status, lines = self.run_programs({"a": body}, is_parallel=False, **limit)
                self.assertEqual(status, 1)
                self.assertRegex(lines[-1], r"passed, 1 failed, 0 skipped$")
                self.assertIn(said, "\n".join(lines))

    def test_a_failing_engine_stops_all(self):
        status, lines = self.run_programs({"gemm_table": FAILS, "gemm_random": PASSES})
        self.assertEqual((status, lines[-1]), (1, "0 passed, 1 failed, 0 skipped"))

    def test_programs_that_report_in_tap(self):
        programs = {
            "a": "echo 1..2; echo 'ok 1 - one'; echo 'ok 2 - two # SKIP too few'",
            "b": "echo '1..0 # SKIP too old'",
        }
        status, lines = self.run_programs(programs, protocol="tap")
        self.assertEqual((status, lines[-1]), (0, "1 passed, 0 failed, 2 skipped"))
        self.assertIn("skipped 1: too few (a)", lines)
        self.assertIn("skipped 1: too old (b)", lines)
        programs = {
            "a": "echo 1..2; echo '# 1 is not 2'; echo 'not ok 1 - one'; echo 'ok 2 - two'; exit 1",
            "b": "echo 1..2; echo 'ok 1 - one'; exit 1",
        }
        status, lines = self.run_programs(programs, protocol="tap")
        self.assertEqual((status, lines[-1]), (1, "2 passed, 2 failed, 0 skipped"))
        self.assertIn("# 1 is not 2", lines)

    def test_a_bad_status_of_other_programs(self):
        status, lines = self.run_programs({"a": "exit 1"}, protocol="exitcode")
        self.assertEqual((status, lines[-1]), (1, "0 passed, 1 failed, 0 skipped"))


if __name__ == "__main__":
    tap.main()
