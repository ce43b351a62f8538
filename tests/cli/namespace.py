# SPDX-License-Identifier: Apache-2.0
"""Programs that see other file systems than the rest: in a namespace of their own, where the system allows it."""

import shutil
import subprocess


def in_namespace(mount):
    """What stands before a command that is to see what `mount`, a line of the shell, has mounted."""
    return ["unshare", "--map-root-user", "--mount", "sh", "-c", f'{mount} && exec "$@"', "sh"]


def can_mount():
    return shutil.which("unshare") and subprocess.run(
        [*in_namespace("mount -t tmpfs none /mnt"), "true"], stderr=subprocess.DEVNULL, check=False).returncode == 0
