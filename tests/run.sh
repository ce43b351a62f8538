#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs what packaging/packages.txt lists (Debian, Ubuntu), builds annulus twice, plainly and under the address and
# undefined-behaviour sanitizers, and runs the test suite in both. The last line is `N passed, N failed, N skipped`.
set -eu
cd "$(dirname "$0")/.."

# build <directory> <option of meson setup>...
build() {
    directory=$1
    shift
    [ -f "$directory/build.ninja" ] || meson setup "$directory" -Dtests=enabled "$@"
    meson compile -C "$directory"
    rm -rf "$directory"/meson-logs/testlog* "$directory"/*.xml # an earlier run's results must not be counted
}

sh packaging/install.sh build cli test example
build build/test -Dcli=enabled
build build/sanitize -Dcli=disabled -Dcuda=disabled -Db_sanitize=address,undefined -Db_lundef=false

# A failing test is counted below; it does not keep the others from running.
meson test -C build/test --no-rebuild || true
ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 ANNULUS_TEST_QUICK=1 \
    meson test -C build/sanitize --no-rebuild --timeout-multiplier 4 --suite unit --suite capi --suite engines || true

exec python3 tests/count.py build/test build/sanitize
