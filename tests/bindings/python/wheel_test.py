# SPDX-License-Identifier: Apache-2.0
"""`pip install .` in a clean virtual environment: the wheel brings its library along and finds it."""

import os
import subprocess
import sys
import tempfile
import unittest

import tap

SOURCE = os.environ["ANNULUS_SOURCE"]
# What is not under test here and takes long.
OPTIONS = ["-Csetup-args=-Dcuda=disabled", "-Csetup-args=-Dmpi=disabled"]
# Nothing of the build directory's package may be seen.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "LD_LIBRARY_PATH")}

LOADED = """
import annulus, pathlib
import annulus._capi
print(annulus.__version__)
print(*sorted({line.split()[-1] for line in open("/proc/self/maps") if "libannulus" in line}))
print(pathlib.Path(annulus.__file__).parent)
print((pathlib.Path(annulus.__file__).parent / "py.typed").exists())
"""


def run(*command, **options):
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, **options)


class WheelTest(unittest.TestCase):
    def test_wheel(self):
        with tempfile.TemporaryDirectory() as directory:
            if run(sys.executable, "-m", "venv", f"{directory}/venv").returncode:
                self.skipTest("needs python3-venv")
            python = f"{directory}/venv/bin/python"
            # Older versions of pip know no repeated settings.
            if run(python, "-m", "pip", "install", "--quiet", "--retries", "1", "--upgrade", "pip").returncode:
                self.skipTest("needs PyPI")
            settings = [*OPTIONS, f"-Cbuild-dir={directory}/build"]
            installed = run(python, "-m", "pip", "install", "--quiet", *settings, SOURCE)
            self.assertEqual(installed.returncode, 0, installed.stderr[-4000:])

            version, library, package, typed = run(python, "-c", LOADED, check=True, cwd=directory).stdout.splitlines()
            self.assertTrue(package.startswith(f"{directory}/venv/lib/"), package)
            self.assertEqual(os.path.dirname(os.path.dirname(library)), os.path.dirname(package))
            self.assertEqual(typed, "True")
            example = os.path.join(SOURCE, "bindings/python/examples/small_job.py")
            printed = run(python, example, check=True, cwd=directory).stdout
            self.assertEqual(printed, run(os.environ["ANNULUS_SMALL_JOB"], check=True).stdout)
            self.assertIn(
                f"libannulus {version}\n",
                run(python, "-m", "pip", "list", "--format", "freeze", check=True).stdout.replace("==", " "),
            )


if __name__ == "__main__":
    tap.main()
