# SPDX-License-Identifier: Apache-2.0
"""packaging/build_wheel.sh: its wheel in a new virtual environment, without CUDA and PyTorch."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import tap

SOURCE = pathlib.Path(os.environ["ANNULUS_SOURCE"])
# The package of the build directory must not be found.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "LD_LIBRARY_PATH")}
ENVIRONMENT["PYTHONS"] = sys.executable  # makes build_wheel.sh build one wheel

LOADED = """
import annulus, annulus.slides, pathlib
print(annulus.__version__)
print(*sorted({line.split()[-1] for line in open("/proc/self/maps") if "libannulus" in line}))
print(pathlib.Path(annulus.__file__).parent)
print((pathlib.Path(annulus.__file__).parent / "py.typed").exists())
"""

NO_CUDA = """
import annulus
print(annulus.device_count("cpu"), annulus.device_count("cuda"))
try:
    annulus.Context([(16, 1)], device="cuda")
except annulus.UnsupportedError as error:
    print(error)
"""

CUSTOM_CALLS = """
import annulus, ctypes, pathlib
calls = ctypes.CDLL(pathlib.Path(annulus.__file__).parent / "jax/libannulus_xla.so")
print(bool(calls.annulus_cpu_forward), bool(calls.annulus_cuda_forward))
assert len({line.split()[-1] for line in open("/proc/self/maps") if "libannulus" in line}) == 2
"""

RANKS = """
import threading
import annulus, numpy as np
x = np.random.default_rng(1).standard_normal((1, 64, 2, 8), dtype=np.float32)
config = annulus.Config([(16, 1), (64, 4)], causal=True)
whole = annulus.Context(config).forward(x, x, x)[0]
parts = [None, None]

def attend(rank, comm):
    shard = np.ascontiguousarray(x[:, 32 * rank : 32 * rank + 32])
    parts[rank] = annulus.Context(config, comm=comm).forward(shard, shard, shard)[0]

threads = [threading.Thread(target=attend, args=end) for end in enumerate(annulus.Comm.local(2))]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
np.testing.assert_allclose(np.concatenate(parts, axis=1), whole, atol=1e-6)
"""


def run(*command, **options):
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, **options)


def new_environment(directory):
    """Makes a virtual environment with NumPy. Returns its python."""
    if run(sys.executable, "-m", "venv", directory / "venv").returncode:
        tap.skip_all("needs python3-venv")
    python = directory / "venv/bin/python"
    if run(python, "-m", "pip", "install", "--quiet", "--retries", "1", "numpy").returncode:
        tap.skip_all("needs PyPI")
    return python


class WheelTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        built = run("sh", SOURCE / "packaging/build_wheel.sh", scratch / "wheels", "-Dcuda=disabled")
        if built.returncode:
            raise RuntimeError((built.stdout + built.stderr)[-4000:])
        (cls.wheel,) = (scratch / "wheels").iterdir()
        run(python, "-m", "pip", "install", "--quiet", "--no-index", cls.wheel, check=True)

    def print_of(self, *command):
        done = run(*command, cwd=scratch)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_tags(self):
        version = f"cp{sys.version_info.major}{sys.version_info.minor}"
        self.assertRegex(self.wheel.name, rf"^libannulus-[\d.]+-{version}-{version}-(manylinux_\w+\.?)+\.whl$")
        self.assertRegex(self.wheel.name, r"manylinux_2_(17|2[0-8])_")

    def test_loads_its_own_library(self):
        version, library, package, typed = self.print_of(python, "-c", LOADED).splitlines()
        self.assertTrue(package.startswith(f"{scratch}/venv/lib/"), package)
        self.assertEqual(os.path.dirname(os.path.dirname(library)), os.path.dirname(package))
        self.assertEqual(typed, "True")
        self.assertIn(f"libannulus=={version}\n", self.print_of(python, "-m", "pip", "list", "--format", "freeze"))

    def test_has_custom_calls_for_jax(self):
        """They load without JAX, with the library of the wheel."""
        self.assertEqual(self.print_of(python, "-c", CUSTOM_CALLS), "True True\n")

    def test_has_the_program(self):
        """Without cairo, which it says."""
        program, packages = scratch / "venv/bin/annulus", self.print_of(python, "-c", LOADED).splitlines()[2]
        self.assertIn("annulus", self.print_of(program, "info"))
        smoke = SOURCE / "packaging/smoke/smoke.py"
        self.print_of(python, smoke, os.path.dirname(packages), program)
        picture = run(program, "map", "--q", "q.npy", "--k", "k.npy", "--branch", "0:1", "--grid", "10",
                      "--picture", "map.png", cwd=scratch)  # fmt: skip
        self.assertNotEqual(picture.returncode, 0)
        self.assertIn("--picture: this build was made without cairo", picture.stderr)

    def test_small_job(self):
        example = SOURCE / "bindings/python/examples/small_job.py"
        self.assertEqual(self.print_of(python, example), self.print_of(os.environ["ANNULUS_SMALL_JOB"]))

    def test_says_why_there_is_no_cuda(self):
        counts, reason = self.print_of(python, "-c", NO_CUDA).splitlines()
        self.assertEqual(counts, "1 0")
        self.assertIn("this annulus was built without CUDA", reason)

    def test_an_editable_install_says_what_it_needs(self):
        """The error comes before anything is compiled."""
        done = run(python, "-m", "pip", "install", "--no-deps", "-e", SOURCE, cwd=scratch)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("pip install --no-build-isolation -e .", done.stdout + done.stderr)

    def test_ranks_over_threads(self):
        self.print_of(python, "-c", RANKS)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        scratch = pathlib.Path(name)
        python = new_environment(scratch)
        tap.main()
