# SPDX-License-Identifier: Apache-2.0
"""Tests that tools for bindings can read the headers unchanged: cffi after the preprocessor, and bindgen.

parsers.py <api directory> <C compiler>...
"""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import tap

# Standard headers come first. Their declarations are not passed to the tool.
SOURCE = "#include <stddef.h>\n#include <stdint.h>\nint begin_of_annulus;\n#include <annulus/annulus.h>\n"


def declarations():
    """Returns the headers as a compiler sees them, without the standard headers that they include."""
    command = [*COMPILER, "-E", "-P", "-x", "c", "-std=c99", "-DANNULUS_API=", f"-I{API}", "-"]
    text = subprocess.run(command, input=SOURCE, check=True, capture_output=True, text=True).stdout
    return text.partition("int begin_of_annulus;")[2]


def runs(program):
    """Returns whether the program exists and runs. rustup's rustc does not run without a home directory."""
    return shutil.which(program) and subprocess.run([program, "--version"], capture_output=True).returncode == 0


class Parsers(unittest.TestCase):
    def test_cffi(self):
        try:
            import cffi
        except ImportError:
            self.skipTest("cffi is not here (Debian: python3-cffi)")
        ffi = cffi.FFI()
        ffi.cdef(declarations())
        self.assertEqual(
            [name for name, _ in ffi.typeof("annulus_branch").fields][:3], ["size", "segment_length", "dilation"]
        )
        self.assertEqual(ffi.typeof("annulus_order").elements, {0: "ANNULUS_ORDER_LINEAR", 1: "ANNULUS_ORDER_HILBERT"})

    @unittest.skipUnless(runs("bindgen") and runs("rustc"), "bindgen or rustc is not here (Debian: bindgen, cargo)")
    def test_bindgen(self):
        with tempfile.TemporaryDirectory() as scratch:
            rust, program = pathlib.Path(scratch) / "annulus.rs", pathlib.Path(scratch) / "layout"
            subprocess.run(
                [
                    "bindgen",
                    f"{API}/annulus/annulus.h",
                    "--no-rustfmt-bindings",
                    "--output",
                    rust,
                    "--allowlist-function",
                    "annulus_.*",
                ]
                + ["--allowlist-type", "annulus_.*", "--allowlist-var", "ANNULUS_.*", "--", f"-I{API}"],
                check=True,
            )
            functions = set(re.findall(r"pub fn (annulus_\w+)", rust.read_text(encoding="utf-8")))
            self.assertEqual(functions, set(re.findall(r"\b(annulus_\w+)\s*\(", declarations())))
            # bindgen also writes tests of each struct's layout.
            subprocess.run(["rustc", "--test", "-Awarnings", "-o", program, rust], check=True)
            subprocess.run([program, "--quiet"], check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    API, *COMPILER = sys.argv[1:]
    tap.main()
