#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the Rust crates' tests with cargo, offline, and prints their results as TAP.

usage: rust_test.py CRATES TARGET_DIRECTORY LIBRARY LAYOUT_PROGRAM REFERENCE_PROGRAM
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys


def main():
    crates, target, library, layout, reference = (pathlib.Path(word).resolve() for word in sys.argv[1:])
    if not shutil.which("cargo"):
        print("1..0 # SKIP there is no cargo")
        return 0
    environment = dict(
        os.environ,
        CARGO_TARGET_DIR=str(target),
        ANNULUS_LIB_DIR=str(library.parent),
        ANNULUS_LAYOUT=str(layout),
        ANNULUS_REFERENCE=str(reference),
    )
    path = [str(library.parent), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    environment["LD_LIBRARY_PATH"] = os.pathsep.join(path)
    command = ["cargo", "test", "--offline", "--locked", "--no-fail-fast", "--", "--include-ignored"]
    run = subprocess.Popen(
        command, cwd=crates, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    count = 0
    for line in run.stdout:
        case = re.fullmatch(r"test (.+) \.\.\. (ok|FAILED|ignored)\n", line)
        if case:
            count += 1
            print("ok" if case[2] == "ok" else "not ok", count, "-", case[1].replace("#", "").strip())
        else:
            print("#", line, end="")
    ended_well = run.wait() == 0 and count > 0
    print("ok" if ended_well else "not ok", count + 1, "- cargo test")
    print(f"1..{count + 1}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
