#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs what packaging/packages.txt lists (Debian, Ubuntu), builds annulus three times: plainly, under the address and
# undefined-behaviour sanitizers, and under the thread sanitizer. Runs the test suite in the first and what concerns them
# in the others, then the fuzz targets, each of which counts as one test. The last line is `N passed, N failed, N
# skipped`.
set -eu
cd "$(dirname "$0")/.."

# say <words>: what comes next; each may take many minutes.
say() {
    printf '\n== %s  %s\n' "$(date +%H:%M:%S)" "$*"
}

# build <directory> <option of meson setup>...
build() {
    directory=$1
    shift
    [ -f "$directory/build.ninja" ] || meson setup "$directory" -Dtests=enabled "$@"
    meson compile -C "$directory"
    rm -rf "$directory"/meson-logs/testlog* "$directory"/*.xml # an earlier run's results must not be counted
}

# build_sanitized <directory> <sanitizers> <option of meson setup>... MPI's libraries and Python are not built for them.
build_sanitized() {
    directory=$1
    sanitizers=$2
    shift 2
    build "$directory" "$@" -Dcuda=disabled -Dmpi=disabled -Dpython=disabled -Db_lundef=false -Db_sanitize="$sanitizers"
}

say 'installing the packages that are missing'
sh packaging/install.sh build cli mpi python doc rust abi test example fuzz
# Kernels for the GPUs of this machine; without one for compute capability 9.0 alone, to see that they compile.
arch=90
if nvidia-smi -L >/dev/null 2>&1; then arch=native; fi
say 'building everything, with CUDA kernels where there is nvcc'
build build/test -Dcli=enabled -Dcuda-arch=$arch
say 'building for the address and undefined-behaviour sanitizers'
build_sanitized build/sanitize address,undefined -Dcli=enabled
say 'building for the thread sanitizer'
build_sanitized build/threads thread -Dcli=disabled

# A failing test is counted below; it does not keep the others from running.
say 'all tests'
meson test -C build/test --no-rebuild || true
say 'tests under the address and undefined-behaviour sanitizers'
ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 ANNULUS_TEST_QUICK=1 \
    meson test -C build/sanitize --no-rebuild --timeout-multiplier 4 --suite unit --suite capi --suite engines \
    --suite ranks --suite cli || true
say 'tests under the thread sanitizer'
TSAN_OPTIONS=halt_on_error=1 ANNULUS_TEST_QUICK=1 \
    meson test -C build/threads --no-rebuild --timeout-multiplier 4 --suite ranks --suite threads || true

say 'fuzz targets, ten seconds each'
sh tests/fuzz/run.sh 10 || true

exec python3 tests/count.py build/test build/sanitize build/threads build/fuzz
