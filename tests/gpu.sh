#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# sh tests/gpu.sh [--full] [DIRECTORY]: runs the tests that need NVIDIA GPUs, before each change of device code is merged.
# Each problem is computed in one dtype in turn, without the largest sizes; with --full, before a release, in all of them.
# DIRECTORY is a Meson build directory, perhaps built elsewhere and copied. Without it, the script builds build/gpu for
# the GPUs here. The last line is `N passed, N failed, N skipped`; the exit status is 1 if a case failed.
set -eu
tests=$(dirname "$0")
full=''
if [ "${1-}" = --full ]; then
    full=--full
    shift
fi
if [ $# -eq 0 ]; then
    set -- "$tests/../build/gpu"
    [ -f "$1/build.ninja" ] || meson setup "$1" "$tests/.." -Dcuda=enabled -Dcuda-arch=native -Dtests=enabled \
        -Dcli=disabled -Ddoc=disabled -Dmpi=disabled -Dpython=disabled -Ddebug=false
    meson compile -C "$1"
fi
exec python3 "$tests/gpu.py" ${full:+"$full"} "$1"
