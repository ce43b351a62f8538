# SPDX-License-Identifier: Apache-2.0
"""The Python that tests of annulus.jax run in where the one that Meson runs with has no JAX."""

import os
import pathlib
import sys

import tap

# packaging/install_jax.sh makes it.
PYTHON = pathlib.Path(os.environ["ANNULUS_SOURCE"], "build/jax/bin/python")


def find_jax():
    """Runs the calling test anew in the virtual environment with JAX. Skips it if there is none."""
    if not PYTHON.exists() or pathlib.Path(sys.prefix) == PYTHON.parent.parent:
        tap.skip_all("needs JAX, which packaging/install_jax.sh installs in build/jax")
    os.execv(PYTHON, [PYTHON, *sys.argv])
