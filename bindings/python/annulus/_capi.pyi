# SPDX-License-Identifier: Apache-2.0
# The C API as SWIG gives it: see the C headers, and typemaps.i for how their arguments look.
from typing import Any

def __getattr__(name: str) -> Any: ...
