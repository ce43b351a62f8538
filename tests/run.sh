#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs what packaging/packages.txt lists (Debian, Ubuntu), runs the quickstart, and builds annulus three times:
# plainly, under the address and undefined-behaviour sanitizers, and under the thread sanitizer. Runs the test suite in
# the first and what concerns them in the others, in the second also the fuzz targets, each of which counts as one test.
# The last line is `N passed, N failed, N skipped`.
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

# test_sanitized <directory> <suite>...: builds what these suites need, and runs them. A failing test is counted below;
# it does not keep the others from running.
test_sanitized() {
    directory=$1
    shift
    suites=''
    for suite; do suites="$suites --suite $suite"; done
    ASAN_OPTIONS=detect_leaks=1 LSAN_OPTIONS="suppressions=$PWD/tests/support/leaks.supp:print_suppressions=0" \
        UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 TSAN_OPTIONS=halt_on_error=1 \
        ANNULUS_TEST_QUICK=1 ANNULUS_FUZZ_SECONDS=10 \
        meson test -C "$directory" --timeout-multiplier 4 $suites || true
}

# Lines for stack traces alone: with all there is for debuggers compilers take twice as long.
less_debugging='-Ddebug=false -Dc_args=-g1 -Dcpp_args=-g1'

say 'installing the packages that are missing'
sh packaging/install.sh build cli mpi python doc rust abi test example fuzz
# Its build is one of its own: of several sources at a time, whose names may clash.
say 'the quickstart, on a short text'
sh examples/quickstart.sh README.md
# Kernels for the GPUs of this machine; without one, some for compute capability 9.0, to see that they compile.
kernels='-Dcuda-arch=90 -Dcuda-head-dims=128,256'
if nvidia-smi -L >/dev/null 2>&1; then kernels=-Dcuda-arch=native; fi
say 'building everything, with CUDA kernels where there is nvcc'
configure build/test -Dcli=enabled $kernels $less_debugging
meson compile -C build/test
say 'all tests'
meson test -C build/test --no-rebuild || true
# With -O2 compilers take longer.
say 'tests under the address and undefined-behaviour sanitizers, and the fuzz targets, ten seconds each; all built first'
configure build/sanitize --native-file tests/fuzz/clang.ini -Dcli=enabled -Doptimization=1 $less_debugging
test_sanitized build/sanitize unit capi engines ranks cli fuzz
say 'tests under the thread sanitizer, which are built first'
configure build/threads -Db_sanitize=thread -Db_lundef=false -Dcli=disabled -Dcuda=disabled -Dmpi=disabled \
    -Dpython=disabled -Doptimization=1 $less_debugging
test_sanitized build/threads ranks threads

exec python3 tests/count.py build/test build/sanitize build/threads
