# SPDX-License-Identifier: Apache-2.0
"""Tests how other builds find the library: in an installation that was moved, by pkg-config and by CMake's
find_package(), and as a subproject of Meson. Each build compiles packaging/smoke/smoke.c and runs it.

ANNULUS_SOURCE and ANNULUS_BUILD are the directories, ANNULUS_MESON is Meson, ANNULUS_PREFIX and
ANNULUS_LIBDIR are where it installs.
"""

import json
import os
import pathlib
import shlex
import shutil
import subprocess
import tempfile
import unittest

import tap

HERE = pathlib.Path(__file__).resolve().parent
SOURCE = pathlib.Path(os.environ["ANNULUS_SOURCE"])
SMOKE = SOURCE / "packaging/smoke/smoke.c"
BUILD = pathlib.Path(os.environ["ANNULUS_BUILD"])
MESON = os.environ["ANNULUS_MESON"]
PREFIX = os.environ["ANNULUS_PREFIX"]
LIBDIR = os.environ["ANNULUS_LIBDIR"]
os.environ.pop("LD_LIBRARY_PATH", None)  # Meson sets it to the directory of the library that was built


def run(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, **options)
    return done.returncode, done.stdout + done.stderr


class ScratchTest(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.scratch = pathlib.Path(scratch.name)

    def assert_runs(self, *command, says="", **options):
        status, said = run(*command, **options)
        self.assertEqual(status, 0, said[-4000:])
        self.assertIn(says, said)
        return said


class InstalledTest(ScratchTest):
    def setUp(self):
        super().setUp()
        self.assert_runs(MESON, "install", "-C", BUILD, "--no-rebuild", "--destdir", self.scratch / "root",
                         "--tags", "devel,runtime")
        self.prefix = self.scratch / "moved"
        (self.scratch / "root" / PREFIX.lstrip("/")).rename(self.prefix)
        self.libdir = self.prefix / LIBDIR

    def configure(self, wanted):
        return run("cmake", "-S", HERE, "-B", self.scratch / "build", f"-DCMAKE_PREFIX_PATH={self.prefix}",
                   f"-DSOURCE={SMOKE}", f"-DWANTED={wanted}")

    @unittest.skipUnless(shutil.which("cmake"), "needs cmake")
    def test_cmake(self):
        for wanted in ("", "1", "1.0", "1.0.0;EXACT"):
            with self.subTest(wanted=wanted):
                status, said = self.configure(wanted)
                self.assertEqual(status, 0, said)
                self.assert_runs("cmake", "--build", self.scratch / "build")
                self.assert_runs(self.scratch / "build/user", says="libannulus")
                self.assertIn(str(self.libdir), self.assert_runs("ldd", self.scratch / "build/user"))
                shutil.rmtree(self.scratch / "build")

    @unittest.skipUnless(shutil.which("cmake"), "needs cmake")
    def test_cmake_other_versions(self):
        for wanted in ("0", "0.1", "1.0.1", "1.1", "2", "1.0.1;EXACT"):
            with self.subTest(wanted=wanted):
                status, said = self.configure(wanted)
                self.assertNotEqual(status, 0)
                self.assertIn("annulusConfig.cmake, version: 1.0.0", said)
                shutil.rmtree(self.scratch / "build")

    @unittest.skipUnless(shutil.which("pkg-config"), "needs pkg-config")
    def test_pkg_config(self):
        flags = self.assert_runs(
            "pkg-config", f"--define-variable=prefix={self.prefix}", "--cflags", "--libs", "annulus",
            env={**os.environ, "PKG_CONFIG_PATH": str(self.libdir / "pkgconfig")})
        program = self.scratch / "user"
        self.assert_runs("cc", SMOKE, "-o", program, *shlex.split(flags), "-lm", f"-Wl,-rpath,{self.libdir}")
        self.assert_runs(program, says="libannulus")

    def test_plugins_lie_beside(self):
        built = sorted(path.name for path in (BUILD / "src").glob("libannulus-*.so.*") if path.is_file())
        self.assertEqual(sorted(path.name for path in self.libdir.glob("libannulus-*")), built)


class SubprojectTest(ScratchTest):
    """The library as a subproject, without the parts that take long to build."""

    OPTIONS = ["-Dannulus:cuda=disabled", "-Dannulus:mpi=disabled", "--optimization=0", "--unity=on"]

    def setUp(self):
        super().setUp()
        shutil.copy(HERE / "user_meson.build", self.scratch / "meson.build")
        shutil.copy(SMOKE, self.scratch)
        (self.scratch / "subprojects").mkdir()
        (self.scratch / "subprojects/annulus").symlink_to(SOURCE)
        self.build = self.scratch / "build"

    def test_subproject(self):
        self.assert_runs(MESON, "setup", self.build, self.scratch, *self.OPTIONS)
        targets = json.loads(self.assert_runs(MESON, "introspect", "--targets", self.build))
        installed = {target["name"] for target in targets if target["installed"]}
        programs = {target["name"] for target in targets if target["type"] == "executable"}
        self.assertEqual((installed, programs), ({"annulus"}, {"user"}))
        self.assert_runs("ninja", "-C", self.build)
        self.assert_runs(self.build / "user", says="libannulus")

    def test_static_library_is_refused(self):
        status, said = run(MESON, "setup", self.build, self.scratch, *self.OPTIONS,
                           "-Dannulus:default_library=static")
        self.assertNotEqual(status, 0)
        self.assertIn("-Dannulus:default_library=shared", said)


if __name__ == "__main__":
    tap.main()
