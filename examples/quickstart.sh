#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# sh examples/quickstart.sh [document [bytes]]
# On Debian 12, Ubuntu 24.04 or newer: installs missing packages, builds annulus, and predicts every next byte of a
# document by attention alone, over growing reach (examples/next_byte/next_byte.py says how). Without a document it reads
# the first megabyte of the C headers in /usr/include/linux. It writes only below build/ and examples/out/.
set -eu
document=${1:+$(realpath -- "$1")}
cd "$(dirname "$0")/.."
build=build/quickstart
out=examples/out
mkdir -p build

say() {
    printf '== %s\n' "$*"
}

sh packaging/install.sh build cli example
# The job runs on the CPU. So the build leaves out CUDA's kernels, which take many minutes to compile, and all other parts
# that the job does not need. A unity build, which compiles several files at a time, is the quickest. Warnings are off,
# since files of a unity build shadow one another's names. Code that decides the speed is optimized in any build type.
say 'building the library and the program, on two cores a minute and a half; the next time it is there'
[ -f "$build/build.ninja" ] || meson setup "$build" --buildtype=release -Doptimization=1 -Dunity=on -Dunity_size=25 \
    -Dcpp_args=-w -Dcli=enabled -Dcuda=disabled -Dmpi=disabled -Dpython=disabled -Dtests=disabled >"$build.log" || {
    cat "$build.log" >&2
    exit 1
}
meson compile -C "$build"

say 'predicting, half a minute or so'
mkdir -p "$out"
if [ -z "$document" ]; then
    document=$out/linux_headers.txt
    cat /usr/include/linux/*.h >"$document"
fi
# Only Debian's own Python finds Debian's numpy.
python=/usr/bin/python3
[ -x "$python" ] || python=python3
exec "$python" examples/next_byte/next_byte.py "$document" --annulus "$build/src/cli/annulus" --out "$out" \
    --bytes "${2:-1048576}"
