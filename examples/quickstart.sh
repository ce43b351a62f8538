#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# sh examples/quickstart.sh [document [bytes]]
# On Debian 12, Ubuntu 24.04 or newer: installs what is missing, builds annulus, and lets it predict every next byte of
# a document by attention alone, over growing reach (examples/next_byte/next_byte.py says how). Without a document it
# reads the first megabyte of the C headers in /usr/include/linux. Everything is written below build/ and examples/out/.
set -eu
document=${1:+$(realpath -- "$1")}
cd "$(dirname "$0")/.."
build=build/quickstart
out=examples/out

sh packaging/install.sh build cli example
[ -f "$build/build.ninja" ] || meson setup "$build" --buildtype=release -Dcli=enabled -Dtests=disabled
meson compile -C "$build"

mkdir -p "$out"
if [ -z "$document" ]; then
    document=$out/linux_headers.txt
    cat /usr/include/linux/*.h >"$document"
fi
# Debian's own Python is the one that sees Debian's numpy.
python=/usr/bin/python3
[ -x "$python" ] || python=python3
exec "$python" examples/next_byte/next_byte.py "$document" --annulus "$build/src/cli/annulus" --out "$out" \
    --bytes "${2:-1048576}"
