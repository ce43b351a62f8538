#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# sh tests/run.sh                 builds the library, the program and the Python package, and runs the quick tests
# sh tests/run.sh --ci            runs the further steps of continuous integration
# sh tests/run.sh --nightly       runs the steps that are too long for continuous integration
# sh tests/run.sh --all           runs all steps
# sh tests/run.sh STEP...         runs the given steps; CONTRIBUTING.md describes them
#
# On Debian and Ubuntu a step installs the packages that it needs if they are missing (packaging/packages.txt). Each
# step writes its results to build/results/STEP. The last line is `N passed, N failed, N skipped`.
set -eu
cd "$(dirname "$0")/.."

has_gpu() {
    nvidia-smi -L >/dev/null 2>&1
}

quick='quick'
! has_gpu || quick='quick gpu'
ci='gates faults languages address threads kernels'
nightly='full seeds soak fuzz tidy mutants packages arm64 cuda12 kernels_all'

# about STEP: prints a line on what the step does and how long it takes on two cores.
about() {
    case $1 in
        quick) echo 'the library, the program, the Python package and their quick tests; about 8 minutes, 3 when repeated' ;;
        gpu) echo 'the GPU tests; about 8 minutes on 16 cores. The step before it also compiles the kernels for the GPUs here' ;;
        gates) echo 'formatters, linters and type checkers; about a minute' ;;
        faults) echo 'refused memory and threads, forks, lost processes, leaks; about a minute' ;;
        languages) echo 'Rust and Julia, the library as other projects find it, halves of dependencies; about two minutes' ;;
        full) echo 'every dtype and size of the tables of problems; about 5 minutes' ;;
        address) echo 'quick tests under the address and undefined-behaviour sanitizers; about 7 minutes' ;;
        threads) echo 'ranks and threads under the thread sanitizer; about 5 minutes' ;;
        kernels) echo 'the CUDA kernels of one head dimension, compiled, and their tests without a GPU; 5 minutes' ;;
        seeds) echo 'random problems with seeds of the day; about 20 minutes' ;;
        soak) echo 'the long form of the leak tests; about 10 minutes' ;;
        fuzz) echo 'every fuzz target for five minutes; about 35 minutes' ;;
        tidy) echo 'clang-tidy; about 30 minutes' ;;
        mutants) echo 'deliberate defects, which tests must notice; about an hour' ;;
        packages) echo "the files of a release, built and used, README's install on bare systems; about 90 minutes" ;;
        arm64) echo 'the library for arm64, under emulation; about 30 minutes' ;;
        cuda12) echo 'the CUDA plugin for old GPUs by CUDA 12, compiled; about 10 minutes' ;;
        kernels_all) echo 'the CUDA kernels for all GPUs and head dimensions, compiled; about 45 minutes' ;;
        *) return 1 ;;
    esac
}

steps=''
# shellcheck disable=SC2086
[ $# -gt 0 ] || set -- $quick
for argument; do
    case $argument in
        --ci) steps="$steps $ci" ;;
        --nightly) steps="$steps $nightly" ;;
        --all) steps="$steps $quick $ci $nightly" ;;
        *)
            about "$argument" >/dev/null || {
                echo "run.sh: '$argument' is no step; the steps are: $quick $ci $nightly; or --ci, --nightly, --all" >&2
                exit 2
            }
            steps="$steps $argument"
            ;;
    esac
done

# configure DIRECTORY OPTION...: sets up a build with debug information for stack traces only. Full debug information
# would double the compile time.
configure() {
    directory=$1
    shift
    [ -f "$directory/build.ninja" ] || meson setup "$directory" -Dtests=enabled -Ddebug=false -Dc_args=-g1 \
        -Dcpp_args=-g1 "$@" >"$directory.log" 2>&1 || {
        cat "$directory.log" >&2
        exit 1
    }
}

# test_suites DIRECTORY OPTION...: builds and runs the suites. A failing test is counted below and does not stop the
# other tests.
test_suites() {
    directory=$1
    shift
    rm -f "$directory"/meson-logs/testlog*
    meson test -C "$directory" "$@" || true
    mkdir -p "$results/meson-logs"
    cp "$directory"/meson-logs/testlog*.json "$directory"/meson-logs/testlog*.xml "$results/meson-logs" || true
}

# command_test NAME COMMAND...: runs a command that counts as one test.
command_test() {
    name=$1
    shift
    status=0
    "$@" || status=$?
    case $status in
        0) echo "passed $name" ;;
        77) echo "skipped $name" ;;
        *) echo "failed $name" ;;
    esac | tee -a "$results/commands"
}

configure_quick() {
    sh packaging/install.sh build cli mpi test python doc abi
    # Kernels are compiled only on a machine with a GPU.
    cuda='-Dcuda=disabled'
    ! has_gpu || cuda='-Dcuda=auto -Dcuda-arch=native'
    # Meson finds python3's own JAX. Without PyPI, or with a Python that is too old for JAX, the tests of annulus.jax are
    # skipped.
    jax=''
    if [ ! -f build/test/build.ninja ] && ! python3 -c 'import jax' 2>/dev/null; then
        ! include=$(sh packaging/install_jax.sh "$PWD/build/jax") || jax="-Djax=enabled -Djax-include=$include"
    fi
    # shellcheck disable=SC2086
    configure build/test -Dcli=enabled -Dpython=enabled $cuda $jax
}

step_quick() {
    configure_quick
    meson compile -C build/test
    # The processes of some tests mostly wait for one another, so one test more than there are cores runs at a time.
    ANNULUS_TEST_QUICK=1 test_suites build/test --no-rebuild --num-processes "$(($(nproc) + 1))" --suite headers \
        --suite abi --suite capi --suite unit --suite engines --suite ranks --suite cli --suite bindings --suite examples
}

