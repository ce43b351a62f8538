# SPDX-License-Identifier: Apache-2.0
"""count.py [STEP...]: counts the test cases of these steps of tests/run.sh, or of all that left results. The absolute
path of a build directory counts as a step, too.

Prints what the failing programs said, how long each step took, what was skipped and why, and, as the last line,
`N passed, N failed, N skipped`. Exits with 1 when a case failed or none passed.

A step leaves in build/results/STEP: Meson's logs in meson-logs/; in the file `commands` a line `passed NAME`,
`failed NAME` or `skipped NAME` for each command that counts as one case; in `output` what a runner printed that ends
with a count of its own; in `seconds` how long it took.

Meson's cases stand in its JUnit file. It is silent about a program that timed out, crashed or failed after its last
case (a leak, for one), so the program's own result is read from Meson's JSON log and counted as a failed case when
no case of it failed.
"""

import json
import pathlib
import re
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter

GOOD_RESULTS = {"OK", "EXPECTEDFAIL", "SKIP"}
RESULTS = pathlib.Path("build/results")
LOG_LINES = 100
PRINTED_CASES = 20
MESSAGE_LINES = 20


def case_result(case):
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    if case.find("skipped") is not None or case.get("status") == "notrun":
        return "skipped"
    return "passed"


def without_suite(name):
    """Meson writes a program's name as `project:suite / name`."""
    return name.rpartition(" / ")[2]


def cases_by_program(junit):
    """The test cases of each program. GoogleTest and TAP programs have suites of their own, `project.program[.suite]`;
    programs that only have an exit status are cases of the suite `project`."""
    programs = {}
    for suite in junit.getroot().iter("testsuite"):
        _, _, rest = suite.get("name").partition(".")
        for case in suite.iter("testcase"):
            program = without_suite(rest).partition(".")[0] if rest else without_suite(case.get("name"))
            programs.setdefault(program, []).append(case)
    return programs


def message_of(case, most_lines=MESSAGE_LINES):
    """What a failed case says; all of it where most_lines is None."""
    texts = [failure.get("message") or failure.text or "" for failure in [*case.iter("failure"), *case.iter("error")]]
    return "\n".join("\n".join(texts).splitlines()[:most_lines])


def skip_reason(case):
    """What a case says when it skips itself: GoogleTest puts the place of the test before it."""
    skipped = case.find("skipped")
    text = "" if skipped is None else skipped.get("message") or skipped.text or ""
    return re.sub(r"^\S+:\d+(\n|$)", "", text.strip())


def skip_reasons(run, cases, count):
    """Why a program skipped `count` cases or itself as a whole: what its cases say, or TAP, or its last line."""
    stdout = run.get("stdout", "")
    lines = [re.sub(r"^skipped: *", "", line) for line in stdout.splitlines()]
    for reasons in ([skip_reason(case) for case in cases if case_result(case) == "skipped"],
                    [reason.strip() for reason in re.findall(r"# SKIP\w* +(.+)", stdout, re.IGNORECASE)],
                    lines[-1:] if run["result"] == "SKIP" else []):
        if len(reasons) == count and all(reasons):
            return reasons
    return ["no reason given"] * count


def print_failure(step, run, failed_cases):
    print(f"\n=== {step}: {run['name']} ({run['result']}, exit status {run['returncode']})")
    for case in failed_cases[:PRINTED_CASES]:
        print(f"--- {without_suite(case.get('classname'))}.{case.get('name')}\n{message_of(case)}")
    if len(failed_cases) > PRINTED_CASES:
        print(f"--- and {len(failed_cases) - PRINTED_CASES} cases more")
    # GoogleTest's messages stand in its cases; the others say what is wrong in their output.
    told = any(message_of(case) for case in failed_cases)
    for stream in ("stderr",) if told else ("stdout", "stderr"):
        lines = run.get(stream, "").splitlines()
        if lines:
            print(f"--- {stream}, the last {min(len(lines), LOG_LINES)} of {len(lines)} lines")
            print("\n".join(lines[-LOG_LINES:]))


def count_programs(step, logs, reasons):
    """The cases of the programs that Meson ran; `reasons` gets the programs that skipped cases, by the reason."""
    total = Counter()
    try:
        runs = [json.loads(line) for line in (logs / "testlog.json").read_text(encoding="utf-8").splitlines()]
        programs = cases_by_program(ElementTree.parse(logs / "testlog.junit.xml"))
    except (OSError, ElementTree.ParseError) as error:
        print(f"{step}: no test results: {error}")
        return Counter(failed=1)
    for run in runs:
        program = without_suite(run["name"]).rpartition(":")[2]
        cases = programs.get(program, [])
        results = Counter(case_result(case) for case in cases)
        bad = run["result"] not in GOOD_RESULTS
        if run["result"] == "SKIP" and not results["skipped"]:
            # A program that skips itself as a whole.
            results = Counter(skipped=1)
        if bad and not results["failed"]:
            # An exit-status program that timed out is a passed case to the JUnit file.
            results["passed"] -= [without_suite(case.get("name")) for case in cases] == [program]
            results["failed"] += 1
        if bad:
            print_failure(step, run, [case for case in cases if case_result(case) == "failed"])
        for reason in skip_reasons(run, cases, results["skipped"]):
            reasons.setdefault(reason, Counter())[program] += 1
        total += results
    return total


def count_commands(step, path, reasons):
    total = Counter()
    for line in path.read_text(encoding="utf-8").splitlines():
        result, _, name = line.partition(" ")
        total[result] += 1
        if result == "failed":
            print(f"\n=== {step}: {name} failed; what it said stands above")
        if result == "skipped":
            reasons.setdefault(f"{name}: what it lacks stands above", Counter())[step] += 1
    return total


def ended_with(path):
    """The count in the last line of a runner's output."""
    last = path.read_text(encoding="utf-8").rstrip().rpartition("\n")[2]
    return Counter({name: int(number) for number, name in re.findall(r"(\d+) (passed|failed|skipped)", last)})


def count_step(directory, reasons):
    total = Counter()
    if (directory / "meson-logs").is_dir():
        total += count_programs(directory.name, directory / "meson-logs", reasons)
    if (directory / "commands").is_file():
        total += count_commands(directory.name, directory / "commands", reasons)
    if (directory / "output").is_file():
        total += ended_with(directory / "output")
    if not total:
        print(f"{directory.name}: no test results")
        total["failed"] += 1
    return total


def seconds_of(directory):
    path = directory / "seconds"
    return int(path.read_text(encoding="utf-8")) if path.is_file() else 0


def minutes(seconds):
    return f"{seconds // 60}:{seconds % 60:02}"


def main():
    steps = [RESULTS / name for name in sys.argv[1:]]
    if not steps:
        steps = sorted(RESULTS.iterdir(), key=lambda directory: directory.stat().st_mtime)
    reasons = {}
    counts = [count_step(directory, reasons) for directory in steps]
    if reasons:
        print("\nSkipped:")
        for reason, programs in sorted(reasons.items()):
            print(f"{sum(programs.values()):6}  {reason}  ({', '.join(sorted(programs))})")
    print("\nMinutes:")
    seconds = [seconds_of(directory) for directory in steps]
    for directory, taken, step in zip(steps, seconds, counts):
        print(f"{minutes(taken):>6}  {directory.name}: {step['passed']} passed, {step['failed']} failed, "
              f"{step['skipped']} skipped")
    print(f"{minutes(sum(seconds)):>6}  together")
    total = sum(counts, Counter())
    print(f"\n{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped")
    return 1 if total["failed"] or not total["passed"] else 0


if __name__ == "__main__":
    sys.exit(main())
