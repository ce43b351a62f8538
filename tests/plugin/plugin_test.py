# SPDX-License-Identifier: Apache-2.0
"""Tests the plugins for CUDA and MPI: what the library answers with a plugin, without it, if a library that it needs is
missing, and if its file is something else. Also tests MPI in a process that has another MPI library. Each case has a
directory of its own with a copy of the library.

Environment:
  ANNULUS_LIBRARY      the library
  ANNULUS_CUDA_PLUGIN  the plugin's file, which does not exist in a build without CUDA
  ANNULUS_MPI_PLUGIN   the plugin's file, which does not exist in a build without MPI
  ANNULUS_CC           the C compiler's command, one word a line
  ANNULUS_PROGRAM      the program, if it was built
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import tap

LIBRARY = pathlib.Path(os.environ["ANNULUS_LIBRARY"])
CUDA_PLUGIN = pathlib.Path(os.environ["ANNULUS_CUDA_PLUGIN"])
MPI_PLUGIN = pathlib.Path(os.environ["ANNULUS_MPI_PLUGIN"])
CC = os.environ["ANNULUS_CC"].splitlines()
ARGUMENT, UNSUPPORTED = 1, 2

# Meson adds the directory where the library and plugins were built. It is left out.
SEARCHED = [path for path in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
            if path and pathlib.Path(path).resolve() != LIBRARY.parent.resolve()]

# A program for a process of its own. It prints the answers of the library whose path is its first argument. Before, it
# loads the other libraries that are named; after the word "global", with their symbols visible to all libraries.
ASK = """
import ctypes, json, sys
path, *others = sys.argv[1:]
mode = ctypes.DEFAULT_MODE
for other in others:
    if other == "global":
        mode = ctypes.RTLD_GLOBAL
    else:
        ctypes.CDLL(other, mode)
library = ctypes.CDLL(path)
for text in library.annulus_last_error, library.annulus_build_info, library.annulus_version_string:
    text.restype = ctypes.c_char_p
