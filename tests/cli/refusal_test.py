# SPDX-License-Identifier: Apache-2.0
"""Bad input: exit code 2, one line on standard error, and no file is made or changed."""

import os
import resource
import struct
import subprocess
import unittest

from namespace import can_mount, in_namespace
from program import PROGRAM, ProgramTest, cuda_device_count, np, run, save
import tap

SEGMENTS = "W:R, a segment length and a dilation, window:LEFT,RIGHT:R or global:COUNT"
LENGTH = "a segment length (0 is the whole sequence), a whole number >= 0"
STEPS = "a number of keys beside the query, or all, a whole number >= 0"
GLOBALS = "a number of global positions, a whole number >= 1"

# A --branch, its part that is wrong, and what the part must be.
BAD_BRANCHES = (
    ("8", "8", SEGMENTS), ("8:1:2", "8:1:2", SEGMENTS), ("", "", SEGMENTS), ("w:r", "w", LENGTH), ("8.5:1", "8.5", LENGTH),
    ("-8:1", "-8", LENGTH), ("9223372036854775808:1", "9223372036854775808", LENGTH),
    ("8:0", "0", "a dilation, a whole number >= 1"),
    ("8:1,colour=red", "colour", "a property: heads, phase, query, order, width, first or queries"),
    ("8:1,causal", "causal", "a property=value"),
    ("8:1,phase=odd", "odd", "a phase rule: block, interleave or fixed:X"),
    ("8:1,phase=fixed:", "", "a residue, a whole number >= 0"),
    ("8:1,phase=fixed:-1", "-1", "a residue, a whole number >= 0"),
    ("8:1,query=all", "all", "a query rule: dilated, residue or every"),
    ("8:1,order=zigzag", "zigzag", "an order: linear or hilbert"),
    ("8:1,heads=1-0", "0", "the last head of the range, a whole number >= 1"),
    ("8:1,heads=0-1-1", "0-1-1", "a head or a range of heads like 0-7"),
    ("window:4", "window:4", "window:LEFT,RIGHT or window:LEFT,RIGHT:R"), ("window:4,2:1:1", "2:1:1", "RIGHT or RIGHT:R"),
    ("window:near,2", "near", STEPS), ("window:-2,2", "-2", STEPS), ("global:0", "0", GLOBALS), ("global:all", "all", GLOBALS),
    ("global:1,first=-1", "-1", "a position, a whole number >= 0"),
    ("global:1,queries=some", "some", "which queries are global: none or all"))

