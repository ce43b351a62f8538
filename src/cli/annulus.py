#!python
# SPDX-License-Identifier: Apache-2.0
"""Starts the program in the Python package of the same environment. It finds the package without importing it."""

import importlib.util
import os
import sys

spec = importlib.util.find_spec("annulus")
if spec is None:
    sys.exit(f"annulus: {sys.executable} finds no package annulus, which has the program; install libannulus for it")
directories = spec.submodule_search_locations or [os.path.dirname(spec.origin)]
program = os.path.join(directories[0], "bin/annulus")
if not os.path.isfile(program):
    sys.exit(f"annulus: there is no {program}; the package annulus that is found first is not that of a wheel")
os.execv(program, sys.argv)
