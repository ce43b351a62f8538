# SPDX-License-Identifier: Apache-2.0
# The C API in SWIG's module: see the C headers, and typemaps.i for the arguments in Python.
from typing import Any

def __getattr__(name: str) -> Any: ...