# Options beside a --branch that is right, and what the message says.
BAD_OPTIONS = (
    (["--bogus"], "unknown option --bogus of `annulus attend`"), (["stray"], "unexpected argument stray of"),
    (["--branch", "8:1\n8:1"], "--branch 8:1; 8:1: '8:1; 8:1' is not W:R"),
    (["--branch", "8:1,phase=block,phase=block"], ": 'phase' is given twice"),
    (["--branch", "8:1,query=every,heads=0,query=residue"], ": 'query' is given twice"),
    (["--branch", "8:1,order=hilbert,width=3"], ": width is 3; it must be 0 or divide"),
    (["--branch", "8:1,heads=1-2"], "branch 1 serves heads 1 to 2; there are 2 query heads"),
    (["--preset", "longest"], "--preset longest: must be gigapath or longnet:W,SEGMENT_RATIO,"),
    (["--preset", "nonsense:8,2,2,2"], "--preset nonsense:8,2,2,2: must be gigapath or longnet:W,SEGMENT_RATIO,"),
    (["--preset", "longnet"], "--preset longnet: must be gigapath or longnet:W,SEGMENT_RATIO,"),
    (["--preset", "longnet:8,2,2"], "--preset longnet:8,2,2: must be longnet:W,SEGMENT_RATIO,DILATION_RATIO,COUNT, all >= 1"),
    (["--preset", "longnet:8,2,2,0"], "--preset longnet:8,2,2,0: must be longnet:W,SEGMENT_RATIO,"),
    (["--preset", "longnet:8,1000,2,100"], "--preset longnet:8,1000,2,100: count is 100; "),
    (["--preset", "longnet:1,1,1,2147483647"], "--preset longnet:1,1,1,2147483647: count is 2147483647; it must be from 1"),
    (["--preset", "longnet:8,2,2,2", "--preset", "gigapath"], "--preset gigapath: is a whole model; it must come first"),
    (["--preset", "gigapath", "--preset", "gigapath"], "--preset gigapath: is a whole model; it must come first, and once"),
    (["--preset", "gigapath", "--head-groups"], "--head-groups shares the heads out among branches of --branch alone"),
    (["--branch", "window:4,2", "--head-groups"], "--branch window:4,2: --head-groups shares heads out among segments"),
    (["--branch", "8:1,heads=0", "--head-groups"], "--branch 8:1,heads=0: --head-groups gives each branch its heads"),
    (["--branch", "8:2", "--branch", "8:4", "--head-groups"],
     "--head-groups: 3 branches for 2 heads; each branch must get one at least"),
    (["--padding", "mirror"], "--padding mirror: must be exact or zero-keys\n"),
    (["--key-rule", "twice"], "--key-rule twice: must be each-branch or once\n"),
    (["--exchange", "telegram"], "--exchange telegram: must be auto, ring or gather\n"),
    (["--shards", "criss-cross"], "--shards criss-cross: must be even"),
    (["--engine", "abacus"], "--engine abacus: must be auto, reference, cpu, gemm, fused or mma\n"),
    (["--dtype", "fp8"], "--dtype fp8: must be float64, float32, bfloat16 or float16\n"),
    (["--scale", "inf"], "--scale: scale is inf; "), (["--threads", "100000"], "--threads: threads is 100000; "),
    (["--engine", "gemm"], "this build has no engine gemm for the CPU"),
    *((["--device", device], f"--device {device}: must be cpu, cuda, or cuda:I with a device's number I, counted from 0")
      for device in ("abacus", "cuda0", "cuda:first", "cuda:", "cuda:-1", "cuda:2147483648", "cpu:0")),
    (["--workspace-limit", "512B"], "--workspace-limit 512B: must be a number of bytes without a B"),
    (["--query-start", "1"], "--query-start 1: the 9 rows of --q must then lie within the 9 rows of --k"),
    (["--starts", "0"], "--starts has 1 number; it must have 2 or more, "),
    (["--starts", "0,5,4"], "--starts: number 3 is 4; it must be from 5, the number before it, to 9, "),
    (["--starts=-1,9"], "--starts: number 1 is -1; it must be from 0 to 9, the rows of --k"),
    (["--starts", "0,10", "--ranks", 2], "--starts: number 2 is 10; "),
    (["--starts", "0,nine"], "--starts 0,nine: must be whole numbers with commas between them, or a .npy file"),
    (["--starts", "missing.npy"], "--starts: 'missing.npy': No such file"),
    (["--lengths", "10"], "--lengths: number 1 is 10; it must be from 0 to 9, the rows of the batch entry"),
    (["--lengths=-1"], "--lengths: number 1 is -1; it must be from 0 to 9"),
    (["--lengths", "5,5"], "--lengths has 2 numbers; it must have 1, one for each batch entry"),
    (["--starts", "0,3,9", "--lengths", "3,7"], "--lengths: number 2 is 7; it must be from 0 to 6, the rows "),
    (["--starts", "0,5,9", "--lengths", "5"], "--lengths has 1 number; it must have 2"),
    (["--out", "p.npy"], "--out is given 2 times; it must be given once"),
    (["--scale", 1, "--scale", 1, "--scale", 1], "--scale is given 3 times; it must be given once"),
    (["--branch"], "--branch: its value, W:R[,PROPERTY=VALUE...], is missing"),
    (["--lse"], "--lse: its value, FILE, is missing"),
    (["--dtype"], "--dtype: its value, float64|float32|bfloat16|float16, is missing"))

BAD_FILES = {
    "empty": (b"", "empty"),
    "no .npy": (b"PK\x03\x04" + bytes(100), "not a .npy"),
    "magic only": (b"\x93NUMPY", "truncated"),
    "half a length": (b"\x93NUMPY\x01\x00\x76", "truncated"),
    "half a header": (b"\x93NUMPY\x01\x00\x76\x00{'descr': '<f4', ", "truncated"),
    "version 9": (b"\x93NUMPY\x09\x00\x00\x00\x00\x00", "version 9"),
}


