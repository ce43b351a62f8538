# SPDX-License-Identifier: Apache-2.0
"""Jobs that end early leave no file; jobs that are watched on a terminal show a bar."""

import os
import pty
import signal
import subprocess
import time

from program import PROGRAM, ProgramTest, np, run, save
import tap


class LongJobTest(ProgramTest):
    """A job that the reference engine does not end before the test does."""

    def setUp(self):
        super().setUp()
        for name in "qkv":
            save(self.path(name + ".npy"), np.zeros((1, 1 << 20, 1, 8), np.float32))
        self.path("o.npy").write_bytes(b"an older result")
        self.before = self.names()

    def start(self, **how):
        """The job, once it has begun with both outputs."""
        arguments = self.attend_arguments(
            "--lse", self.path("lse.npy"), "--branch", "0:1", "--engine", "reference")
        job = subprocess.Popen([PROGRAM, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **how)
        self.addCleanup(job.stdout.close)
        self.addCleanup(job.stderr.close)
        self.addCleanup(job.wait)
        self.addCleanup(job.kill)
        while len(self.names()) < len(self.before) + 2:
            self.assertIsNone(job.poll())
            time.sleep(0.01)
        return job

    def assert_nothing_left(self):
        self.assertEqual(self.names(), self.before)
        self.assertEqual(self.path("o.npy").read_bytes(), b"an older result")

    def test_signals(self):
        def accept_signals():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)

        for number, exit_code in ((signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)):
            with self.subTest(number):
                job = self.start(preexec_fn=accept_signals)
                job.send_signal(number)
                self.assertEqual(job.communicate(timeout=60), ("", ""))
                self.assertEqual(job.returncode, exit_code)
                self.assert_nothing_left()

    def test_ignored_signal_stays_ignored(self):
        job = self.start(preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
        job.send_signal(signal.SIGHUP)
        job.send_signal(signal.SIGTERM)
        job.communicate(timeout=60)
        self.assertEqual(job.returncode, 143)
        self.assert_nothing_left()

    def test_input_that_shrinks_meanwhile(self):
        job = self.start()
        for name in "kv":
            os.truncate(self.path(name + ".npy"), 4096)
        _, errors = job.communicate(timeout=60)
        self.assertEqual(job.returncode, 1)
        self.assertRegex(errors, r"\Aannulus: [^\n]+\n\Z")
        self.assert_nothing_left()


class ProgressTest(ProgramTest):
    """A job of more than a second, in several pieces, with standard error on a terminal and in a pipe."""

    ARGUMENTS = ("--branch", "0:1", "--threads", "1")

    def setUp(self):
        super().setUp()
        # float64 and D = 8 are slow: 1.4e11 FLOPs take a core several seconds, in four pieces.
        for name in "qkv":
            save(self.path(name + ".npy"), np.zeros((16, 16384, 1, 8), np.float64))

    def test_bar_on_a_terminal_and_none_in_a_pipe(self):
        ours, theirs = pty.openpty()
        with os.fdopen(ours, "rb", buffering=0) as terminal:
            job = subprocess.Popen([PROGRAM, *self.attend_arguments(*self.ARGUMENTS)], stderr=theirs)
            os.close(theirs)
            shown = b""
            try:
                while part := terminal.read(4096):
                    shown += part
            except OSError:  # how a terminal says that its other end is closed
                pass
            self.assertEqual(job.wait(), 0)
        self.assertRegex(shown, rb"\r\[#+\.*\] +\d+% \d+:\d\d left")
        self.assertTrue(shown.endswith(b"\r\x1b[K"), shown)
        self.assertNotIn(b"\n", shown)

        result = run(*self.attend_arguments(*self.ARGUMENTS))
        self.assertEqual((result.returncode, result.stdout, result.stderr), (0, "", ""))

    def test_no_bar_for_a_short_job(self):
        self.save_inputs((1, 16, 1, 8))
        ours, theirs = pty.openpty()
        with os.fdopen(ours, "rb", buffering=0) as terminal:
            result = subprocess.run([PROGRAM, *self.attend_arguments(*self.ARGUMENTS)], stderr=theirs, check=False)
            os.close(theirs)
            self.assertEqual(result.returncode, 0)
            self.assertRaises(OSError, terminal.read, 1)


if __name__ == "__main__":
    tap.main()
