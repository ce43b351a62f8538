#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""compile_kernel.py NVCC ARGUMENT...: runs the compiler, and fails if a kernel would only be slow: if it spills
registers, if its matrix products are serialised, or if setmaxnreg is ignored. A few bytes may be spilled: between
tiles, where warps find the next tile with few registers, and in the rare blocks where maxima change. Kernels for
32-bit elements may spill more between blocks, since their products take most registers."""

from __future__ import annotations

import re
import subprocess
import sys

# By -Xptxas=-v, the warp that finds tiles of several branches spills up to 144 bytes (sm90 forward, D = 128). For 8.0,
# kernels of `mma` load 548 bytes (forward, D = 128): a dozen scalars that lie in memory while tiles are found.
MOST_SPILLED, MOST_SPILLED_FOR_80, MOST_SPILLED_OF_32_BITS = 160, 560, 1024  # bytes
SLOW = re.compile(r"\(C75\d\d\)|ignored")
KERNEL = re.compile(r"Compiling entry function '\w+TraitsI(6__half|13__nv_bfloat16)?\w*' for 'sm_(\w+)'")
SPILLED = re.compile(r"(\d+) bytes spill (?:stores|loads)")


def most_spilled(element: str | None, architecture: str) -> int:
    if element is None:
        return MOST_SPILLED_OF_32_BITS
    return MOST_SPILLED_FOR_80 if architecture == "80" else MOST_SPILLED


def slow_lines(lines: list[str]) -> list[str]:
    most, found = MOST_SPILLED, []
    for line in lines:
        if kernel := KERNEL.search(line):
            most = most_spilled(kernel[1], kernel[2])
        if SLOW.search(line) or any(int(count) > most for count in SPILLED.findall(line)):
            found.append(line)
    return found


result = subprocess.run([*sys.argv[1:], "-Xptxas=-v"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
if result.returncode != 0 or slow_lines(result.stdout.splitlines()):
    sys.exit(result.stdout)
