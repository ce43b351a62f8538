# SPDX-License-Identifier: Apache-2.0
"""The CUDA plugin: what the library says of CUDA with it, without it, where a library that it needs is missing, and with
files of that name that are something else. Each case has a directory of its own with a copy of the library.

ANNULUS_LIBRARY is the library, ANNULUS_PLUGIN the plugin's file, which is not there in a build without CUDA,
ANNULUS_CC the C compiler's command, one word a line.
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
PLUGIN = pathlib.Path(os.environ["ANNULUS_PLUGIN"])
CC = os.environ["ANNULUS_CC"].splitlines()
UNSUPPORTED = 2

# Without the directory where both were built, which Meson adds.
SEARCHED = [path for path in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
            if path and pathlib.Path(path).resolve() != LIBRARY.parent.resolve()]

# Run in a process of its own: the answers of the library whose path it is given.
ASK = """
import ctypes, json, sys
library = ctypes.CDLL(sys.argv[1])
for text in library.annulus_last_error, library.annulus_build_info, library.annulus_version_string:
    text.restype = ctypes.c_char_p
count, handle, nccl_id = ctypes.c_int32(-1), ctypes.c_void_p(), ctypes.create_string_buffer(128)
answers = {}
answers["asked"] = library.annulus_device_count(2, ctypes.byref(count))
answers["count"] = count.value
answers["context"] = library.annulus_context_create(ctypes.byref(handle), 2, 0)
answers["context_error"] = library.annulus_last_error().decode()
answers["nccl"] = library.annulus_nccl_id_create(nccl_id)
answers["nccl_error"] = library.annulus_last_error().decode()
answers["cpu"] = library.annulus_context_create(ctypes.byref(handle), 1, 0)
answers["info"] = library.annulus_build_info().decode()
answers["version"] = library.annulus_version_string().decode()
answers["mapped"] = [line.split()[-1] for line in open("/proc/self/maps") if "annulus-cuda" in line]
print(json.dumps(answers))
"""


def run_python(program, *arguments, searched):
    env = {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(map(str, searched))}
    return subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, env=env)


def ask(library, path=None):
    """`path` is searched for libraries besides."""
    asked = run_python(ASK, library, searched=[path, *SEARCHED] if path else SEARCHED)
    asked.check_returncode()
    return json.loads(asked.stdout)


def dynamic(library, tag):
    text = subprocess.run(["readelf", "-d", library], check=True, capture_output=True, text=True).stdout
    return re.findall(rf"\({tag}\).*\[(.*)\]", text)


def is_installed():
    """Whether the loader finds a plugin by itself."""
    found = run_python("import ctypes, sys; ctypes.CDLL(sys.argv[1])", PLUGIN.name, searched=SEARCHED)
    return f"{PLUGIN.name}: cannot open shared object file" not in found.stderr


class PluginTest(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.scratch = pathlib.Path(scratch.name)
        self.library = self.scratch / "libannulus.so.0"
        shutil.copy(LIBRARY, self.library)
        self.plugin = self.scratch / PLUGIN.name

    def compile(self, source, output, *options):
        subprocess.run([*CC, "-shared", "-fPIC", "-x", "c", "-", "-x", "none", "-o", output, *options],
                       input=source, text=True, check=True)

    def assert_no_cuda(self, answers, *words):
        self.assertEqual((answers["asked"], answers["count"]), (0, 0))
        self.assertEqual((answers["context"], answers["nccl"]), (UNSUPPORTED, UNSUPPORTED))
        self.assertIn("there is no CUDA device", answers["context_error"])
        self.assertIn("there is no NCCL", answers["nccl_error"])
        for word in words:
            self.assertIn(word, answers["context_error"])
            self.assertIn(word, answers["nccl_error"])
        self.assertEqual(answers["cpu"], 0)
        self.assertIn("CUDA none", answers["info"])

    def test_library_needs_no_cuda(self):
        self.assertEqual([name for name in dynamic(LIBRARY, "NEEDED") if re.search("cuda|cublas|nccl", name)], [])

    def test_no_plugin(self):
        if is_installed():
            self.skipTest("a plugin is installed")
        answers = ask(self.library)
        self.assert_no_cuda(answers, PLUGIN.name, "cannot be loaded", "No such file")
        self.assertEqual("this annulus was built without CUDA" in answers["context_error"], not PLUGIN.exists())

    def test_missing_library(self):
        self.compile("", self.scratch / "libannulus_test_blas.so", "-Wl,-soname,libannulus_test_blas.so")
        self.compile("", self.plugin, "-Wl,--no-as-needed", self.scratch / "libannulus_test_blas.so")
        (self.scratch / "libannulus_test_blas.so").unlink()
        self.assert_no_cuda(ask(self.library), str(self.plugin), "libannulus_test_blas.so: cannot open")

    def test_other_version(self):
        self.compile('static const char *const plugin[] = {"9.8.7"};\n'
                     "const void *annulus_cuda_plugin(void) { return plugin; }\n", self.plugin)
        answers = ask(self.library)
        self.assert_no_cuda(answers, f"annulus 9.8.7, and this is annulus {answers['version']}")

    def test_other_library(self):
        self.compile("", self.plugin)
        self.assert_no_cuda(ask(self.library), "is not annulus's part for CUDA")

    def test_no_library(self):
        self.plugin.write_text("none", encoding="ascii")
        self.assert_no_cuda(ask(self.library), str(self.plugin), "cannot be loaded")

    @unittest.skipUnless(PLUGIN.exists(), "a build without CUDA")
    def test_plugin_has_one_function(self):
        table = subprocess.run(["nm", "-D", "--defined-only", PLUGIN], check=True, capture_output=True, text=True)
        self.assertEqual([line.split()[-1] for line in table.stdout.splitlines()], ["annulus_cuda_plugin"])

    @unittest.skipUnless(PLUGIN.exists(), "a build without CUDA")
    def test_plugin_beside(self):
        shutil.copy(PLUGIN, self.plugin)
        self.assert_loaded(ask(self.library), self.plugin)

    @unittest.skipUnless(PLUGIN.exists(), "a build without CUDA")
    def test_plugin_in_path(self):
        directory = self.scratch / "elsewhere"
        directory.mkdir()
        shutil.copy(PLUGIN, directory)
        self.assert_loaded(ask(self.library, directory), directory / PLUGIN.name)

    def assert_loaded(self, answers, plugin):
        """With a device or without: what the plugin throws arrives as the status that it is."""
        self.assertEqual(set(answers["mapped"]), {str(plugin)})
        self.assertEqual(answers["asked"], 0)
        self.assertRegex(answers["info"], r"CUDA \d+\.\d+ \(")
        if answers["count"] == 0:
            self.assertEqual(answers["context"], UNSUPPORTED)
            self.assertRegex(answers["context_error"], "there is no CUDA device: [^:]+$")
        else:
            self.assertEqual(answers["context"], 0)
        self.assertEqual(answers["cpu"], 0)


if __name__ == "__main__":
    tap.main()
