#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# smoke.sh: tests the installed packages, and uses only what is installed: a C program found by pkg-config, the annulus
# program and the Python package.
set -eux
sources=$(cd "$(dirname "$0")" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
export PATH=/usr/bin:/bin PYTHONSAFEPATH=1
unset LD_LIBRARY_PATH LD_PRELOAD LIBRARY_PATH CPATH C_INCLUDE_PATH PKG_CONFIG_PATH PKG_CONFIG_LIBDIR PYTHONPATH

# loads_installed FILE: succeeds if the dynamic linker takes the library from the package's directory, without a path
# written in FILE.
loads_installed() {
    ldd "$1" | grep -E 'libannulus\.so\.1 => (/usr)?/lib/[^/]+/libannulus\.so\.1 '
    ! readelf -d "$1" | grep -E 'RPATH|RUNPATH'
}

# shellcheck disable=SC2046
gcc -std=c99 -Wall -Wextra -Werror "$sources/smoke.c" -o smoke $(pkg-config --cflags --libs annulus) -lm
loads_installed ./smoke
./smoke

loads_installed /usr/bin/annulus
annulus info
annulus info | grep 'MPI Open MPI' # provided by libannulus-mpi1
man --where annulus

/usr/bin/python3 "$sources/smoke.py" /usr/lib/python3/dist-packages /usr/bin/annulus
loads_installed /usr/lib/python3/dist-packages/annulus/_capi.*.so