def header(dictionary):
    text = dictionary.encode("latin-1") + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


BAD_HEADERS = {
    "no dictionary": ("[1, 2]", "damaged"),
    "no end": ("{'descr': '<f4'", "damaged"),
    "no shape": ("{'descr': '<f4', 'fortran_order': False}", "damaged"),
    "no dtype": ("{'fortran_order': False, 'shape': (1, 9, 2, 8)}", "damaged"),
    "no order": ("{'descr': '<f4', 'shape': (1, 9, 2, 8)}", "damaged"),
    "open quote": ("{'descr", "damaged"),
    "unknown key": ("{'colour': 'red'}", "damaged"),
    "negative shape": ("{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 9, 2, 8)}", "damaged"),
    "shape beyond 64 bits": ("{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296, 2, 8)}",
                             "too large"),
    "shape beyond 64 bits but for a zero": (
        "{'descr': '<f4', 'fortran_order': False, 'shape': (0, 4611686018427387904, 4611686018427387904, 8)}",
        "too large"),
    "zero after a shape beyond 64 bits": (
        "{'descr': '<f8', 'fortran_order': False, 'shape': (4611686018427387904, 8, 0)}", "too large"),
    "two shapes": ("{'descr': '<f4', 'fortran_order': False, 'shape': (1, 9), 'shape': (2, 8)}", "damaged"),
    "number beyond 64 bits": ("{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}", "damaged"),
    "control characters in the dtype": ("{'descr': 'a\nb\x1b[2J', 'fortran_order': False, 'shape': (1,)}",
                                        "the dtype is 'a?b?[2J'"),
    "text behind the dictionary": (
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 9, 2, 8)} {'descr': '<f8'}", "damaged"),
    "dtype without an end": (f"{{'descr': '{'x' * 9999}', 'fortran_order': False, 'shape': (1,)}}", "xxx...'; it must"),
}


