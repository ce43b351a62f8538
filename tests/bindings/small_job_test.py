#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every language's example prints the same as the C program. Prints TAP; a missing language is skipped.

usage: small_job_test.py C_PROGRAM LIBRARY BINDINGS TARGET_DIRECTORY JULIA_DEPOT PYTHON_PACKAGES

TARGET_DIRECTORY is cargo's. JULIA_DEPOT is where Julia keeps what it compiled. PYTHON_PACKAGES is the directory of the
built Python package, empty if there is none.
"""

import os
import pathlib
import shutil
import subprocess
import sys


def commands(library, bindings, target, julia_depot, python_packages):
    """Yields (language, why it is missing or None, command, environment) for each example."""
    yield (
        "Python",
        python_missing(python_packages),
        [sys.executable, bindings / "python/examples/small_job.py"],
        {"PYTHONPATH": python_packages, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    manifest = bindings / "rust/Cargo.toml"
    yield (
        "Rust",
        None if shutil.which("cargo") else "there is no cargo",
        ["cargo", "run", "--quiet", "--offline", "--locked", "--manifest-path", manifest, "--example", "small_job"],
        {"CARGO_TARGET_DIR": target, "ANNULUS_LIB_DIR": library.parent, "LD_LIBRARY_PATH": library.parent},
    )
    yield (
        "Julia",
        None if shutil.which("julia") else "there is no julia",
        ["julia", "--startup-file=no", bindings / "julia/examples/small_job.jl"],
        {"ANNULUS_LIBRARY": library, "JULIA_DEPOT_PATH": julia_depot},
    )


def python_missing(packages):
    if not packages:
        return "the Python package was not built"
    found = subprocess.run([sys.executable, "-c", "import numpy"], stderr=subprocess.DEVNULL).returncode == 0
    return None if found else "there is no NumPy"


def main():
    c_program, library, bindings, target, julia_depot = map(pathlib.Path, sys.argv[1:6])
    expected = subprocess.run([c_program], stdout=subprocess.PIPE, text=True, check=True).stdout
    examples = list(commands(library, bindings, target, julia_depot, sys.argv[6]))
    print(f"1..{len(examples)}")
    for number, (language, missing, command, variables) in enumerate(examples, 1):
        if missing:
            print(f"ok {number} - {language} # SKIP {missing}")
            continue
        environment = {**os.environ, **{name: str(value) for name, value in variables.items()}}
        run = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        same = run.returncode == 0 and run.stdout == expected
        print("ok" if same else "not ok", number, "-", language)
        if not same:
            print("# expected:", *expected.splitlines(), "and got:", *run.stdout.splitlines(), sep="\n#   ")
    return 0


if __name__ == "__main__":
    sys.exit(main())
