# SPDX-License-Identifier: Apache-2.0
"""check.py: fine-tunes on one rank and on two, and compares their losses. ANNULUS_GIGAPATH names a checkout of
prov-gigapath/prov-gigapath; without it, or without what its script imports, this is skipped. Takes minutes and 20 GB."""
import importlib.util
import os
import pathlib
import re
import subprocess
import sys

NEEDED = "torch einops fairscale h5py huggingface_hub pandas sklearn tensorboard timm wandb yaml".split()
checkout = os.environ.get("ANNULUS_GIGAPATH", "")
missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
if missing or not (pathlib.Path(checkout) / "finetune/main.py").is_file():
    print("skipped: needs ANNULUS_GIGAPATH, a checkout of prov-gigapath/prov-gigapath,", *missing)
    sys.exit(77)

example = pathlib.Path(__file__).with_name("finetune_gigapath.py")
command = [sys.executable, str(example), checkout, "--tiles", "100", "333", "--epochs", "1"]
environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
output = subprocess.run(command, check=True, env=environment, stdout=subprocess.PIPE, text=True).stdout
assert output.count("DilatedAttention replaced") == 24, "each of 12 layers, on one rank and on the first of two"
rows = re.findall(r"^ *\d+  (\w+) +([\d.]+) +([\d.]+)$", output, re.MULTILINE)
assert [part for part, *_ in rows] == ["training"] * 4 + ["evaluation"] * 4, rows
losses = [(float(one), float(two)) for _, one, two in rows]
assert all(abs(one - two) < 1e-3 * max(1, one) for one, two in losses), losses
assert len({one for one, _ in losses}) > 4, "the slides differ"
