#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# cross_arm64.sh [DIRECTORY]: builds the library for arm64 in DIRECTORY (default: build/arm64), on Debian of another
# architecture, and runs tests under qemu-user. It runs the suites unit and capi, and the fast part of the engine tests
# that take some minutes there (emulated in tests/engines/meson.build). The other engine tests take an hour:
#   ANNULUS_TEST_QUICK=1 meson test -C DIRECTORY/meson --timeout-multiplier 20 --suite engines
# The last line is `N passed, N failed, N skipped`.
#
# The script installs the compiler and qemu-user (packages.txt, section arm64). It only unpacks arm64 libraries, into
# DIRECTORY/root (arm64_root.sh).
set -eu
cd "$(dirname "$0")/.."
sh packaging/install.sh build test arm64
mkdir -p "${1:-build/arm64}"
directory=$(cd "${1:-build/arm64}" && pwd)
root=$directory/root

sh packaging/arm64_root.sh "$root" arm64root

build=$directory/meson
if [ ! -f "$build/build.ninja" ]; then
    printf "[constants]\nroot = '%s'\n" "$root" >"$directory/root.ini"
    meson setup "$build" --cross-file "$directory/root.ini" --cross-file packaging/arm64.ini -Dtests=enabled \
        -Dcli=disabled -Dcuda=disabled -Dmpi=disabled -Dpython=disabled
fi
rm -f "$build"/meson-logs/testlog* # so that results of an earlier run are not counted

# Compiles and runs the suites. A failing test is counted below and does not stop the other tests.
echo '== tests under emulation, on two cores ten to twenty minutes'
ANNULUS_TEST_QUICK=1 meson test -C "$build" --timeout-multiplier 20 --suite unit --suite capi --suite emulated || true
exec python3 tests/count.py "$build"
