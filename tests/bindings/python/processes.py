# SPDX-License-Identifier: Apache-2.0
"""Ranks that are processes of the calling script."""

import subprocess
import sys
import tempfile


def run_ranks(case, script, ranks, *arguments):
    """Runs `script *arguments DIRECTORY RANK` for each rank, in one directory. Each must print "done" and no other
    line, except for gloo's own messages."""
    with tempfile.TemporaryDirectory() as directory:
        processes = [
            subprocess.Popen(
                [sys.executable, script, *arguments, directory, str(rank)],
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            for rank in range(ranks)
        ]
        try:
            outcomes = [process.communicate(timeout=240) for process in processes]
        finally:
            for process in processes:
                process.kill()
        for (out, err), process in zip(outcomes, processes):
            lines = [line for line in out.splitlines() if not line.startswith("[Gloo]")]
            case.assertEqual((process.returncode, lines), (0, ["done"]), err[-4000:])
