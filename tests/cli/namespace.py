# SPDX-License-Identifier: Apache-2.0
"""Runs programs that see other file systems, in a namespace of their own, if the system allows it."""

import shutil
import subprocess


def in_namespace(mount):
    """Returns the words before a command that sees what `mount`, a line of shell, has mounted."""
    return ["unshare", "--map-root-user", "--mount", "sh", "-c", f'{mount} && exec "$@"', "sh"]


def can_mount():
    return shutil.which("unshare") and subprocess.run(
        [*in_namespace("mount -t tmpfs none /mnt"), "true"], stderr=subprocess.DEVNULL, check=False).returncode == 0
