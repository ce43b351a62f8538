# SPDX-License-Identifier: Apache-2.0
"""The program where the system refuses a mapping of a file or a thread: the first, the second, …, and all."""

import itertools
import os

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


if __name__ == "__main__":
    tap.main()
