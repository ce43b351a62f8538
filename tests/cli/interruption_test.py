# SPDX-License-Identifier: Apache-2.0
"""Jobs that end early leave no file. Jobs on a terminal show a bar."""

import os
import pathlib
import pty
import re
import resource
import signal
import subprocess
import time
import unittest

from namespace import can_mount, in_namespace
from program import PROGRAM, SANITIZED, ProgramTest, has_mpi, mpirun_command, np, run, save
import tap

REFERENCE = ("--branch", "0:1", "--engine", "reference")


def no_core():
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)  # a shell's background jobs ignore it


class JobTest(ProgramTest):
    """Jobs of 2^20 tokens, which no engine finishes before the test ends them, beside an older result."""

    TOKENS = 1 << 20

    def setUp(self):
        super().setUp()
        for name in "qkv":
            save(self.path(name + ".npy"), np.zeros((1, self.TOKENS, 1, 8), np.float32))
        self.path("o.npy").write_bytes(b"an older result")
        self.before = self.names()

    def start(self, *options, command=(PROGRAM,), ready, **how):
        """Starts a job and returns it when the files that it has mapped and opened are `ready`."""
        arguments = self.attend_arguments("--lse", self.path("lse.npy"), *options)
        job = subprocess.Popen([*map(str, (*command, *arguments))], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True, **how)
        self.addCleanup(job.stdout.close)
        self.addCleanup(job.stderr.close)
        self.addCleanup(job.wait)
        self.addCleanup(job.kill)
        while not ready(job.pid):
            self.assertIsNone(job.poll(), "the job ended before the test began")
            time.sleep(0.001)
        return job

    def start_computing(self, *options, **how):
        """Starts a job and returns it when it has begun both outputs."""
        return self.start(*options, ready=lambda pid: len(self.mapped(pid) - set("qkv")) == 2, **how)

    def mapped(self, pid):
        """Returns the files of the directory that a process has mapped: inputs by their letters, outputs by other
        names."""
        maps = pathlib.Path(f"/proc/{pid}/maps").read_text(encoding="utf-8")
        return {name.removesuffix(".npy") for name in re.findall(re.escape(str(self.directory)) + "/(.*)", maps)}

    def assert_nothing_left(self):
        self.assertEqual(self.names(), self.before)
        self.assertEqual(self.path("o.npy").read_bytes(), b"an older result")

    def assert_ends(self, job, exit_code, says):
        output, errors = job.communicate(timeout=60)
        self.assertEqual((job.returncode, output), (exit_code, ""), errors)
        self.assertRegex(errors, r"\Aannulus: [^\n]+\n\Z")
        for part in says:
            self.assertIn(part, errors)
        self.assert_nothing_left()


