# SPDX-License-Identifier: Apache-2.0
"""smoke.py PACKAGES PROGRAM: does the same as smoke.c with the Python package, which must be in the directory PACKAGES,
and with the program. The program's files are written to the current directory."""

import os
import subprocess
import sys

import annulus
import numpy

packages, program = sys.argv[1:]
assert os.path.dirname(os.path.dirname(annulus.__file__)) == packages, annulus.__file__

tokens, head_dim = 100, 8
q = k = numpy.zeros((1, tokens, 1, head_dim), numpy.float32)
v = (numpy.arange(tokens)[:, None] + numpy.arange(head_dim)).astype(numpy.float32)[None, :, None]
wanted = (numpy.arange(tokens)[:, None] / 2 + numpy.arange(head_dim))[None, :, None]

out = annulus.attention(q, k, v, branches=[(0, 1)], causal=True)
assert numpy.abs(out - wanted).max() < 1e-4

for name, array in {"q": q, "k": k, "v": v}.items():
    numpy.save(name + ".npy", array)
files = [word for name in ("q", "k", "v", "out") for word in (f"--{name}", f"{name}.npy")]
subprocess.run([program, "attend", *files, "--branch", "0:1", "--causal"], check=True)
assert (numpy.load("out.npy") == out).all()
print("annulus", annulus.__version__, "from", annulus.__file__)
