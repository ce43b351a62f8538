#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the declarations of the C API for Rust and Julia, and a C program that prints the layout of its structs.

usage: emit.py [--check] [--swig PROGRAM]

The functions, structs, enums and constants come from `swig -xml` of annulus.i. The comments and the initial values of
structs (ANNULUS_..._INIT) come from the headers. An unknown C type, field or declaration is an error. --check writes
nothing; the exit status is 1 if a file differs from what would be written, 77 if there is no SWIG.
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
    """Returns whether the file differs from `text`, and prints the differences."""
    old = path.read_text(encoding="utf-8") if path.exists() else ""
    names = str(path), "what emit.py would write"
    sys.stdout.writelines(difflib.unified_diff(old.splitlines(True), text.splitlines(True), *names))
    return old != text


def main():
    parser = argparse.ArgumentParser(description="Writes the declarations of the C API for Rust and Julia.")
    parser.add_argument("--check", action="store_true", help="write nothing, fail if a file is stale")
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