class RefusalTest(ProgramTest):
    def setUp(self):
        super().setUp()
        self.save_inputs((1, 9, 2, 8))
        self.path("o.npy").write_bytes(b"an older result")
        self.before = self.names()

    def assert_untouched(self):
        self.assertEqual(self.names(), self.before)
        self.assertEqual(self.path("o.npy").read_bytes(), b"an older result")

    def check(self, *options, says="", exit_code=2, **how):
        result = run(*self.attend_arguments("--lse", self.path("lse.npy"), *options), **how)
        self.assert_refused(result, exit_code, says)
        self.assert_untouched()

    def test_branches(self):
        for branch, part, wanted in BAD_BRANCHES:
            with self.subTest(branch):
                self.check(*[f"--branch={branch}"] if branch else ["--branch", ""],
                           says=f"--branch {branch}: '{part}' is not {wanted}\n")

    def test_options(self):
        self.check(says="no pattern: give --branch or --preset\n")
        for options, says in BAD_OPTIONS:
            with self.subTest(says):
                self.assert_refused(run(*self.attend_arguments("--branch", "8:1", *options)), says=says)
                self.assert_untouched()

    def test_empty_texts(self):
        """An empty value does not count as an option that was left out."""
        problem = ["--tokens", 64, "--heads", 1, "--head-dim", 8, "--branch", "8:1"]
        for option in ("--starts", "--lengths", "--lse", "--dtype", "--padding", "--key-rule", "--scale", "--engine",
                       "--exchange", "--device", "--threads", "--shards", "--query-start", "--preset"):
            with self.subTest(option):
                self.assert_refused(run(*self.attend_arguments("--branch", "8:1", option, "")), says=option)
                self.assert_untouched()
        for command, options in (("map", ("--out", "--lse", "--picture", "--coordinates", "--heads", "--grid")),
                                 ("plan", ("--svg", "--format")), ("bench", ("--plot", "--sequences", "--repeats"))):
            more = problem if command != "map" else ["--q", self.path("q.npy"), "--k", self.path("k.npy"), "--branch",
                                                     "8:1", "--out", self.path("m.npy")]
            for option in options:
                with self.subTest(option):
                    if option == "--out":
                        more = more[:-2]
                    self.assert_refused(run(command, *more, option, ""), says=option)
                    self.assert_untouched()
        np.save(self.path("none.npy"), np.zeros(0, int))
        self.before = self.names()
        for option in ("--starts", "--lengths"):
            self.check("--branch", "8:1", option, self.path("none.npy"), says="none.npy': the array has no numbers")

    def test_files_of_sequences(self):
        path = self.path("starts.npy")
        beyond = "--starts: number 2 is 10; it must be from 0, the number before it, to 9, the rows of --k"
        for array, says in ((np.array([0, 10]), beyond), (np.array([0, 10], "int32"), beyond),
                            (np.array([0.0, 9.0]), "the dtype is '<f8'; it must be little-endian int64 or int32"),
                            (np.array([0, 9], ">i8"), "the dtype is '>i8'; it must be little-endian int64 or int32"),
                            (np.array([[0, 9]]), "the array has 2 dimensions; it must have 1")):
            with self.subTest(says):
                np.save(path, array)
                self.before = self.names()
                self.check("--branch", "8:1", "--starts", path, says=says)
        np.save(path, np.array([0, 9]))
        path.write_bytes(path.read_bytes()[:-1])
        self.check("--branch", "8:1", "--starts", path, says="promises 16 bytes of numbers, the file holds 15")

    def test_devices_that_are_not_there(self):
        count = cuda_device_count()
        for device in ("cuda", "cuda:0")[:2 * (count == 0)] + (f"cuda:{count}",):
            with self.subTest(device):
                named = device if ":" in device else device + ":0"
                self.check("--branch", "8:1", "--device", device, says=f"--device {named}: ")
                problem = ["--tokens", 64, "--heads", 1, "--head-dim", 8, "--branch", "8:1", "--device", device]
                for command in ("plan", "bench"):
                    self.assert_refused(run(command, *problem), says=f"--device {named}: ")

    def test_workspace_limit_that_cannot_hold_the_call(self):
        self.check("--branch", "8:1", "--workspace-limit", "1", exit_code=1, says="limit")

    def test_missing_files(self):
        for name in "qkv":
            with self.subTest(name):
                self.path(name + ".npy").rename(self.path("elsewhere"))
                result = run(*self.attend_arguments("--branch", "8:1"))
                self.assert_refused(result, says=f"--{name}: ")
                self.assertIn("No such file", result.stderr)
                self.path("elsewhere").rename(self.path(name + ".npy"))
                self.assert_untouched()

    def test_characters_that_a_terminal_obeys(self):
        name = "\x1b[31m\x07\u009b2J\x7f\t"
        for arguments in (["attend", "--q", name, *self.attend_arguments("--branch", "8:1")[3:]],
                          ["info", name], ["plan", "--tokens", name], [*self.attend_arguments("--branch", name)]):
            self.assert_refused(run(*arguments), says="?[31m??2J??")
        self.assert_refused(run("info", "\u00e9\u065b"), says="\u00e9\u065b")
        self.assert_untouched()

    def test_missing_options(self):
        arguments = self.attend_arguments("--branch", "8:1")
        for i in range(1, 9, 2):
            with self.subTest(arguments[i]):
                self.assert_refused(run(*arguments[:i], *arguments[i + 2:]), says=arguments[i])
        self.assert_untouched()
        sizes = ["--tokens", 64, "--heads", 2, "--head-dim", 8]
        for options, says in ((sizes[:2] + sizes[4:], "--heads is required"), (sizes[:4], "--head-dim is required"),
                              (sizes[2:], "--tokens or --sequences")):
            self.assert_refused(run("plan", "--branch", "8:1", *options), says=says)
        self.assert_refused(run("plan", *sizes), says="no pattern")

    def test_no_command(self):
        for arguments, says in (
                ([], "a command is missing; `annulus` has attend, map, plan, bench, info"),
                (["divine"], "unknown command divine of `annulus`; it has attend, map, plan, bench, info"),
                (["--bogus"], "unknown option --bogus of `annulus`; `annulus --help` says what it takes"),
                (["--bogus", "info"], "unknown option --bogus of `annulus`; `annulus --help` says what it takes"),
                (["atend", "--q", "q.npy"], "unknown command atend of `annulus`; did you mean attend?"),
                (["palm"], "unknown command palm of `annulus`; it has"),
                (["paln"], "unknown command paln of `annulus`; did you mean plan?"),
                (["--verison"], "unknown option --verison of `annulus`; did you mean --version?")):
            with self.subTest(arguments):
                self.assert_refused(run(*arguments), says=says)

    def test_words_that_a_command_does_not_know(self):
        """Unknown options are reported before missing ones, since a misspelt option is missing, too."""
        files = self.attend_arguments("--branch", "8:1")
        none = "`annulus {} --help` says what it takes"
        for arguments, what, hint in (
                (["attend", "--bogus"], "unknown option --bogus", none), ([*files, "stray"], "unexpected argument stray", none),
                ([*files, "--brnch", "8:1"], "unknown option --brnch", "did you mean --branch?"),
                (["attend", "--qq", "q.npy"], "unknown option --qq", "did you mean --q?"),
                (["attend", "-q", "q.npy"], "unknown option -q", "did you mean --q?"),
                (["attend", "--x", "q.npy"], "unknown option --x", none),
                (["bench", "--ranks", 2, "--fast"], "unknown option --fast", none),
                (["info", "plan"], "unexpected argument plan", none),
                (["plan", "--workspace", 5], "unknown option --workspace", "did you mean --workspace-limit?"),
                (["plan", "--token=5"], "unknown option --token", "did you mean --tokens?")):
            with self.subTest(what):
                self.assert_refused(run(*arguments),
                                    says=f"{what} of `annulus {arguments[0]}`; {hint.format(arguments[0])}\n")
        self.assert_untouched()

    def test_numbers_that_are_none(self):
        problem = {"--tokens": 64, "--heads": 1, "--head-dim": 8, "--branch": "8:1"}
        whole, real = "must be a whole number from {} to {}, also with k, M", "must be a decimal number"
        most, most_tokens = 2 ** 31 - 1, 2 ** 63 - 1
        for command, option, values, says in (
                ("plan", "--tokens", ("1e19", "-5", "1e-6", "e6", "1Me3", "1Bi", "1KB", "5X", "5kM", "5i", "", " 1", "M", "1m",
                                      "1.5M", "8.0", "0x10", "one", "99999999999999999999", "9223372036854776k",
                                      "9007199254740992Ki"), whole.format(1, most_tokens)),
                ("plan", "--heads", ("0", "3G", "99999999999"), whole.format(1, most)),
                ("plan", "--kv-heads", ("-4", "3G"), whole.format(0, most)),
                ("plan", "--head-dim", ("0", "3G"), whole.format(1, most)),
                ("plan", "--batch", ("0", "x"), whole.format(1, most_tokens)),
                ("plan", "--ranks", ("0", "-1", "4097", "two"), whole.format(1, 4096)),
                ("bench", "--ranks", ("0", "4097", "x"), whole.format(1, 4096)),
                ("bench", "--repeats", ("0", "x"), whole.format(1, most)),
                ("plan", "--threads", ("-1", "many"), whole.format(0, most)),
                ("plan", "--workspace-limit", ("-1", "", "some", "8388608Ti"), whole.format(0, most_tokens)),
                ("plan", "--scale", ("big", "1e999"), real), ("bench", "--timeout", ("soon",), real)):
            for value in values:
                with self.subTest(option=option, value=value):
                    words = [part for name, given in {**problem, option: value}.items() for part in (name, given)]
                    self.assert_refused(run(command, *words), says=f"{option} {value or repr('')}: {says}")
        for value in ("x", "-1"):
            self.check("--branch", "8:1", "--query-start", value, says=f"--query-start {value}: must be a whole number from 0")
        self.check("--branch", "8:1", "--ranks", 0, says="--ranks 0: " + whole.format(1, 4096))

    def test_problems_that_cannot_be(self):
        problem = {"--tokens": 64, "--heads": 2, "--head-dim": 8, "--branch": "8:1"}
        for option, value, says in (("--kv-heads", 3, "key/value heads G is 3; "), ("--tokens", 2 ** 62, "length"),
                                    ("--head-dim", 12, "head dimension D is 12; "), ("--head-dim", 264, "D is 264; "),
                                    ("--batch", 2 ** 61, "batch")):
            with self.subTest(option=option, value=value):
                words = [part for pair in ({**problem, option: value}).items() for part in pair]
                self.assert_refused(run("plan", *words), says=says)

    def test_directory_and_pipe_as_input(self):
        os.mkfifo(self.path("pipe"))
        for path in (self.directory, self.path("pipe")):
            arguments = self.attend_arguments("--branch", "8:1")
            arguments[arguments.index("--v") + 1] = path
            self.assert_refused(run(*arguments, timeout=60), says="no regular file")
        self.before = sorted([*self.before, "pipe"])
        self.assert_untouched()

    def test_damaged_files(self):
        cases = dict(BAD_FILES)
        cases.update((name, (header(text) + bytes(10000), says)) for name, (text, says) in BAD_HEADERS.items())
        for name, (contents, says) in cases.items():
            with self.subTest(name):
                self.path("k.npy").write_bytes(contents)
                self.check("--branch", "8:1", says=says)

    def test_truncated_file(self):
        whole = self.path("v.npy").read_bytes()
        for missing in (1, 4, 500, 9 * 2 * 8 * 4):
            self.path("v.npy").write_bytes(whole[:-missing])
            self.check("--branch", "8:1", says="truncated")

    def test_bytes_after_the_array(self):
        whole = self.path("v.npy").read_bytes()
        for more in (1, 4, 9 * 2 * 8 * 4 + 128):
            self.path("v.npy").write_bytes(whole + bytes(more))
            self.check("--branch", "8:1", says=f" {more} byte")

    def test_heads_beyond_32_bits(self):
        """Makes a file with a hole instead of its numbers."""
        for heads, dim in ((2 ** 32 + 2, 8), (2, 2 ** 32 + 8)):
            for name in "qkv":
                text = f"{{'descr': '<f2', 'fortran_order': False, 'shape': (1, 1, {heads}, {dim})}}"
                self.path(name + ".npy").write_bytes(header(text.ljust(117)))  # the numbers begin at byte 128
                with open(self.path(name + ".npy"), "ab") as file:
                    try:
                        file.truncate(file.tell() + 2 * heads * dim)
                    except OSError as error:
                        self.skipTest(f"needs files of 64 GiB: {error}")
            self.check("--branch", "8:1", says=str(max(heads, dim)))

    def test_minus_is_no_standard_stream(self):
        arguments = self.attend_arguments("--lse", self.path("lse.npy"), "--branch", "8:1")
        for option in ("--q", "--k", "--v", "--out", "--lse"):
            with self.subTest(option):
                changed = list(arguments)
                changed[changed.index(option) + 1] = "-"
                self.assert_refused(run(*changed, cwd=self.directory, stdin=subprocess.DEVNULL), says=f"{option}: ")
                self.assertIn("./-", run(*changed, cwd=self.directory).stderr)
                self.assert_untouched()
        self.path("q.npy").rename(self.path("-"))
        arguments[arguments.index("--q") + 1] = "./-"
        result = run(*arguments, cwd=self.directory)
        self.assertEqual((result.returncode, result.stderr), (0, ""))

    def test_other_dtypes(self):
        for dtype in (">f4", "<i4", "<c8", "|b1", "|V4", "|S2", "<U1", [("x", "<f4")]):
            with self.subTest(dtype):
                np.save(self.path("q.npy"), np.zeros((1, 9, 2, 8), dtype))
                self.check("--branch", "8:1", says="dtype")

    def test_fortran_order(self):
        np.save(self.path("q.npy"), np.asfortranarray(np.zeros((1, 9, 2, 8), np.float32)))
        self.check("--branch", "8:1", says="Fortran")

    def test_shapes_that_do_not_fit(self):
        good = (1, 9, 2, 8)
        cases = {
            "2 dimensions": {"q": (9, 8), "k": (9, 8), "v": (9, 8)},
            "5 dimensions": {"q": (1, 1, 9, 2, 8)},
            "ranks differ": {"k": (9, 2, 8)},
            "batch differs": {"k": (2, 9, 2, 8), "v": (2, 9, 2, 8)},
            "fewer keys than queries": {"k": (1, 8, 2, 8), "v": (1, 8, 2, 8)},
            "more keys than queries": {"k": (1, 10, 2, 8), "v": (1, 10, 2, 8)},
            "v shorter than k": {"v": (1, 8, 2, 8)},
            "heads of v": {"v": (1, 9, 1, 8)},
            "key heads that do not divide": {"q": (1, 9, 3, 8)},
            "more key heads": {"k": (1, 9, 4, 8), "v": (1, 9, 4, 8)},
            "head dimensions differ": {"q": (1, 9, 2, 16)},
            "head dimension of v": {"v": (1, 9, 2, 16)},
            "head dimension 12": {"q": (1, 9, 2, 12), "k": (1, 9, 2, 12), "v": (1, 9, 2, 12)},
            "head dimension 264": {"q": (1, 9, 2, 264), "k": (1, 9, 2, 264), "v": (1, 9, 2, 264)},
            "no tokens": {"q": (1, 0, 2, 8), "k": (1, 0, 2, 8), "v": (1, 0, 2, 8)},
            "no queries": {"q": (1, 0, 2, 8)},
            "no batch": {"q": (0, 9, 2, 8), "k": (0, 9, 2, 8), "v": (0, 9, 2, 8)},
            "no heads": {"q": (1, 9, 0, 8), "k": (1, 9, 0, 8), "v": (1, 9, 0, 8)},
            "no key heads": {"k": (1, 9, 0, 8), "v": (1, 9, 0, 8)},
            "no head dimension": {"q": (1, 9, 2, 0), "k": (1, 9, 2, 0), "v": (1, 9, 2, 0)},
        }
        for name, shapes in cases.items():
            with self.subTest(name):
                for file in "qkv":
                    save(self.path(file + ".npy"), np.zeros(shapes.get(file, good), np.float32))
                self.check("--branch", "8:1")

    def test_dtypes_that_differ(self):
        save(self.path("k.npy"), np.zeros((1, 9, 2, 8)), "float64")
        self.check("--branch", "8:1", says="--dtype")

    def test_outputs_that_cannot_be(self):
        self.path("directory").mkdir()
        self.before = self.names()
        for path in (self.path("missing/o.npy"), self.path("q.npy/o.npy"), self.path("directory"), "/dev/null", "",
                     self.path("x" * 300)):
            with self.subTest(path):
                arguments = self.attend_arguments("--branch", "8:1")
                arguments[arguments.index("--out") + 1] = path
                self.assert_refused(run(*arguments), says="--out")
                self.assert_untouched()
        self.assertEqual(list(self.path("directory").iterdir()), [])

    def test_outputs_that_are_other_files_of_the_call(self):
        """Finds equal files by their names, by links and by other paths. The command has no other error."""
        np.save(self.path("starts.npy"), np.array([0, 9]))
        np.save(self.path("tiles.npy"), np.arange(18).reshape(9, 2))
        np.save(self.path("lse.npy"), np.zeros((1, 2, 9), np.float32))
        self.path("link.npy").symlink_to("k.npy")
        self.path("linked").symlink_to(self.directory)
        os.link(self.path("v.npy"), self.path("hard.npy"))
        contents = {path: path.read_bytes() for path in self.directory.iterdir() if path.is_file()}
        q, k, v, out = (("--" + name, name[0] + ".npy") for name in ("q", "k", "v", "out"))
        branch, mass = ("--branch", "8:1"), ("--out", "mass.npy")
        for command, options, says in (
                ("attend", (q, k, v, ("--out", "q.npy")), "--out: 'q.npy' is the file of --q"),
                ("attend", (q, k, v, ("--out", "link.npy")), "--out: 'link.npy' is the file of --k"),
                ("attend", (q, k, v, ("--out", "linked/v.npy")), "--out: 'linked/v.npy' is the file of --v"),
                ("attend", (q, k, v, ("--out", "hard.npy")), "--out: 'hard.npy' is the file of --v"),
                ("attend", (q, k, v, out, ("--lse", "link.npy")), "--lse: 'link.npy' is the file of --k"),
                ("attend", (q, k, v, out, ("--lse", "./o.npy")), "--lse: './o.npy' is the file of --out"),
                ("attend", (q, k, v, ("--out", "new.npy"), ("--lse", "linked/new.npy")),
                 "--lse: 'linked/new.npy' is the file of --out"),
                ("attend", (q, k, v, ("--out", "starts.npy"), ("--starts", "./starts.npy")), "is the file of --starts"),
                ("map", (q, k, ("--out", "q.npy")), "--out: 'q.npy' is the file of --q"),
                ("map", (q, k, ("--lse", "lse.npy"), ("--out", "./lse.npy")), "--out: './lse.npy' is the file of --lse"),
                ("map", (q, k, mass, ("--coordinates", "x.svg"), ("--picture", "x.svg"), ("--grid", 3)),
                 "--picture: 'x.svg' is the file of --coordinates"),
                ("map", (q, k, ("--out", "x.svg"), ("--picture", "x.svg"), ("--grid", 3)),
                 "--picture: 'x.svg' is the file of --out"),
                ("map", (q, k, ("--out", "tiles.npy"), ("--coordinates", "./tiles.npy")), "is the file of --coordinates")):
            with self.subTest(says):
                words = [word for option in (*options, branch) for word in option]
                result = run(command, *words, cwd=self.directory)
                if "made without cairo" not in result.stderr:
                    self.assert_refused(result, says=says + "; it must be another one")
                self.assertEqual(contents, {path: path.read_bytes() for path in contents})
                self.assertFalse({"new.npy", "mass.npy", "x.svg"} & set(self.names()))

    def test_second_output_that_cannot_be(self):
        arguments = self.attend_arguments("--branch", "8:1", "--lse", self.path("missing/lse.npy"))
        self.assert_refused(run(*arguments), says="--lse")
        self.assert_untouched()

    @unittest.skipIf(os.geteuid() == 0, "root may write everywhere")
    def test_directory_without_permission(self):
        self.directory.chmod(0o500)
        self.addCleanup(self.directory.chmod, 0o700)
        self.check("--branch", "8:1", says="Permission denied")

    @unittest.skipUnless(can_mount(), "needs namespaces of its own")
    def test_read_only_file_system(self):
        """Reads inputs from a read-only file system. Outputs there are refused, even for root."""
        read_only = in_namespace(f"mount --bind '{self.directory}' '{self.directory}' && "
                                 f"mount -o remount,bind,ro '{self.directory}'")
        for arguments, option in ((self.attend_arguments("--branch", "8:1"), "--out"),
                                  (["plan", "--tokens", 64, "--heads", 1, "--head-dim", 8, "--branch", "8:1", "--svg",
                                    self.path("p.svg")], "--svg")):
            with self.subTest(option):
                result = subprocess.run([*read_only, PROGRAM, *map(str, arguments)], check=False, text=True,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
                self.assert_refused(result, result.returncode, says=f"{option}: ")
                self.assertIn("Read-only file system", result.stderr)
                self.assert_untouched()

    def test_no_room_for_the_output(self):
        def limit_file_size():
            resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500))

        self.check("--branch", "8:1", exit_code=1, says="--out", preexec_fn=limit_file_size)

    @unittest.skipUnless(can_mount(), "needs namespaces of its own")
    def test_full_disk(self):
        """The space for the outputs is allocated before anything is computed: here all of a file system of 64 KiB."""
        disk = self.path("disk")
        disk.mkdir()
        self.before = sorted([*self.before, "disk"])
        mounted = in_namespace(f"mount -t tmpfs -o size=64k none '{disk}'")
        then_list = ["sh", "-c", f"\"$@\"; code=$?; ls -A '{disk}'; exit $code", "sh"]
        for name in "qkv":
            save(self.path(name + ".npy"), np.zeros((1, 1 << 18, 1, 8), np.float32))
        for option, out, lse in (("--out", disk / "o.npy", self.path("lse.npy")),
                                 ("--lse", self.path("o.npy"), disk / "lse.npy")):
            with self.subTest(option):
                arguments = self.attend_arguments("--branch", "0:1", "--engine", "reference", "--lse", lse)
                arguments[arguments.index("--out") + 1] = out
                result = subprocess.run([*mounted, *then_list, PROGRAM, *map(str, arguments)], check=False, text=True,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
                self.assert_refused(result, 1, says=f"{option}: ")
                self.assertIn("No space left on device", result.stderr)
                self.assert_untouched()

    def test_standard_output_that_cannot_be_written(self):
        with open("/dev/full", "w", encoding="ascii") as full:
            result = run("info", stdout=full)
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stderr, r"\Aannulus: [^\n]+\n\Z")


if __name__ == "__main__":
    tap.main()
