# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of a Meson build directory that need NVIDIA GPUs, side by side, and counts their cases.

First runs a few cases of each engine and stops if one fails. Then runs GoogleTest programs in shards, the longest
first. Programs that must run alone (is_parallel: false) come last. Prints failed cases as soon as their program ends.
The last line is `N passed, N failed, N skipped`. Exits with 1 when a case failed or none passed.

The build directory may have been moved: paths in Meson's list of tests are mapped to where it is now.
"""

import argparse
import json
import math
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter, namedtuple
from concurrent.futures import ThreadPoolExecutor, as_completed

import count

BYTES_OF_PROGRAM = 4 << 30  # of GPU memory, and of the host's: the largest problems take no more
SHARD_SECONDS = 20
LOG_LINES = 100

# Seconds a case on one H100 with 16 programs at a time, by the end of the program's name. They set the number of shards
# and what begins first.
DEFAULT_SECONDS = 0.1
SECONDS = {
    "gemm_tiles": 18,
    "_tiles": 2,
    "_launches": 4,
    "_split": 12,
    "_load": 45,
    "_long": 2,
    "_patterns": 0.3,
    "_extreme_random": 1,
    "_ranks_table": 0.2,
    "_nonfinite_rows": 1,
    "_nonfinite": 0.2,
    "_sequences": 0.2,
    "_sliding": 0.7,
    "_ranks_mass": 0.2,
    "_shared_rows": 10,
}
SANITIZER_SECONDS = 60

# A few cases of each engine's table, enough to see that its kernels run.
SMOKE = ["--gtest_filter=*/Table.*interleave_residue_linear*:*/Table.*length_129*"]

# Where large blocks of memory go back to the kernel at once, it clears their pages again for the next: a third of the
# time of large problems.
KEEP_FREED_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}

SKIPPED = 77  # the exit status of a program that can run nothing here
# In TAP, a line of each case: whether it failed, its name, why it was skipped. Or a line for a program without cases.
TAP_CASE = re.compile(r"^(?:(not )?ok \d+ - (.*?)|1\.\.0)(?: # SKIP (.*))?$", re.MULTILINE)

Job = namedtuple("Job", "name command environment timeout protocol seconds wants_all_gpus")
Outcome = namedtuple("Outcome", "job results failures reasons seconds")


def moved(path, roots):
    """The text with each of the recorded folders replaced. The longest is tried first: one may lie in another."""
    folders = "|".join(re.escape(old) for old in sorted(roots, key=len, reverse=True))
    return re.sub(rf"({folders})(?=$|[/:])", lambda match: roots[match.group(1)], path)


def read_tests(directory):
    """Meson's list of tests, with paths of this machine."""
    info = directory / "meson-info"
    if not info.is_dir():
        sys.exit(f"gpu.py: {directory} is no Meson build directory: it has no folder meson-info")
    recorded = json.loads((info / "meson-info.json").read_text(encoding="utf-8"))["directories"]
    roots = {recorded["build"]: str(directory), recorded["source"]: str(pathlib.Path(__file__).resolve().parent.parent)}
    tests = json.loads((info / "intro-tests.json").read_text(encoding="utf-8"))
    for test in tests:
        test["cmd"] = [moved(argument, roots) for argument in test["cmd"]]
        test["env"] = {name: moved(value, roots) for name, value in test["env"].items()}
    return [
        test
        for test in tests
        if test["name"] == "soak_cuda" or "cuda" in [suite.rpartition(":")[2] for suite in test["suite"]]
    ]


def seconds_of_case(name):
    return next((seconds for end, seconds in SECONDS.items() if name.endswith(end)), DEFAULT_SECONDS)


def shard_count(name, cases):
    return max(1, min(cases, math.ceil(cases * seconds_of_case(name) / SHARD_SECONDS)))


def case_count(test):
    """How many cases a GoogleTest program has; 1 where it does not say."""
    try:
        listed = subprocess.run(
            [*test["cmd"], "--gtest_list_tests"],
            env={**os.environ, **test["env"]},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=test["timeout"],
            check=False,
            text=True,
        )
    except (OSError, subprocess.TimeoutExpired):
        return 1
    return max(1, sum(line.startswith("  ") for line in listed.stdout.splitlines()))


