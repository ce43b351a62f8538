# SPDX-License-Identifier: Apache-2.0
"""The Python that tests of annulus.jax run in where the one that Meson runs with has no JAX."""

import os
import pathlib
import sys

import tap

# packaging/install_jax.sh makes it.
ENVIRONMENT = pathlib.Path(os.environ["ANNULUS_SOURCE"], "build/jax").resolve()


def find_jax():
    """Runs the calling test anew in the virtual environment with JAX. Skips it if there is none."""
    python = ENVIRONMENT / "bin/python"
    if not python.exists() or pathlib.Path(sys.prefix).resolve() == ENVIRONMENT:
        tap.skip_all("needs JAX, which packaging/install_jax.sh installs in build/jax")
    os.execv(python, [python, *sys.argv])
