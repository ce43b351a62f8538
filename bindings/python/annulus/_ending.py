# SPDX-License-Identifier: Apache-2.0
"""Refuses calls while the interpreter ends: it destroys contexts and communicators that objects may still use."""

from __future__ import annotations

import atexit
import weakref

from ._errors import UnsupportedError

_has_begun = False


def _begin() -> None:
    global _has_begun
    _has_begun = True


# Handlers of atexit run in reverse order. weakref registers its handler, which destroys contexts, with the first
# finalizer. So a finalizer comes first, and _begin() runs before contexts are destroyed.
weakref.finalize(_begin, int)
atexit.register(_begin)


def check_not_ending() -> None:
    """Raises in handlers of atexit that were registered before annulus was imported, and in whatever runs later."""
    if _has_begun:
        raise UnsupportedError(
            "the Python interpreter is ending, and the contexts and communicators of annulus have ended before; compute "
            "earlier, for example in a function that atexit.register() gets after annulus was imported"
        )
