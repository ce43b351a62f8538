# SPDX-License-Identifier: Apache-2.0
"""Runs the program while the system refuses to map a file or start a thread: the first, the second, …, or all. Also
runs it with little address space, little stack or few files."""

import itertools
import os
import resource

import tap
from program import ProgramTest, run

FAILING = os.environ["ANNULUS_FAILING"]  # see failing.h


class FailingSystemTest(ProgramTest):
    def setUp(self):
        super().setUp()
        self.save_inputs((2, 331, 2, 16))
        self.arguments = self.attend_arguments("--branch", "64:1", "--lse", self.path("lse.npy"), "--threads", "4")

    def attend_failing(self, **failing):
        return run(*self.arguments, env={**os.environ, "LD_PRELOAD": FAILING, **failing}, timeout=60)

    def outputs(self):
        return [self.path(name).read_bytes() for name in ("o.npy", "lse.npy")]

    def test_mappings(self):
        inputs = self.names()
        for first in itertools.count():
            result = self.attend_failing(FAIL_MAPPINGS=f"{first} 1")
            if result.returncode == 0:
                break
            self.assert_refused(result, exit_code=1, says="Cannot allocate memory")
            self.assertEqual(self.names(), inputs)
        self.assertGreaterEqual(first, 5)  # one for each file

    def test_threads(self):
        self.assertEqual(run(*self.arguments).returncode, 0)
        wanted = self.outputs()
        for failing in ("0", "1", "0 1", "1 1"):
            result = self.attend_failing(FAIL_THREADS=failing)
            self.assertEqual((result.returncode, result.stderr), (0, ""))
            self.assertEqual(self.outputs(), wanted)

    def test_a_thread_for_a_rank(self):
        inputs = self.names()
        for first in range(3):
            result = run(*self.arguments, "--ranks", "3", timeout=60,
                         env={**os.environ, "LD_PRELOAD": FAILING, "FAIL_THREADS": f"{first} 1"})
            self.assert_refused(result, exit_code=1, says=f"--ranks: cannot start a thread for rank {first}: ")
            self.assertEqual(self.names(), inputs)


class LimitedTest(ProgramTest):
    def setUp(self):
        super().setUp()
        self.save_inputs((2, 331, 2, 16))
        self.inputs = self.names()
        self.arguments = self.attend_arguments("--branch", "64:1", "--branch", "0:8,order=hilbert", "--lse",
                                               self.path("lse.npy"), "--threads", "4")

    def outputs(self):
        return [self.path(name).read_bytes() for name in ("o.npy", "lse.npy")]

    def attend_within(self, limit, value, *options):
        """Runs the program. Its outputs must be those of a run without a limit, or must not exist."""
        for name in ("o.npy", "lse.npy"):
            self.path(name).unlink(missing_ok=True)
        result = run(*self.arguments, *options, timeout=60,
                     preexec_fn=lambda: resource.setrlimit(limit, (value, value)))
        if result.returncode == 0:
            self.assertEqual((result.stderr, self.outputs()), ("", self.wanted[options]))
        elif result.returncode != 127:  # the loader's, which found no room for the libraries
            self.assertIn(result.returncode, (1, 2))
            self.assert_refused(result, result.returncode)
            self.assertEqual(self.names(), self.inputs)
        return result

    def compute_wanted(self, *ways):
        self.wanted = {}
        for options in ways:
            self.assertEqual(run(*self.arguments, *options).returncode, 0)
            self.wanted[options] = self.outputs()

    def test_small_stacks(self):
        """The limit applies to the program's threads, too."""
        ways = [(), ("--engine", "reference"), ("--ranks", "3"), ("--dtype", "bfloat16")]
        self.compute_wanted(*ways)
        for options in ways:
            self.assertEqual(self.attend_within(resource.RLIMIT_STACK, 64 << 10, *options).returncode, 0, options)

    def test_little_address_space(self):
        """The tensors are larger than a step of the limit, since each library that the program loads takes a part of
        the limit."""
        self.save_inputs((2, 4099, 2, 16))
        ways = [(), ("--ranks", "3")]
        self.compute_wanted(*ways)
        for options in ways:
            codes = [self.attend_within(resource.RLIMIT_AS, mebibytes << 20, *options).returncode
                     for mebibytes in (*range(8, 24), 32, 64, 128, 256, 512, 1024)]
            self.assertEqual(sorted(set(codes), key=codes.index)[-2:], [1, 0], codes)

    def test_few_files(self):
        self.compute_wanted(())
        results = [self.attend_within(resource.RLIMIT_NOFILE, files) for files in range(4, 16)]
        refused = [result for result in results if result.returncode]
        self.assertEqual([result.returncode for result in results[len(refused):]], [0] * (12 - len(refused)))
        for result, file in zip(refused[-4:], ("k.npy", "v.npy", "o.npy", "lse.npy")):
            self.assertIn(file, result.stderr)
            self.assertIn("Too many open files", result.stderr)


if __name__ == "__main__":
    tap.main()
