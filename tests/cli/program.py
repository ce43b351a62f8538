# SPDX-License-Identifier: Apache-2.0
"""Shared by the program's tests: running the program, and arrays in files of a temporary directory."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

import tap

try:
    import numpy as np
except ImportError:
    tap.skip_all("needs NumPy")

PROGRAM = os.environ["ANNULUS_PROGRAM"]
SANITIZED = os.environ.get("ANNULUS_SANITIZERS", "none") != "none"
DTYPES = ("float64", "float32", "float16", "bfloat16")


def run(*arguments, stdout=subprocess.PIPE, **options):
    return subprocess.run([PROGRAM, *map(str, arguments)], stdout=stdout, stderr=subprocess.PIPE, text=True,
                          check=False, **options)


def run_json(*arguments):
    result = run(*arguments, "--format", "json")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def cuda_device_count():
    return next(row["count"] for row in run_json("info")["devices"] if row["kind"] == "cuda")


def has_mpi():
    return shutil.which("mpirun") and "MPI none" not in run_json("info")["build"]["build_info"]


def mpirun_command(ranks):
    return ["mpirun", "--oversubscribe", "--allow-run-as-root", "--bind-to", "none", "-n", str(ranks), PROGRAM]


def round_to_bfloat16(values):
    """Returns float32 numbers, rounded to nearest, ties to even, as 16-bit codes of bfloat16."""
    bits = np.asarray(values, np.float32).view(np.uint32)
    rounded = ((bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded)


def from_bfloat16(codes):
    return (np.asarray(codes).view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def save(path, array, dtype=None):
    """Saves an array in a dtype; bfloat16 with the header that numpy.save gives an array of ml_dtypes.bfloat16."""
    if dtype != "bfloat16":
        np.save(path, array.astype(dtype or array.dtype))
        return
    with open(path, "wb") as file:
        header = {"descr": "<V2", "fortran_order": False, "shape": array.shape}
        np.lib.format.write_array_header_1_0(file, header)
        file.write(round_to_bfloat16(array).tobytes())


def load(path):
    """Returns an array as float64, and its dtype."""
    array = np.load(path)
    if array.dtype == np.dtype("V2"):
        return from_bfloat16(array.view(np.uint16)).astype(np.float64), "bfloat16"
    return array.astype(np.float64), array.dtype.name


def rounded(array, dtype):
    """Returns the values of an array after rounding to `dtype`, in float64."""
    if dtype == "bfloat16":
        return from_bfloat16(round_to_bfloat16(array)).astype(np.float64)
    return array.astype(dtype).astype(np.float64)


class ProgramTest(unittest.TestCase):
    def setUp(self):
        self.random = np.random.default_rng(1)
        self.directory = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

    def enterContext(self, context):  # unittest has it from Python 3.11 on
        value = context.__enter__()
        self.addCleanup(context.__exit__, None, None, None)
        return value

    def path(self, name):
        return self.directory / name

    def save_inputs(self, q_shape, kv_shape=None, dtype="float32"):
        """Saves random q.npy, k.npy and v.npy; returns their values in float64."""
        values = []
        for name, shape in (("q", q_shape), ("k", kv_shape or q_shape), ("v", kv_shape or q_shape)):
            array = self.random.standard_normal(shape).astype(np.float32)
            save(self.path(name + ".npy"), array, dtype)
            values.append(rounded(array, dtype))
        return values

    def attend_arguments(self, *more, out="o.npy"):
        files = [("--q", "q.npy"), ("--k", "k.npy"), ("--v", "v.npy"), ("--out", out)]
        return ["attend", *(part for option, name in files for part in (option, self.path(name))), *more]

    def assert_done(self, result, warning=""):
        """Asserts success without output, or with one warning that begins with `warning`."""
        self.assertEqual((result.returncode, result.stdout), (0, ""), result.stderr)
        if warning:
            self.assertRegex(result.stderr, rf"\Aannulus: warning: {re.escape(warning)}[^\n]*\n\Z")
        else:
            self.assertEqual(result.stderr, "")

    def attend(self, *more, warning=""):
        """Runs attend on the three inputs. Returns O and LSE in float64, with their dtypes."""
        self.assert_done(run(*self.attend_arguments("--lse", self.path("lse.npy"), *more)), warning)
        return load(self.path("o.npy")), load(self.path("lse.npy"))

    def assert_refused(self, result, exit_code=2, says=""):
        self.assertEqual(result.returncode, exit_code, result.stderr)
        self.assertRegex(result.stderr, r"\Aannulus: [^\n]+\n\Z")
        self.assertEqual(result.stdout, "")
        self.assertIn(says, result.stderr)

    def names(self):
        return sorted(path.name for path in self.directory.iterdir())
