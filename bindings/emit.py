#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the declarations of the C API for Rust and Julia, and the C program that tells how its structs are laid out.

usage: emit.py [--check] [--swig PROGRAM]

`swig -xml` of annulus.i tells functions, structs, enums and constants. What it leaves out is read from the headers: the
comments, and the initial values of structs (ANNULUS_..._INIT). A C type, a field or a declaration that is not known
here is an error. With --check nothing is written, and the exit status is 1 where a file is not what would be written,
77 where there is no SWIG.
"""

import argparse
import difflib
import pathlib
import shutil
import subprocess
import sys

from emit.api import read_api
from emit.declarations import EmitError
from emit.julia import julia
from emit.layout import layout
from emit.rust import rust

ROOT = pathlib.Path(__file__).resolve().parent.parent
API = ROOT / "api"
INTERFACE = ROOT / "bindings/annulus.i"
RUST = ROOT / "bindings/rust/annulus-sys/src/generated.rs"
JULIA = ROOT / "bindings/julia/src/generated.jl"
LAYOUT = ROOT / "tests/bindings/layout.c"
SKIPPED = 77


def stale(path, text):
    """Whether the file is not `text`; says where."""
    old = path.read_text(encoding="utf-8") if path.exists() else ""
    names = str(path), "what emit.py would write"
    sys.stdout.writelines(difflib.unified_diff(old.splitlines(True), text.splitlines(True), *names))
    return old != text


def main():
    parser = argparse.ArgumentParser(description="Writes the declarations of the C API for Rust and Julia.")
    parser.add_argument("--check", action="store_true", help="write nothing, fail where a file is stale")
    parser.add_argument("--swig", default="swig", help="the SWIG program")
    arguments = parser.parse_args()
    swig = shutil.which(arguments.swig)
    if not swig:
        print(f"emit.py: there is no {arguments.swig}", file=sys.stderr)
        return SKIPPED
    try:
        api = read_api(swig, API, INTERFACE)
        files = {RUST: rust(api), JULIA: julia(api), LAYOUT: layout(api)}
    except (EmitError, subprocess.CalledProcessError) as error:
        print(f"emit.py: {error}", file=sys.stderr)
        return 2
    if arguments.check:
        return int(any([stale(path, text) for path, text in files.items()]))
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