class SignalTest(JobTest):

    def test_signals(self):
        def accept_signals():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)

        for number, exit_code in ((signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)):
            with self.subTest(number):
                job = self.start_computing(*REFERENCE, preexec_fn=accept_signals)
                job.send_signal(number)
                self.assertEqual(job.communicate(timeout=60), ("", ""))
                self.assertEqual(job.returncode, exit_code)
                self.assert_nothing_left()

    def test_ignored_signal_stays_ignored(self):
        job = self.start_computing(*REFERENCE, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
        job.send_signal(signal.SIGHUP)
        job.send_signal(signal.SIGTERM)
        job.communicate(timeout=60)
        self.assertEqual(job.returncode, 143)
        self.assert_nothing_left()

    def test_crash_and_kill(self):
        for number in (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGQUIT):
            with self.subTest(number):
                job = self.start_computing(*REFERENCE, preexec_fn=no_core)
                job.send_signal(number)
                job.communicate(timeout=60)
                self.assertNotEqual(job.returncode, 0)
                self.assert_nothing_left()


@unittest.skipIf(SANITIZED, "the address sanitizer needs /proc")
@unittest.skipUnless(can_mount(), "needs namespaces of its own")
class NamedFileTest(JobTest):
    """If files without a name cannot get one later, here without /proc, outputs have temporary names."""

    # Without /proc the loader does not find the library beside the program.
    HIDE_PROC = in_namespace("mount -t tmpfs none /proc && export LD_LIBRARY_PATH="
                             f"'{pathlib.Path(os.environ['ANNULUS_LIBRARY']).parent}'")

    def test_signals_and_crashes(self):
        for number, code in ((signal.SIGTERM, 143), (signal.SIGSEGV, -signal.SIGSEGV),
                             (signal.SIGABRT, -signal.SIGABRT), (signal.SIGQUIT, -signal.SIGQUIT)):
            with self.subTest(number):
                job = self.start_computing(*REFERENCE, command=(*self.HIDE_PROC, PROGRAM), preexec_fn=no_core)
                self.assertEqual(len(self.names()), len(self.before) + 2)
                job.send_signal(number)
                job.communicate(timeout=60)
                self.assertEqual(job.returncode, code)
                self.assert_nothing_left()

    def test_input_cut_short(self):
        job = self.start_computing(*REFERENCE, command=(*self.HIDE_PROC, PROGRAM))
        os.truncate(self.path("k.npy"), 0)
        self.assert_ends(job, 2, ("--k: ", "k.npy"))

    def test_result(self):
        save(self.path("v.npy"), np.ones((1, self.TOKENS, 1, 8), np.float32))
        arguments = self.attend_arguments("--branch", "1:1")
        result = subprocess.run([*map(str, (*self.HIDE_PROC, PROGRAM, *arguments))], check=False)
        self.assertEqual(result.returncode, 0)
        self.assertEqual(self.path("o.npy").read_bytes(), self.path("v.npy").read_bytes())
        self.assertEqual(self.names(), self.before)


class ChangedInputTest(JobTest):
    """Inputs that somebody changes while a job uses them."""

    def test_cut_short_while_computing(self):
        for engine, threads, ranks in (("reference", 1, 1), ("cpu", 2, 1), ("cpu", 2, 2)):
            for name in "qkv":
                with self.subTest(engine=engine, ranks=ranks, name=name):
                    whole = self.path(name + ".npy").read_bytes()
                    job = self.start_computing("--branch", "0:1", "--engine", engine, "--threads", threads, "--ranks",
                                               ranks, *["--exchange", "ring"] * (ranks > 1))
                    os.truncate(self.path(name + ".npy"), 0)
                    self.assert_ends(job, 2, (f"--{name}: ", f"{name}.npy"))
                    self.path(name + ".npy").write_bytes(whole)

    def test_cut_short_while_converting(self):
        for name in "qkv":
            save(self.path(name + ".npy"), np.zeros((1 if SANITIZED else 4, self.TOKENS, 2, 8), np.float16))
        # V is converted last, long after it was mapped.
        job = self.start("--branch", "1:1", "--dtype", "bfloat16", ready=lambda pid: "v" in self.mapped(pid))
        os.truncate(self.path("v.npy"), 4096)
        self.assert_ends(job, 2, ("--v: ", "v.npy"))

    def test_changed_without_a_fault(self):
        """The end of a page that was cut reads as zeros. A file that was rewritten reads as its new contents."""
        def cut(path):
            os.truncate(path, path.stat().st_size - 4)

        def write_anew(path):
            path.write_bytes(path.read_bytes())

        for name in "qkv":
            save(self.path(name + ".npy"), np.zeros((1, 2047 if SANITIZED else 8203, 1, 8), np.float32))
        for change in (cut, write_anew):
            with self.subTest(change.__name__):
                whole = self.path("k.npy").read_bytes()
                job = self.start_computing(*REFERENCE)
                job.send_signal(signal.SIGSTOP)
                change(self.path("k.npy"))
                job.send_signal(signal.SIGCONT)
                self.assert_ends(job, 2, ("--k: ", "k.npy", "changed"))
                self.path("k.npy").write_bytes(whole)

    def test_removed_while_computing(self):
        """A job keeps using the file that it opened."""
        shape = (1, 2047 if SANITIZED else 8203, 1, 8)
        for name in "qkv":
            save(self.path(name + ".npy"), self.random.standard_normal(shape), "float32")
        result = run(*self.attend_arguments("--lse", self.path("lse.npy"), *REFERENCE))
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        wanted = self.path("o.npy").read_bytes()
        self.path("lse.npy").unlink()
        job = self.start_computing(*REFERENCE)
        job.send_signal(signal.SIGSTOP)
        for name in "qkv":
            self.path(name + ".npy").unlink()
        job.send_signal(signal.SIGCONT)
        self.assertEqual((*job.communicate(timeout=60), job.returncode), ("", "", 0))
        self.assertEqual(self.path("o.npy").read_bytes(), wanted)

    @unittest.skipUnless(has_mpi(), "needs mpirun and a build with MPI")
    def test_under_mpirun(self):
        def ready(pid):
            ranks = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()
            return len(ranks) == 2 and all(self.mapped(rank) >= set("qkv") for rank in ranks)

        job = self.start("--branch", "0:1", command=mpirun_command(2), ready=ready)
        os.truncate(self.path("k.npy"), 0)
        _, errors = job.communicate(timeout=60)
        self.assertEqual(job.returncode, 2, errors)
        self.assertIn(f"annulus: --k: '{self.path('k.npy')}'", errors)
        self.assert_nothing_left()


@unittest.skipIf(SANITIZED, "takes minutes under sanitizers")
class ProgressTest(ProgramTest):
    """A job of more than a second, in several pieces, with standard error on a terminal and in a pipe."""

    ARGUMENTS = ("--branch", "0:1", "--threads", "1")

    def setUp(self):
        super().setUp()
        # float64 and D = 8 are slow: 1.4e11 FLOPs take a core several seconds, in four pieces.
        for name in "qkv":
            save(self.path(name + ".npy"), np.zeros((16, 16384, 1, 8), np.float64))

    def shown_on_a_terminal(self, exit_code, when_there_is_a_bar=lambda: None, more=(), arguments=None):
        ours, theirs = pty.openpty()
        with os.fdopen(ours, "rb", buffering=0) as terminal:
            arguments = arguments or self.attend_arguments(*self.ARGUMENTS, *more)
            job = subprocess.Popen([PROGRAM, *arguments], stdout=subprocess.DEVNULL, stderr=theirs)
            os.close(theirs)
            shown = b""
            try:
                while part := terminal.read(4096):
                    shown += part
                    when_there_is_a_bar()
            except OSError:  # the other end of the terminal is closed
                pass
            self.assertEqual(job.wait(), exit_code)
        return shown

    def test_bar_on_a_terminal_and_none_in_a_pipe(self):
        shown = self.shown_on_a_terminal(0)
        self.assertRegex(shown, rb"\r\[#+\.*\] \d+% \d+:\d\d, \d+:\d\d left ")
        self.assertTrue(shown.endswith(b"\r\x1b[K"), shown)
        self.assertNotIn(b"\n", shown)

        result = run(*self.attend_arguments(*self.ARGUMENTS))
        self.assertEqual((result.returncode, result.stdout, result.stderr), (0, "", ""))

    def test_bar_moves_within_a_case(self):
        """A benchmark of one case has several calls."""
        shown = self.shown_on_a_terminal(0, arguments=[
            "bench", "--tokens", "16384", "--heads", "1", "--head-dim", "8", "--dtype", "float64", "--repeats", "4",
            *self.ARGUMENTS])
        shares = list(map(int, re.findall(rb"\] (\d+)% ", shown)))
        self.assertGreater(len(set(shares)), 2)
        self.assertEqual(shares, sorted(shares))

    def test_time_goes_on_within_a_single_piece(self):
        """Ranks compute a batch entry in one piece, here for several seconds. The bar is empty, and its time
        advances."""
        for name in "qkv":
            save(self.path(name + ".npy"), np.zeros((1, 81920, 1, 8), np.float64))
        shown = self.shown_on_a_terminal(0, more=("--ranks", "2"))
        times = re.findall(rb"\r\[\.+\] 0% (\d+):(\d\d) \x1b", shown)
        seconds = [60 * int(minutes) + int(rest) for minutes, rest in times]
        self.assertGreaterEqual(len(seconds), 2)
        self.assertEqual(seconds, sorted(set(seconds)))
        self.assertTrue(shown.endswith(b"\r\x1b[K"), shown)

    def test_error_takes_the_place_of_the_bar(self):
        shown = self.shown_on_a_terminal(2, lambda: os.truncate(self.path("k.npy"), 0))
        self.assertRegex(shown, rb" \d+:\d\d(, \d+:\d\d left)? \x1b\[K\r\x1b\[Kannulus: --k: [^\r\n]+\r\n\Z")

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
