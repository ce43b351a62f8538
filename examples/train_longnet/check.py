# SPDX-License-Identifier: Apache-2.0
"""check.py: trains by train_longnet.py on one process and on several CPUs' processes, and compares losses and gradients."""
import importlib.util
import os
import pathlib
import re
import subprocess
import sys

if importlib.util.find_spec("torch") is None:
    print("skipped: needs PyTorch 2.2")
    sys.exit(77)
import torch

version = tuple(map(int, torch.__version__.split(".")[:2]))
if version < (2, 2):
    print("skipped: needs PyTorch 2.2, for device meshes")
    sys.exit(77)

folder = pathlib.Path(__file__).resolve().parent
environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
STEPS = 4


def train(processes, *options):
    """Returns the loss of each step, then the norm of each step's gradient."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command += [folder / "train_longnet.py", folder / "train_longnet.py", "--steps", str(STEPS), "--length", "1021"]
    output = subprocess.run([*command, *options], check=True, env=environment, stdout=subprocess.PIPE, text=True).stdout
    print(*options, output, sep="\n")
    steps = re.findall(r"^step +\d+  loss ([\d.]+)  gradient ([\d.]+)$", output, re.MULTILINE)
    assert len(steps) == STEPS, output
    return [float(number) for numbers in zip(*steps) for number in numbers]


alone = train(1)
assert alone[STEPS - 1] < 0.9 * alone[0], alone
cases = [(2, "--wrap=ddp"), (4, "--wrap=ddp", "--sequence-ranks=2")]
if version >= (2, 6):
    cases += [(2, "--wrap=fsdp"), (4, "--wrap=fsdp", "--sequence-ranks=2")]
for processes, *options in cases:
    several = train(processes, *options)
    # Over gloo FSDP2 of PyTorch 2.7 returns the sum of gradients where it should return their mean. Clipping hides that
    # from the losses.
    if "--wrap=fsdp" in options and several[STEPS] > 1.5 * alone[STEPS]:
        several[STEPS:] = [norm / processes for norm in several[STEPS:]]
    # float32: AdamW divides gradients by their size, so a step turns rounding of small gradients into up to 1e-5.
    assert all(abs(one - other) < 1e-4 * one for one, other in zip(alone, several)), (processes, options)
