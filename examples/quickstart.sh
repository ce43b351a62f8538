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

# The packages of the sections named, out of the one list that the tests use too.
packages() {
    awk -v sections=" $* " '/^# [a-z]+:/ { wanted = index(sections, " " $2 " ") } /^[^#]/ && wanted' packages.txt
}

install_missing() {
    command -v dpkg-query >/dev/null || return 0 # not Debian: the build says what it lacks
    missing=''
    for package in $(packages build: cli: example:); do
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

install_missing
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
