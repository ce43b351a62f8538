# SPDX-License-Identifier: Apache-2.0
"""run_target.py PROGRAM NAME: runs a fuzz target for ANNULUS_FUZZ_SECONDS seconds, 10 unless set. Reports it in TAP as
one case, whose name says how many inputs were executed.

The target begins with the inputs of corpus/NAME and with inputs that earlier runs found. The build directory keeps
found inputs and inputs that failed. A Python program gets the seconds and a seed and prints how many inputs it
executed. Every other program is one of libFuzzer's.
"""

import os
import pathlib
import re
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
LIMITS = ["-timeout=10", "-rss_limit_mb=2048", "-malloc_limit_mb=1024", "-max_len=4096"]
# Entropic scheduling would take half the time, since these inputs run so briefly.
OTHERS = ["-entropic=0", "-len_control=10", "-print_final_stats=1"]


def libfuzzer(program, name, seconds):
    found, bad = (pathlib.Path("fuzz", name, kind).resolve() for kind in ("found", "bad"))
    for directory in (found, bad):
        directory.mkdir(parents=True, exist_ok=True)
    corpus, dictionary = HERE / "corpus" / name, HERE / "dictionaries" / f"{name}.dict"
    return [
        program,
        f"-max_total_time={seconds}",
        f"-artifact_prefix={bad}/",
        *LIMITS,
        *OTHERS,
        *([f"-dict={dictionary}"] if dictionary.exists() else []),
        found,
        *([corpus] if corpus.exists() else []),
    ]


def main():
    program, name = sys.argv[1:]
    seconds = int(os.environ.get("ANNULUS_FUZZ_SECONDS", "10"))
    is_python = program.endswith(".py")
    if is_python:
        command = [sys.executable, program, str(seconds), str(time.time_ns())]
    else:
        command = libfuzzer(program, name, seconds)
    print("1..1", flush=True)
    begin = time.monotonic()
    preload = os.environ.get("ANNULUS_FUZZ_PRELOAD")
    environment = {**os.environ, "LD_PRELOAD": preload} if preload else None
    done = subprocess.run(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace"
    )
    count = re.search(r"stat::number_of_executed_units:\s*(\d+)", done.stderr)
    executed = int(count[1]) if count else 0
    good = done.returncode == 0 and executed > 0
    if not good:
        for line in done.stderr.splitlines()[-200:]:
            print("#", line)
    rate = executed / max(time.monotonic() - begin, 1e-3)
    print(f"{'ok' if good else 'not ok'} 1 - {executed} inputs of {name}, {rate:.0f} a second", flush=True)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
