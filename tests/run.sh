#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs what packages.txt lists (Debian, Ubuntu), builds annulus twice, plainly and under the address and
# undefined-behaviour sanitizers, and runs the test suite in both. The last line is `N passed, N failed, N skipped`.
set -eu
cd "$(dirname "$0")/.."

install_missing() {
    command -v dpkg-query >/dev/null || return 0 # not Debian: the build says what it lacks
    missing=''
    for package in $(sed 's/#.*//' packages.txt); do
        dpkg-query --show --showformat='${Status}\n' "$package" 2>/dev/null | grep -q '^install ok installed' ||
            missing="$missing $package"
    done
    [ -n "$missing" ] || return 0
    echo "installing$missing"
    as_root=''
    [ "$(id -u)" = 0 ] || as_root=sudo
    $as_root apt-get update -qq
    # shellcheck disable=SC2086
    DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y -qq --no-install-recommends $missing >/dev/null
}

# build <directory> <option of meson setup>...
build() {
    directory=$1
    shift
    [ -f "$directory/build.ninja" ] || meson setup "$directory" -Dtests=enabled "$@"
    meson compile -C "$directory"
    rm -rf "$directory"/meson-logs/testlog* "$directory"/*.xml # an earlier run's results must not be counted
}

install_missing
build build/test -Dcli=enabled
build build/sanitize -Dcli=disabled -Db_sanitize=address,undefined -Db_lundef=false

# A failing test is counted below; it does not keep the others from running.
meson test -C build/test --no-rebuild || true
ANNULUS_TEST_QUICK=1 meson test -C build/sanitize --no-rebuild --timeout-multiplier 4 \
    --suite unit --suite capi --suite engines || true

exec python3 tests/count.py build/test build/sanitize
