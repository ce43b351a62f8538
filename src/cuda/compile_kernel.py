#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""compile_kernel.py NVCC ARGUMENT...: runs the compiler, and fails where a kernel would be slow in silence: where
registers are spilled, matrix products serialised or setmaxnreg is ignored."""

import re
import subprocess
import sys

SLOW = re.compile(r"\(C75\d\d\)|ignored|[1-9]\d* bytes spill (stores|loads)")

result = subprocess.run([*sys.argv[1:], "-Xptxas=-v"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
slow = [line for line in result.stdout.splitlines() if SLOW.search(line)]
if result.returncode != 0 or slow:
    sys.exit(result.stdout)
