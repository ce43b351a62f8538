#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# sh tests/gpu.sh [--full] [DIRECTORY]: runs the tests that need NVIDIA GPUs. Run it before a change of device code is
# merged.
# Each problem is computed in one of the dtypes in turn, without the largest sizes. With --full, before a release, each
# problem is computed in all dtypes and sizes.
# DIRECTORY is a Meson build directory, which may have been built elsewhere and copied. Without it, the script builds
# build/gpu for this machine's GPUs. The last line is `N passed, N failed, N skipped`. The exit status is 1 if a case
# failed.
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
        -Dcli=disabled -Ddoc=disabled -Dmpi=disabled -Ddebug=false
    meson compile -C "$1"
fi
exec python3 "$tests/gpu.py" ${full:+"$full"} "$1"
