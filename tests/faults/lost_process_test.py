# SPDX-License-Identifier: Apache-2.0
"""One of three processes over MPI is lost before, during or after the agreement of a call, or during its exchange. The
other processes learn of it in time and still compute alone (lost_process.cpp). Nothing remains in shared memory."""

import os
import pathlib
import signal
import subprocess
import tempfile
import time
import unittest

from namespace import can_mount, in_namespace
import tap

RANKS = 3
COMMAND = [*os.environ["ANNULUS_MPIRUN"].split(), "-n", str(RANKS)]
RECOVERY = ["--enable-recovery", "--mca", "orte_base_help_aggregate", "0"]
PROGRAM = os.environ["ANNULUS_LOST_PROCESS"]
# Messages that the lost rank sends in the call. In the agreement it sends one to each of two ranks, before any rows.
MOMENTS = {"before the agreement": 0, "in the agreement": 1, "after the agreement": 2, "in the exchange": 3}
# If the test may mount file systems, it lists what remains in shared memory, except Open MPI's own segments.
OWN_MEMORY = in_namespace("mount -t tmpfs none /dev/shm") if can_mount() else []
THEN_LIST = ["sh", "-c", '"$@"; code=$?; ls -A /dev/shm | sed "/^vader_segment/d; s/^/left: /"; exit $code', "sh"]


def processes_in(directory):
    """Returns the states of the processes that work in the directory, by their numbers."""
    found = {}
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(process / "cwd") == str(directory):
                found[int(process.name)] = (process / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
        except OSError:  # the process has ended or belongs to another user
            pass
    return found


class LostProcessTest(unittest.TestCase):
    def run_ranks(self, way, moment, options=()):
        """Returns mpirun's exit code and the lines that it printed, when all its processes have ended."""
        with tempfile.TemporaryDirectory() as directory:
            command = [*COMMAND, *options, PROGRAM, way, str(MOMENTS[moment])]
            if OWN_MEMORY:
                command = [*OWN_MEMORY, *THEN_LIST, *command]
            job = subprocess.Popen(command, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            try:
                lines = []
                while sum(line.startswith("rank ") for line in lines) < RANKS - 1 and (line := job.stdout.readline()):
                    lines.append(line.rstrip())
                if way == "stopped":  # mpirun waits for it
                    for process, state in processes_in(directory).items():
                        if state == "T":
                            os.kill(process, signal.SIGKILL)
                output, errors = job.communicate(timeout=60)
                lines += output.splitlines()
                until = time.monotonic() + 10
                while (left := processes_in(directory)) and time.monotonic() < until:
                    time.sleep(0.05)
                self.assertEqual(left, {}, "processes are left")
                self.assertEqual([line for line in lines if line.startswith("left: ")], [])
            finally:
                job.kill()
                for process in processes_in(directory):
                    os.kill(process, signal.SIGKILL)
            return job.returncode, lines, errors

    def check_others(self, way):
        for moment in MOMENTS:
            with self.subTest(moment):
                _, lines, errors = self.run_ranks(way, moment, RECOVERY)
                ends = sorted(line for line in lines if line.startswith("rank "))
                self.assertEqual(ends, ["rank 0: served on", "rank 2: served on"], "\n".join([*lines, errors[-3000:]]))

    def test_killed(self):
        self.check_others("killed")

    def test_stopped(self):
        self.check_others("stopped")

    def test_exits(self):
        self.check_others("exits")

    def test_aborts(self):
        self.check_others("aborts")

    def test_all_end_without_recovery(self):
        """mpirun itself ends all processes when the first one dies."""
        for way in ("killed", "aborts"):
            with self.subTest(way):
                code, _, _ = self.run_ranks(way, "in the exchange")
                self.assertNotEqual(code, 0)


if __name__ == "__main__":
    tap.main()
