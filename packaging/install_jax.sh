#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# install_jax.sh DIRECTORY: makes a virtual environment with JAX for CPUs, unless DIRECTORY is one with the packages that
# packages.txt lists. Prints the directory with the headers of its jaxlib, for Meson's option jax-include.
set -eu
[ $# -eq 1 ] || {
    echo "usage: install_jax.sh DIRECTORY" >&2
    exit 2
}
list=$(sh "$(dirname "$0")/list.sh" pypi-jax)
[ "$(cat "$1/packages" 2>/dev/null)" = "$list" ] || {
    python3 -m venv "$1"
    # shellcheck disable=SC2086
    "$1/bin/pip" install --quiet --disable-pip-version-check --only-binary :all: $list
    printf '%s\n' "$list" >"$1/packages"
}
"$1/bin/python" -c 'import jax; print(jax.ffi.include_dir())'
