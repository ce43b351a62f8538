# SPDX-License-Identifier: Apache-2.0
"""Counts the test cases of one or more build directories after `meson test`.

Prints what the failing programs said and, as the last line, `N passed, N failed, N skipped`. Exits with 1 when a case
failed or none passed.

The cases stand in Meson's JUnit file. It is silent about a program that timed out, crashed or failed after its last
case (a leak, for one), so the program's own result is read from Meson's JSON log and counted as a failed case when
no case of it failed.
"""

import json
import pathlib
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter

GOOD_RESULTS = {"OK", "EXPECTEDFAIL", "SKIP"}
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


def message_of(case):
    texts = [failure.get("message") or failure.text or "" for failure in [*case.iter("failure"), *case.iter("error")]]
    return "\n".join("\n".join(texts).splitlines()[:MESSAGE_LINES])


def print_failure(build, run, failed_cases):
    print(f"\n=== {build}: {run['name']} ({run['result']}, exit status {run['returncode']})")
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


def count(build):
    total = Counter()
    logs = pathlib.Path(build) / "meson-logs"
    try:
        runs = [json.loads(line) for line in (logs / "testlog.json").read_text(encoding="utf-8").splitlines()]
        programs = cases_by_program(ElementTree.parse(logs / "testlog.junit.xml"))
    except (OSError, ElementTree.ParseError) as error:
        print(f"{build}: no test results: {error}")
        return Counter(failed=1)
    for run in runs:
        program = without_suite(run["name"])
        cases = programs.get(program, [])
        results = Counter(case_result(case) for case in cases)
        bad = run["result"] not in GOOD_RESULTS
        if run["result"] == "SKIP" and not cases:
            results["skipped"] += 1
        if bad and not results["failed"]:
            # An exit-status program that timed out is a passed case to the JUnit file.
            results["passed"] -= [without_suite(case.get("name")) for case in cases] == [program]
            results["failed"] += 1
        if bad:
            print_failure(build, run, [case for case in cases if case_result(case) == "failed"])
        total += results
    return total


def main():
    total = sum((count(build) for build in sys.argv[1:]), Counter())
    print(f"\n{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped")
    return 1 if total["failed"] or not total["passed"] else 0


if __name__ == "__main__":
    sys.exit(main())