def jobs_of(test, cases, is_alone=False):
    name, is_gtest = test["name"], test["protocol"] == "gtest"
    shards = 1 if is_alone or not is_gtest else shard_count(name, cases)
    seconds = cases * seconds_of_case(name) / shards if is_gtest else SANITIZER_SECONDS
    # Tests of ranks take all GPUs, and so do those of contexts and memory, which run alone.
    wants_all_gpus = is_alone or (is_gtest and ("ranks" in name or "nccl" in name))
    base = {**test["env"], **({} if is_alone else KEEP_FREED_MEMORY)}
    jobs = []
    for shard in range(shards):
        sharding = {"GTEST_TOTAL_SHARDS": str(shards), "GTEST_SHARD_INDEX": str(shard)} if shards > 1 else {}
        title = f"{name} {shard + 1}/{shards}" if shards > 1 else name
        environment = {**base, **sharding}
        jobs.append(Job(title, test["cmd"], environment, test["timeout"], test["protocol"], seconds, wants_all_gpus))
    return jobs


def smoke_of(test):
    (job,) = jobs_of(test, 1, is_alone=True)
    return job._replace(
        name=f"smoke: {job.name}",
        command=[*job.command, *SMOKE],
        environment={**job.environment, "ANNULUS_TEST_QUICK": "1"},
    )


class Gpus:
    """The GPUs that jobs may use, and how many jobs each has."""

    def __init__(self, names, total_bytes):
        self.names = names
        self.total_bytes = total_bytes
        self._jobs, self._taken = Counter(), Counter()
        self._lock = threading.Lock()

    @classmethod
    def of_machine(cls):
        """What nvidia-smi lists, or those of them in CUDA_VISIBLE_DEVICES."""
        query = ["nvidia-smi", "--query-gpu=index,uuid,memory.total", "--format=csv,noheader,nounits"]
        try:
            listed = subprocess.run(query, stdout=subprocess.PIPE, check=True, text=True).stdout
        except (OSError, subprocess.CalledProcessError) as error:
            sys.exit(f"gpu.py: no NVIDIA GPU: {error}")
        rows = [[field.strip() for field in line.split(",")] for line in listed.splitlines() if line.strip()]
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        if visible is not None:
            names = visible.split(",")
            rows = [row for row in rows if row[0] in names or row[1] in names]
        if not rows:
            sys.exit("gpu.py: no NVIDIA GPU")
        # Some report no memory of their own.
        mebibytes = [int(row[2]) if row[2].isdigit() else 0 for row in rows]
        return cls([row[1] for row in rows], sum(mebibytes) << 20)

    def job_limit(self):
        host_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        programs_in_memory = min(self.total_bytes, host_bytes) // BYTES_OF_PROGRAM
        return max(1, min(len(os.sched_getaffinity(0)), programs_in_memory))

    def take(self):
        """The GPU with the fewest jobs; of several, the one that had the fewest so far."""
        with self._lock:
            name = min(self.names, key=lambda name: (self._jobs[name], self._taken[name]))
            self._jobs[name] += 1
            self._taken[name] += 1
            return name

    def give_back(self, name):
        with self._lock:
            self._jobs[name] -= 1


def reason_of(case):
    if case.find("skipped") is None:
        return "disabled"
    return count.skip_reason(case) or "no reason given"


def tap_cases(output):
    """Returns the cases of a program that reports in TAP, as GoogleTest's report has them."""
    cases = []
    for failed, name, reason in TAP_CASE.findall(output):
        case = ElementTree.Element("testcase", name=name, classname="TAP")
        if failed:
            ElementTree.SubElement(case, "failure", message="\n".join(output.splitlines()[-LOG_LINES:]))
        elif reason:
            ElementTree.SubElement(case, "skipped", message=reason)
        cases.append(case)
    return cases


def outcome_of(job, status, output, cases, seconds):
    """Counts a program's cases. A crash, a time-out (status None) or a bad exit status without a failed case is one."""
    results = Counter(count.case_result(case) for case in cases)
    reasons = Counter(reason_of(case) for case in cases if count.case_result(case) == "skipped")
    failures = [
        f"{count.without_suite(case.get('classname'))}.{case.get('name')}\n{count.message_of(case, None)}"
        for case in cases
        if count.case_result(case) == "failed"
    ]
    if status == SKIPPED and not cases:
        results["skipped"] += 1
        said = [line for line in output.splitlines() if line.startswith("skipped: ")]
        reasons[said[-1].removeprefix("skipped: ") if said else "no reason given"] += 1
    elif status == 0 and job.protocol == "exitcode":
        results["passed"] += 1
    elif (status != 0 or (job.protocol != "exitcode" and not cases)) and not failures:
        results["failed"] += 1
        what = f"no end within {job.timeout} s" if status is None else f"exit status {status}, no failed case"
        failures.append("\n".join([what, *output.splitlines()[-LOG_LINES:]]))
    return Outcome(job, results, failures, reasons, seconds)


