#!python
# SPDX-License-Identifier: Apache-2.0
"""Starts the program in the Python package of the same environment. It finds the package without importing it."""

import importlib.util
import os
import sys

package = importlib.util.find_spec("annulus").submodule_search_locations[0]
os.execv(os.path.join(package, "bin/annulus"), sys.argv)