count, handle, nccl_id = ctypes.c_int32(-1), ctypes.c_void_p(), ctypes.create_string_buffer(128)
answers = {}
answers["asked"] = library.annulus_device_count(2, ctypes.byref(count))
answers["count"] = count.value
answers["context"] = library.annulus_context_create(ctypes.byref(handle), 2, 0)
answers["context_error"] = library.annulus_last_error().decode()
answers["nccl"] = library.annulus_nccl_id_generate(nccl_id)
answers["nccl_error"] = library.annulus_last_error().decode()
answers["cpu"] = library.annulus_context_create(ctypes.byref(handle), 1, 0)
comm, mpi_comm = ctypes.c_void_p(1), ctypes.create_string_buffer(b"no communicator")
answers["mpi"] = library.annulus_comm_create_from_mpi(ctypes.byref(comm), mpi_comm, None)
answers["mpi_error"] = library.annulus_last_error().decode()
answers["comm"] = comm.value
answers["info"] = library.annulus_build_info().decode()
answers["version"] = library.annulus_version_string().decode()
answers["mapped"] = [line.split()[-1] for line in open("/proc/self/maps") if "libannulus-" in line]
print(json.dumps(answers))
"""

# Prints whether the plugin, the first argument, takes the cuBLAS that the process has loaded, the second one.
ASK_CUBLAS = """
import ctypes, sys
plugin, cublas = map(ctypes.CDLL, sys.argv[1:])
find = plugin.annulus_cublas_of_plugin
find.restype = ctypes.c_void_p
print(find() == cublas._handle)
"""

# The functions of cuBLAS that the plugin uses.
CUBLAS = ("cublasGetStatusString", "cublasGetStatusName", "cublasCreate_v2", "cublasDestroy_v2", "cublasSetStream_v2",
          "cublasSetMathMode", "cublasSetWorkspace_v2", "cublasGemmBatchedEx_64")

# The functions of another MPI library by which annulus notices it.
OTHER_MPI = """
int PMPI_Initialized(int *answer) { *answer = ANSWER; return 0; }
int MPI_Initialized(int *answer) { return PMPI_Initialized(answer); }
int MPI_Finalized(int *answer) { *answer = 0; return 0; }
int MPI_Get_library_version(char *text, int *length) { __builtin_trap(); }
int MPI_Comm_dup(void *comm, void **copy) { __builtin_trap(); }
"""


def run_python(program, *arguments, searched):
    env = {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(map(str, searched))}
    return subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, env=env)


def ask(library, *others, path=None):
    """Returns the answers of a library, as a dict. `path` is a further directory to search for libraries."""
    asked = run_python(ASK, library, *others, searched=[path, *SEARCHED] if path else SEARCHED)
    asked.check_returncode()
    return json.loads(asked.stdout)


def dynamic(library, tag):
    text = subprocess.run(["readelf", "-d", library], check=True, capture_output=True, text=True).stdout
    return re.findall(rf"\({tag}\).*\[(.*)\]", text)


def is_installed(plugin):
    """True if the dynamic loader finds the plugin without a path."""
    found = run_python("import ctypes, sys; ctypes.CDLL(sys.argv[1])", plugin.name, searched=SEARCHED)
    return f"{plugin.name}: cannot open shared object file" not in found.stderr


class LibraryTest(unittest.TestCase):
    def test_library_needs_no_plugins_libraries(self):
        needed = dynamic(LIBRARY, "NEEDED")
        self.assertEqual([name for name in needed if re.search("cuda|cublas|nccl|mpi", name)], [])

    @unittest.skipUnless("ANNULUS_PROGRAM" in os.environ, "a build without the program")
    def test_program_starts_without_cuda(self):
        needed = dynamic(os.environ["ANNULUS_PROGRAM"], "NEEDED")
        self.assertIn("libannulus.so.1", needed)
        self.assertEqual([name for name in needed if re.search("cuda|cublas|nccl", name)], [])


class ScratchTest(unittest.TestCase):
    BUILT: pathlib.Path  # the plugin, if it was built

    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.scratch = pathlib.Path(scratch.name)
        self.library = self.scratch / "libannulus.so.1"
        shutil.copy(LIBRARY, self.library)
        self.plugin = self.scratch / self.BUILT.name

    def compile(self, source, output, *options):
        subprocess.run([*CC, "-shared", "-fPIC", "-x", "c", "-", "-x", "none", "-o", output, *options],
                       input=source, text=True, check=True)

    def needs_build(self):
        if not self.BUILT.exists():
            self.skipTest(f"a build without {self.PART}")


class PluginCases:
    """Cases for every plugin. PART is "CUDA" or "MPI", ENTRY the function of its table, OTHERS its further functions."""

    OTHERS: list[str] = []

    def test_no_plugin(self):
        if is_installed(self.BUILT):
            self.skipTest("a plugin is installed")
        answers = ask(self.library)
        self.assert_none(answers, self.BUILT.name, "cannot be loaded", "No such file")
        said = f"this annulus was built without {self.PART}" in answers[self.ERRORS[0]]
        self.assertEqual(said, not self.BUILT.exists())

    def test_missing_library(self):
        self.compile("", self.scratch / "libannulus_test_lib.so", "-Wl,-soname,libannulus_test_lib.so")
        self.compile("", self.plugin, "-Wl,--no-as-needed", self.scratch / "libannulus_test_lib.so")
        (self.scratch / "libannulus_test_lib.so").unlink()
        self.assert_none(ask(self.library), str(self.plugin), "libannulus_test_lib.so: cannot open")

    def test_other_version(self):
        self.compile('static const char *const plugin[] = {"9.8.7"};\n'
                     f"const void *{self.ENTRY}(void) {{ return plugin; }}\n", self.plugin)
        answers = ask(self.library)
        self.assert_none(answers, f"annulus 9.8.7, and this is annulus {answers['version']}")

    def test_other_library(self):
        self.compile("", self.plugin)
        self.assert_none(ask(self.library), f"is not annulus's part for {self.PART}")

    def test_no_library(self):
        self.plugin.write_text("none", encoding="ascii")
        self.assert_none(ask(self.library), str(self.plugin), "cannot be loaded")

    def test_functions_of_the_plugin(self):
        self.needs_build()
        table = subprocess.run(["nm", "-D", "--defined-only", self.BUILT], check=True, capture_output=True, text=True)
        self.assertEqual([line.split()[-1] for line in table.stdout.splitlines()], [*self.OTHERS, self.ENTRY])

    def test_plugin_beside(self):
        self.needs_build()
        shutil.copy(self.BUILT, self.plugin)
        self.assert_loaded(ask(self.library), self.plugin)

    def test_plugin_in_path(self):
        self.needs_build()
        directory = self.scratch / "elsewhere"
        directory.mkdir()
        shutil.copy(self.BUILT, directory)
        self.assert_loaded(ask(self.library, path=directory), directory / self.BUILT.name)

    def assert_none(self, answers, *words):
        self.assert_refused(answers)
        for word in words:
            for error in self.ERRORS:
                self.assertIn(word, answers[error])
        self.assertEqual(answers["cpu"], 0)
        self.assertIn(f"{self.PART} none", answers["info"])

    def assert_loaded(self, answers, plugin):
        self.assertEqual({path for path in answers["mapped"] if self.BUILT.name in path}, {str(plugin)})
        self.assert_serves(answers)
        self.assertEqual(answers["cpu"], 0)


class CudaPluginTest(PluginCases, ScratchTest):
    BUILT, PART, ENTRY, ERRORS = CUDA_PLUGIN, "CUDA", "annulus_cuda_plugin", ["context_error", "nccl_error"]
    OTHERS = ["annulus_cublas_of_plugin"]  # of the program's bench

    def assert_refused(self, answers):
        self.assertEqual((answers["asked"], answers["count"]), (0, 0))
        self.assertEqual((answers["context"], answers["nccl"]), (UNSUPPORTED, UNSUPPORTED))
        self.assertIn("there is no CUDA device", answers["context_error"])
        self.assertIn("there is no NCCL", answers["nccl_error"])

    def assert_serves(self, answers):
        """Checks the answers with or without a device. An error of the plugin arrives with its own status."""
        self.assertEqual(answers["asked"], 0)
        self.assertRegex(answers["info"], r"CUDA \d+\.\d+ \(")
        if answers["count"] == 0:
            self.assertEqual(answers["context"], UNSUPPORTED)
            self.assertRegex(answers["context_error"], "there is no CUDA device: [^:]+$")
        else:
            self.assertEqual(answers["context"], 0)


class CublasTest(ScratchTest):
    BUILT, PART = CUDA_PLUGIN, "CUDA"

    def test_loaded_cublas_of_any_cuda_is_shared(self):
        self.needs_build()
        for name in "libcublas.so.12", "libcublas.so.13":
            with self.subTest(name):
                cublas = self.scratch / "elsewhere.so"
                self.compile(" ".join(f"void {function}(void) {{}}" for function in CUBLAS), cublas,
                             f"-Wl,-soname,{name}")
                asked = run_python(ASK_CUBLAS, self.BUILT, cublas, searched=SEARCHED)
                self.assertEqual(asked.stdout, "True\n", asked.stderr)


class MpiPluginTest(PluginCases, ScratchTest):
    BUILT, PART, ENTRY, ERRORS = MPI_PLUGIN, "MPI", "annulus_mpi_plugin", ["mpi_error"]

    def assert_refused(self, answers):
        self.assertEqual((answers["mpi"], answers["comm"]), (UNSUPPORTED, 1))
        self.assertIn("there is no MPI: ", answers["mpi_error"])

    def assert_serves(self, answers):
        """Checks the answers while MPI is not initialised, which the plugin notices and the library reports."""
        self.assertEqual((answers["mpi"], answers["comm"]), (ARGUMENT, 1))
        self.assertIn("is not initialised", answers["mpi_error"])
        self.assertRegex(answers["info"], "MPI (?!none)")


class OtherMpiTest(ScratchTest):
    """The plugin in a process that has another MPI library."""

    BUILT, PART = MPI_PLUGIN, "MPI"

    def setUp(self):
        super().setUp()
        self.needs_build()
        shutil.copy(self.BUILT, self.plugin)

    def ask_beside_other(self, answer, *words):
        other = self.scratch / "libothermpi.so"
        self.compile(OTHER_MPI, other, f"-DANSWER={answer}")
        return other, ask(self.library, *words, other)

    def test_other_that_is_met_first(self):
        """In a program that is linked with the other library, the plugin's calls would go to it."""
        for initialised in (0, 1):
            with self.subTest(initialised=initialised):
                other, answers = self.ask_beside_other(initialised, "global")
                self.assertEqual((answers["mpi"], answers["comm"]), (UNSUPPORTED, 1))
                self.assertRegex(answers["mpi_error"],
                                 rf"libannulus-mpi.so.1 is for the MPI of .*libmpi.*it meets that of {other}$")
                self.assertIn("MPI none", answers["info"])

    def test_other_that_runs(self):
        """The other library runs, as if a Python module had loaded it."""
        other, answers = self.ask_beside_other(1)
        self.assertEqual((answers["mpi"], answers["comm"]), (UNSUPPORTED, 1))
        self.assertIn(f"MPI is initialised in {other}, and libannulus-mpi.so.1 uses that of ", answers["mpi_error"])

    def test_other_that_does_not_run(self):
        _, answers = self.ask_beside_other(0)
        self.assertEqual((answers["mpi"], answers["comm"]), (ARGUMENT, 1))
        self.assertIn("is not initialised", answers["mpi_error"])


if __name__ == "__main__":
    tap.main()
