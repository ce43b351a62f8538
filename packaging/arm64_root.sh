#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# arm64_root.sh DIRECTORY SECTION...: unpacks the arm64 packages of these sections of packages.txt, with what they
# depend on, into DIRECTORY, unless it exists. It installs nothing: it uses an apt with a state of its own, so the
# machine's apt and dpkg do not learn of the other architecture.
set -eu
[ $# -ge 2 ] || {
    echo "usage: arm64_root.sh DIRECTORY SECTION..." >&2
    exit 2
}
root=$1
shift
[ ! -d "$root" ] || exit 0
list=$(sh "$(dirname "$0")/list.sh" "$@")
mkdir -p "$(dirname "$root")"
state=$(cd "$(dirname "$root")" && pwd)/$(basename "$root").apt
part=$root.part
# A run that was killed may have left them.
rm -rf "$state" "$part"
trap 'rm -rf "$state" "$part"' EXIT

# arm64_apt ARGUMENT...: runs apt-get for arm64, as if no package were installed.
arm64_apt() {
    mkdir -p "$state/lists/partial" "$state/archives/partial"
    apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Sandbox::User="$(id -un)" \
        -o Dir::State="$state" -o Dir::State::status=/dev/null -o Dir::Cache="$state" "$@"
}

arm64_apt update
# shellcheck disable=SC2086
arm64_apt install -y --no-install-recommends --download-only $list
for package in "$state"/archives/*.deb; do
    dpkg-deb --extract "$package" "$part"
done
mv "$part" "$root"
