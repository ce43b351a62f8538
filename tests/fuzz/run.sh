#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# run.sh SECONDS [TARGET...]: builds the fuzz targets with clang and its sanitizers in build/fuzz. It runs each target,
# or only the given ones, for SECONDS seconds. Inputs that fail are in build/fuzz/fuzz/TARGET/bad.
# build/fuzz/tests/fuzz/fuzz_TARGET INPUT runs one of them alone.
set -eu
cd "$(dirname "$0")/../.."
seconds=${1:?the seconds that each target is to run}
shift

directory=build/fuzz
[ -f "$directory/build.ninja" ] ||
    meson setup "$directory" --native-file tests/fuzz/clang.ini -Dtests=disabled -Dcli=enabled
meson compile -C "$directory"
rm -rf "$directory"/meson-logs/testlog*
# shellcheck disable=SC2046
ANNULUS_FUZZ_SECONDS=$seconds meson test -C "$directory" --no-rebuild --suite fuzz --verbose \
    $(for target in "$@"; do echo "fuzz_$target"; done)
