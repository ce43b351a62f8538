# SPDX-License-Identifier: Apache-2.0
"""The build backend that pip calls (pyproject.toml): meson-python, except that it refuses an editable install that
could not be imported."""

import pathlib
import tempfile

import mesonpy
from mesonpy import (  # noqa: F401 - the hooks of PEP 517 and PEP 660
    build_sdist,
    build_wheel,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
)


def build_editable(*arguments, **options):
    """An editable install runs ninja, and swig if needed, at each import. pip's build environment is gone by then."""
    if pathlib.Path(tempfile.gettempdir()) in pathlib.Path(mesonpy.__file__).parents:
        raise SystemExit(
            "An editable install is built anew when annulus is imported, by the tools of its own environment:\n"
            "    pip install meson-python ninja swig numpy\n"
            "    pip install --no-build-isolation -e ."
        )
    return mesonpy.build_editable(*arguments, **options)
