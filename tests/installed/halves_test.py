# SPDX-License-Identifier: Apache-2.0
"""Tests `meson setup` on a machine with one half of a dependency: its run-time files without headers, the headers of an
old version, a program without its library. An option that is `auto` must be off, with a line that says why. `enabled`
must fail with the same words. The tests make every half, and pkg-config sees no other package.

ANNULUS_SOURCE is the source tree, ANNULUS_MESON is Meson, ANNULUS_PYTHON the Python of the package.
"""

import os
import pathlib
import re
import subprocess
import tempfile
import unittest

import tap

SOURCE = pathlib.Path(os.environ["ANNULUS_SOURCE"])
MESON = os.environ["ANNULUS_MESON"]
PYTHON = os.environ["ANNULUS_PYTHON"]
OPTIONS = ("cli", "cuda", "doc", "mpi", "python", "tests")

# Finds MPI, like the wrapper that Debian installs with openmpi-bin.
MPICC = """#!/bin/sh
case $1 in
    --showme:version) echo 'mpicc: Open MPI 4.1.4 (Language: C)' ;;
    --showme:compile) echo '-I/nonexistent/openmpi/include' ;;
    --showme:link) echo '-L/nonexistent/openmpi/lib -lmpi' ;;
esac
"""

# Compiles Meson's test program for the compiler into a script that succeeds.
NVCC = """#!/bin/sh
[ "$1" != --version ] || {{ echo 'Cuda compilation tools, release {version}, V{version}.48'; exit 0; }}
while [ $# -gt 1 ]; do
    [ "$1" != -o ] || {{ printf '#!/bin/sh\\n' >"$2"; chmod +x "$2"; }}
    shift
done
exit {status}
"""

# Makes Python name places without files for its headers and its pkg-config file.
SITECUSTOMIZE = """
import sysconfig

found = sysconfig.get_paths
sysconfig.get_paths = lambda *args, **options: {**found(*args, **options), "include": "/nonexistent",
                                                "platinclude": "/nonexistent"}
sysconfig.get_config_vars().update(INCLUDEPY="/nonexistent", LIBPC="/nonexistent")
"""