def run(job, gpus, folder):
    gpu = None if job.wants_all_gpus else gpus.take()
    report = pathlib.Path(folder) / (re.sub(r"\W", "_", job.name) + ".xml")
    options = [f"--gtest_output=xml:{report}", "--gtest_color=no"] if job.protocol == "gtest" else []
    environment = {**os.environ, **job.environment, **({"CUDA_VISIBLE_DEVICES": gpu} if gpu else {})}
    start = time.monotonic()
    with tempfile.TemporaryFile(dir=folder) as output:
        try:
            program = [*job.command, *options]
            status = subprocess.run(
                program,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=job.timeout,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            status = None
        except OSError as error:
            status = str(error)
        finally:
            if gpu:
                gpus.give_back(gpu)
        output.seek(0)
        text = output.read().decode(errors="replace")
    try:
        cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    except (OSError, ElementTree.ParseError):
        cases = tap_cases(text) if job.protocol == "tap" else []
    return outcome_of(job, status, text, cases, time.monotonic() - start)


class Progress:
    """Prints a line for each program that ends, and adds up the cases."""

    def __init__(self):
        self.start = time.monotonic()
        self.results, self.reasons = Counter(), Counter()
        self.programs = {}  # by the reason why they skipped a case
        self.ended, self.planned = 0, 0

    def line(self, text):
        print(f"[{time.monotonic() - self.start:4.0f} s] {text}", flush=True)

    def add(self, outcome):
        self.ended += 1
        self.results += outcome.results
        self.reasons += outcome.reasons
        for reason in outcome.reasons:
            self.programs.setdefault(reason, set()).add(outcome.job.name.partition(" ")[0])
        counts = ", ".join(f"{number} {what}" for what, number in sorted(outcome.results.items()))
        self.line(f"{self.ended}/{self.planned} {outcome.job.name}: {counts or 'no case'} ({outcome.seconds:.1f} s)")
        for failure in outcome.failures:
            print(f"--- {outcome.job.name}: {failure}", flush=True)

    def finish(self):
        for reason, number in self.reasons.most_common():
            print(f"skipped {number}: {reason} ({', '.join(sorted(self.programs[reason]))})")
        passed, failed, skipped = (self.results[what] for what in ("passed", "failed", "skipped"))
        print(f"\n{passed} passed, {failed} failed, {skipped} skipped")
        return 1 if failed or not passed else 0


def run_all(jobs, width, gpus, folder, progress):
    progress.planned += len(jobs)
    with ThreadPoolExecutor(width) as pool:
        try:
            for future in as_completed([pool.submit(run, job, gpus, folder) for job in jobs]):
                progress.add(future.result())
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def main():
    parser = argparse.ArgumentParser(description="Runs the GPU tests of a Meson build directory, and counts them.")
    parser.add_argument("--full", action="store_true", help="every dtype and size, where else they take turns")
    parser.add_argument("directory", type=pathlib.Path)
    arguments = parser.parse_args()
    if not arguments.full:
        os.environ["ANNULUS_TEST_QUICK"] = "1"
    gpus = Gpus.of_machine()
    width = gpus.job_limit()
    tests = read_tests(arguments.directory.resolve())
    engines = [test for test in tests if test["name"].endswith("_table") and test["protocol"] == "gtest"]
    engines = [test for test in engines if not test["name"].endswith("_ranks_table")]
    parallel = [test for test in tests if test["is_parallel"]]
    with tempfile.TemporaryDirectory() as folder:
        smoke = Progress()
        run_all([smoke_of(test) for test in engines], width, gpus, folder, smoke)
        if smoke.results["failed"]:
            return smoke.finish()

        progress = Progress()
        with ThreadPoolExecutor(width) as pool:
            counts = pool.map(lambda test: case_count(test) if test["protocol"] == "gtest" else 1, parallel)
            jobs = [job for test, cases in zip(parallel, counts) for job in jobs_of(test, cases)]
        progress.line(f"{len(jobs)} runs of {len(parallel)} programs, {width} at a time on {len(gpus.names)} GPUs")
        run_all(sorted(jobs, key=lambda job: -job.seconds), width, gpus, folder, progress)
        alone = [job for test in tests if not test["is_parallel"] for job in jobs_of(test, 1, is_alone=True)]
        run_all(alone, 1, gpus, folder, progress)
    return progress.finish()


if __name__ == "__main__":
    sys.exit(main())
