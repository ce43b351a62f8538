# SPDX-License-Identifier: Apache-2.0
"""Does the same as smoke.c with the installed Python package and with the program. The program's files are written to
the current directory."""

import subprocess

import annulus
import numpy

assert annulus.__file__.startswith("/usr/lib/python3/dist-packages/"), annulus.__file__

tokens, head_dim = 100, 8
q = k = numpy.zeros((1, tokens, 1, head_dim), numpy.float32)
v = (numpy.arange(tokens)[:, None] + numpy.arange(head_dim)).astype(numpy.float32)[None, :, None]
wanted = (numpy.arange(tokens)[:, None] / 2 + numpy.arange(head_dim))[None, :, None]

out = annulus.attention(q, k, v, branches=[(0, 1)], causal=True)
assert numpy.abs(out - wanted).max() < 1e-4

for name, array in {"q": q, "k": k, "v": v}.items():
    numpy.save(name + ".npy", array)
files = [word for name in ("q", "k", "v", "out") for word in (f"--{name}", f"{name}.npy")]
subprocess.run(["/usr/bin/annulus", "attend", *files, "--branch", "0:1", "--causal"], check=True)
assert (numpy.load("out.npy") == out).all()
print("annulus", annulus.__version__, "from", annulus.__file__)