step_gpu() {
    python3 tests/gpu.py build/test 2>&1 | tee "$results/output"
}

step_gates() {
    configure_quick
    test_suites build/test --suite gates
}

step_faults() {
    configure_quick
    test_suites build/test --suite faults --suite soak
}

step_languages() {
    sh packaging/install.sh build cli mpi test python doc abi rust
    configure_quick
    test_suites build/test --suite languages
}

step_full() {
    configure_quick
    test_suites build/test --suite engines --suite ranks
}

sanitized() {
    directory=$1
    shift
    ASAN_OPTIONS=detect_leaks=1 LSAN_OPTIONS="suppressions=$PWD/tests/support/leaks.supp:print_suppressions=0" \
        UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 TSAN_OPTIONS=halt_on_error=1 ANNULUS_TEST_QUICK=1 \
        ANNULUS_TEST_PROBLEMS=30 \
        test_suites "$directory" --timeout-multiplier 4 "$@"
}

# Uses clang, whose sanitizers take half the time of g++'s.
step_address() {
    sh packaging/install.sh build cli test fuzz
    configure build/address --native-file tests/fuzz/clang.ini -Dfuzz=false -Dcli=enabled -Dpython=disabled \
        -Doptimization=1
    sanitized build/address --suite unit --suite capi --suite engines --suite ranks --suite cli
}

step_threads() {
    sh packaging/install.sh build test
    configure build/threads -Db_sanitize=thread -Db_lundef=false -Dcli=disabled -Dcuda=disabled -Dmpi=disabled \
        -Dpython=disabled -Doptimization=1
    sanitized build/threads --suite ranks --suite threads
}

# compile_kernels DIRECTORY OPTION...: compiles the kernels; skips it without nvcc.
compile_kernels() {
    command -v nvcc >/dev/null || {
        echo 'skipped nvcc is not in PATH' >"$results/commands"
        return
    }
    sh packaging/install.sh build test
    directory=$1
    shift
    configure "$directory" -Dcuda=enabled -Dcli=disabled -Dmpi=disabled -Dpython=disabled \
        -Ddoc=disabled -Doptimization=1 "$@"
    meson compile -C "$directory"
    test_suites "$directory" --no-rebuild --suite unit --suite capi --suite cuda --suite examples
}

step_kernels() {
    ANNULUS_TEST_QUICK=1 compile_kernels build/kernels -Dcuda-arch=90 -Dcuda-head-dims=64
}

step_kernels_all() {
    compile_kernels build/kernels_all
}

step_seeds() {
    configure_quick
    ANNULUS_TEST_SEED=$(date +%Y%m%d) ANNULUS_TEST_PROBLEMS=2000 test_suites build/test engines_random \
        engines_extreme_random engines_sequences ranks_table_1 ranks_table_2 ranks_mass
    echo "the seeds were ANNULUS_TEST_SEED=$(date +%Y%m%d) ANNULUS_TEST_PROBLEMS=2000"
}

step_soak() {
    configure_quick
    # Meson writes other logs for benchmarks than for tests.
    command_test soak_long meson test -C build/test --benchmark --suite soak
}

step_fuzz() {
    sh packaging/install.sh build cli test fuzz
    configure build/fuzz --native-file tests/fuzz/clang.ini -Dtests=disabled -Dcli=enabled
    ANNULUS_FUZZ_SECONDS=${ANNULUS_FUZZ_SECONDS-300} test_suites build/fuzz --suite fuzz
}

step_tidy() {
    configure_quick
    command_test clang-tidy sh tests/gates/run.sh clang-tidy
}

step_mutants() {
    sh packaging/install.sh build cli mpi test
    command_test mutants python3 tests/mutants/run.py
}

step_packages() {
    sh packaging/install.sh build cli deb bare mpi test python doc abi
    configure_quick
    test_suites build/test --suite packages
    # Kernels of one head dimension, where nvcc is. The release is made of the last commit.
    rm -rf build/release
    command_test release sh packaging/release.sh build/release -Dcuda-arch=90 -Dcuda-head-dims=64
    # The file that release.sh writes last; where no release can be built, that is said above.
    [ ! -f build/release/SHA256SUMS ] || command_test try_release sh packaging/try_release.sh build/release
    for suite in bookworm trixie noble; do
        command_test "readme_$suite" sh packaging/smoke/in_bare_root.sh "$suite"
    done
    # MPI's run-time programs, without its headers.
    command_test readme_openmpi sh packaging/smoke/in_bare_root.sh trixie openmpi-bin
}

step_arm64() {
    command_test arm64 sh packaging/cross_arm64.sh
}

step_cuda12() {
    command_test cuda12 sh packaging/cuda12.sh "${TMPDIR-/tmp}/annulus_cuda12"
}

mkdir -p build
echo 'What is to be done, with times on two cores:'
for step in $steps; do
    printf '%12s ' "$step"
    about "$step"
done
for step in $steps; do
    results=build/results/$step
    rm -rf "$results"
    mkdir -p "$results"
    printf '\n== %s  %s: ' "$(date +%H:%M:%S)" "$step"
    about "$step"
    begin=$(date +%s)
    # A step that stops early, for example because a build fails, counts as one failed test.
    set +e
    (
        set -e
        "step_$step"
    )
    status=$?
    [ $status -eq 0 ] || echo "failed $step" >>"$results/commands"
    set -e
    echo $(($(date +%s) - begin)) >"$results/seconds"
done
# shellcheck disable=SC2086
exec python3 tests/count.py $steps