class HalvesTest(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.scratch = pathlib.Path(scratch.name)
        (self.scratch / "pkgconfig").mkdir()
        self.environment = {name: value for name, value in os.environ.items()
                            if name not in ("CUDA_HOME", "CUDA_PATH", "MPICC", "PKG_CONFIG_PATH")}
        self.environment["PATH"] = f"{self.scratch / 'toolkit/bin'}:{os.environ['PATH']}"
        self.environment["PKG_CONFIG_LIBDIR"] = str(self.scratch / "pkgconfig")

    def write(self, path, text):
        path = self.scratch / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)
        return path

    def package(self, name, flags):
        self.write(f"pkgconfig/{name}.pc", f"Name: {name}\nDescription: half\nVersion: 9.0\nCflags: {flags}\n")

    def without_headers(self, *names):
        """Makes packages that pkg-config finds. The compiler finds no header with their flags."""
        for name in names:
            self.package(name, "-nostdinc")

    def mpi_without_headers(self):
        self.environment["MPICC"] = str(self.write("mpicc", MPICC))

    def python_without_headers(self):
        self.write("site/sitecustomize.py", SITECUSTOMIZE)
        python = self.write("python", f'#!/bin/sh\nPYTHONPATH="{self.scratch}/site" exec "{PYTHON}" "$@"\n')
        self.write("native.ini", f"[binaries]\npython = '{python}'\n")

    def toolkit(self, version="13.0", status=0, libraries=(), cublas="", nccl=None):
        """Makes a CUDA toolkit with all headers and only the given libraries. cublas: the header of cuBLAS."""
        self.write("toolkit/bin/nvcc", NVCC.format(version=version, status=status))
        self.write("toolkit/include/cuda_runtime_api.h", "")
        self.write("toolkit/include/cublas_v2.h", cublas)
        if nccl is not None:
            self.write("toolkit/include/nccl.h", nccl)
        source = self.write("toolkit/lib64/empty.c", "")
        for name in libraries:
            subprocess.run(["cc", "-shared", "-o", source.with_name(f"lib{name}.so"), source], check=True)

    def configure(self, **options):
        """Returns Meson's output and whether it succeeded. Options that are not given are disabled."""
        native = [f"--native-file={path}" for path in self.scratch.glob("native.ini")]
        values = [f"-D{name}={options.get(name, 'disabled')}" for name in OPTIONS]
        done = subprocess.run([MESON, "setup", self.scratch / "build", SOURCE, *native, *values], env=self.environment,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return done.returncode == 0, done.stdout

    def assert_off(self, said, part, why):
        self.assertRegex(said, rf"(?m)^Message: {re.escape(why)}")
        self.assertRegex(said, rf"(?m)^ *{re.escape(part)} *: NO$")

    def assert_refused(self, option, why):
        succeeded, said = self.configure(**{option: "enabled"})
        self.assertFalse(succeeded, said)
        self.assertIn(f"ERROR: Feature {option} cannot be enabled: {why}", said)

    def test_auto_is_off_and_says_why(self):
        self.mpi_without_headers()
        self.python_without_headers()
        self.toolkit()
        self.without_headers("CLI11", "cairo-png", "cmocka", "gtest", "gtest_main", "nlohmann_json")
        succeeded, said = self.configure(**dict.fromkeys(OPTIONS, "auto"))
        self.assertTrue(succeeded, said)
        self.assert_off(said, "CUDA plugin", "No plugin for CUDA: the CUDA runtime, libcudart with cuda_runtime_api.h")
        self.assert_off(said, "MPI plugin", "No plugin for MPI: mpi.h or the library")
        self.assert_off(said, "the program annulus", "No program: the header CLI/CLI.hpp of CLI11 is missing.")
        self.assert_off(said, "the Python package", "No Python package: the headers of Python 3.")
        self.assert_off(said, "the site (target doc)", "No target doc: ")
        self.assert_off(said, "the tests", "No tests: the header gtest/gtest.h of GoogleTest is missing.")
        self.assertIn("Message: No program: the header nlohmann/json.hpp of nlohmann_json is missing.", said)
        self.assertIn("Message: No pictures in PNG: cairo.h or the library", said)

    def test_auto_with_other_halves(self):
        self.environment["SWIG_LIB"] = "/nonexistent"
        self.toolkit(libraries=["cudart"], nccl="#define NCCL_MAJOR 2\n#define NCCL_MINOR 13\n")
        self.package("gtest", "")
        self.package("gtest_main", "")
        self.without_headers("cmocka")
        succeeded, said = self.configure(cuda="auto", python="auto", tests="auto")
        self.assertTrue(succeeded, said)
        self.assert_off(said, "with NCCL", "No NCCL: nccl.h is missing or of a version before 2.14")
        self.assert_off(said, "the Python package", "No Python package: SWIG cannot read its own library")
        self.assert_off(said, "the tests", "No tests: the header cmocka.h of cmocka is missing.")
        self.assertRegex(said, r"(?m)^ *CUDA plugin *: YES$")

    def test_auto_with_a_compiler_that_does_not_compile(self):
        self.toolkit(status=1)
        succeeded, said = self.configure(cuda="auto")
        self.assertTrue(succeeded, said)
        self.assert_off(said, "CUDA plugin", "No plugin for CUDA: nvcc does not compile and link a program")

    @unittest.skipUnless(os.path.isfile("/etc/debian_version") and os.path.realpath("/usr/lib64") == "/usr/lib64",
                         "needs a Debian with /usr/lib64")
    def test_debian_without_dpkg_dev(self):
        self.write("toolkit/bin/dpkg-architecture", "#!/bin/sh\nexit 1\n")
        succeeded, said = self.configure()
        self.assertTrue(succeeded, said)
        self.assertRegex(said, r"WARNING: libdir is lib64, where neither the loader nor pkg-config looks on Debian")

    def test_mpi_enabled(self):
        self.mpi_without_headers()
        self.assert_refused("mpi", "mpi.h or the library to link with is missing; Debian has them in libopenmpi-dev")

    def test_cuda_enabled_without_the_runtime(self):
        self.toolkit()
        self.assert_refused("cuda", "the CUDA runtime, libcudart with cuda_runtime_api.h, is not in the toolkit of nvcc")

    def test_cuda_enabled_without_cublas(self):
        self.toolkit(libraries=["cudart"], cublas="#error")
        self.assert_refused("cuda", "the header cublas_v2.h of cuBLAS is not in the toolkit of nvcc")

    def test_cuda_enabled_with_an_old_compiler(self):
        self.toolkit(version="11.8")
        self.assert_refused("cuda", "nvcc is of CUDA 11.8.48; it must be 12.1 or newer")

    def test_program_enabled(self):
        self.package("CLI11", "")
        self.without_headers("nlohmann_json")
        self.assert_refused("cli", "the header nlohmann/json.hpp of nlohmann_json is missing")

    def test_python_enabled_without_headers(self):
        self.python_without_headers()
        self.assert_refused("python", "the headers of Python 3.")

    def test_python_enabled_without_the_library_of_swig(self):
        self.environment["SWIG_LIB"] = "/nonexistent"
        self.assert_refused("python", "SWIG cannot read its own library; SWIG_LIB may name the directory of it")

    def test_tests_enabled(self):
        self.without_headers("cmocka", "gtest", "gtest_main")
        self.assert_refused("tests", "the header gtest/gtest.h of GoogleTest is missing")


if __name__ == "__main__":
    tap.main()
