#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs what packaging/packages.txt lists (Debian, Ubuntu), runs the quickstart, and builds annulus three times:
# plainly, under the address and undefined-behaviour sanitizers, and under the thread sanitizer. Runs the test suite in
# the first and what concerns them in the others, then the fuzz targets, each of which counts as one test. The last line
# is `N passed, N failed, N skipped`.
# shellcheck disable=SC2086
set -eu
cd "$(dirname "$0")/.."

# say <words>: what comes next; each may take many minutes.
say() {
    printf '\n== %s  %s\n' "$(date +%H:%M:%S)" "$*"
}

# configure <directory> <option of meson setup>...
configure() {
    directory=$1
    shift
    [ -f "$directory/build.ninja" ] || meson setup "$directory" -Dtests=enabled "$@"
    rm -rf "$directory"/meson-logs/testlog* "$directory"/*.xml # an earlier run's results must not be counted
}

# test_sanitized <directory> <sanitizer> <option of meson setup> <suite>...: builds what these suites need, and runs
# them. A failing test is counted below; it does not keep the others from running. MPI's libraries and Python are not
# built for sanitizers. With -O2 compilers take longer.
test_sanitized() {
    directory=$1
    sanitizers=$2
    option=$3
    shift 3
    configure "$directory" "$option" -Dcuda=disabled -Dmpi=disabled -Dpython=disabled -Db_lundef=false \
        -Db_sanitize="$sanitizers" -Doptimization=1 $less_debugging
    suites=''
    for suite; do suites="$suites --suite $suite"; done
    ASAN_OPTIONS=detect_leaks=1 LSAN_OPTIONS="suppressions=$PWD/tests/support/leaks.supp:print_suppressions=0" \
        UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 TSAN_OPTIONS=halt_on_error=1 \
        ANNULUS_TEST_QUICK=1 meson test -C "$directory" --timeout-multiplier 4 $suites || true
}

# Lines for stack traces alone: with all there is for debuggers compilers take twice as long.
less_debugging='-Ddebug=false -Dc_args=-g1 -Dcpp_args=-g1'

say 'installing the packages that are missing'
sh packaging/install.sh build cli mpi python doc rust abi test example fuzz
# Its build is one of its own: of several sources at a time, whose names may clash.
say 'the quickstart, on a short text'
sh examples/quickstart.sh README.md
# Kernels for the GPUs of this machine; without one for compute capability 9.0 alone, to see that they compile.
arch=90
if nvidia-smi -L >/dev/null 2>&1; then arch=native; fi
say 'building everything, with CUDA kernels where there is nvcc'
configure build/test -Dcli=enabled -Dcuda-arch=$arch $less_debugging
meson compile -C build/test
say 'all tests'
meson test -C build/test --no-rebuild || true
say 'tests under the address and undefined-behaviour sanitizers, which are built first'
test_sanitized build/sanitize address,undefined -Dcli=enabled unit capi engines ranks cli
say 'tests under the thread sanitizer, which are built first'
test_sanitized build/threads thread -Dcli=disabled ranks threads

say 'fuzz targets, ten seconds each'
sh tests/fuzz/run.sh 10 || true

exec python3 tests/count.py build/test build/sanitize build/threads build/fuzz
