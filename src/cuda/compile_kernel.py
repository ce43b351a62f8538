#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""compile_kernel.py NVCC ARGUMENT...: runs the compiler, and fails where a kernel would be slow in silence: where
registers are spilled, matrix products serialised or setmaxnreg is ignored. A few words are spilled between tiles: there
warps find the next one, with few registers."""

import re
import subprocess
import sys

MOST_SPILLED = 48  # bytes
SLOW = re.compile(r"\(C75\d\d\)|ignored")
SPILLED = re.compile(r"(\d+) bytes spill (?:stores|loads)")


def is_slow(line: str) -> bool:
    return bool(SLOW.search(line)) or any(int(count) > MOST_SPILLED for count in SPILLED.findall(line))


result = subprocess.run([*sys.argv[1:], "-Xptxas=-v"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
slow = [line for line in result.stdout.splitlines() if is_slow(line)]
if result.returncode != 0 or slow:
    sys.exit(result.stdout)
