#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# cross_arm64.sh [DIRECTORY]: builds the library for arm64 in DIRECTORY, build/arm64 unless given, on Debian of another
# kind of machine, and runs tests under qemu-user: the suites unit and capi, and of the suite engines those that take
# some minutes there (emulated in tests/engines/meson.build), of these the fast part. The others, which take an hour:
#   ANNULUS_TEST_QUICK=1 meson test -C DIRECTORY/meson --timeout-multiplier 20 --suite engines
# The last line is `N passed, N failed, N skipped`.
#
# The compiler and qemu-user are installed (packages.txt, section arm64). Libraries of arm64 are only unpacked, into
# DIRECTORY/root, by an apt with a state of its own: the machine's apt and dpkg hear nothing of the other architecture.
set -eu
cd "$(dirname "$0")/.."
sh packaging/install.sh build test arm64
mkdir -p "${1:-build/arm64}"
directory=$(cd "${1:-build/arm64}" && pwd)
root=$directory/root

# arm64_apt ARGUMENT...: apt-get for arm64, as if nothing were installed.
arm64_apt() {
    mkdir -p "$directory/apt/lists/partial" "$directory/apt/archives/partial"
    apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Sandbox::User="$(id -un)" \
        -o Dir::State="$directory/apt" -o Dir::State::status=/dev/null -o Dir::Cache="$directory/apt" "$@"
}

if [ ! -d "$root" ]; then
    echo "== unpacking libraries of arm64 into $root"
    arm64_apt update
    # shellcheck disable=SC2046
    arm64_apt install -y --no-install-recommends --download-only $(sh packaging/list.sh arm64root)
    rm -rf "$root.part"
    for package in "$directory"/apt/archives/*.deb; do
        dpkg-deb --extract "$package" "$root.part"
    done
    mv "$root.part" "$root"
fi

build=$directory/meson
if [ ! -f "$build/build.ninja" ]; then
    printf "[constants]\nroot = '%s'\n" "$root" >"$directory/root.ini"
    meson setup "$build" --cross-file "$directory/root.ini" --cross-file packaging/arm64.ini -Dtests=enabled \
        -Dcli=disabled -Dcuda=disabled -Dmpi=disabled -Dpython=disabled
fi
rm -f "$build"/meson-logs/testlog* # an earlier run's results must not be counted

# Compiles what the suites need. A failing test is counted below; it does not keep the others from running.
echo '== tests under emulation, on two cores ten to twenty minutes'
ANNULUS_TEST_QUICK=1 meson test -C "$build" --timeout-multiplier 20 --suite unit --suite capi --suite emulated || true
exec python3 tests/count.py "$build"
