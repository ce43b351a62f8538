#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# build_deb.sh DIRECTORY: builds the Debian packages of the last commit, source and binaries, into DIRECTORY and checks
# them with lintian. It needs packages of packages.txt (install.sh build cli deb mpi test). It also builds
# libannulus-cuda1 if DEB_BUILD_PROFILES=pkg.annulus.cuda is in the environment and nvcc in PATH.
set -eu
[ $# = 1 ] || {
    echo "usage: build_deb.sh DIRECTORY" >&2
    exit 2
}
mkdir -p "$1"
directory=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
version=$(dpkg-parsechangelog --file packaging/debian/changelog --show-field Version)
upstream=${version%-*}
export_as=annulus-$upstream
git archive --prefix="$export_as/" --output "$scratch/annulus_$upstream.orig.tar.gz" HEAD
tar -C "$scratch" -xzf "$scratch/annulus_$upstream.orig.tar.gz"
cp -r "$scratch/$export_as/packaging/debian" "$scratch/$export_as/debian"

# Builds source and binaries, so that lintian checks both.
cd "$scratch/$export_as"
dpkg-buildpackage --unsigned-source --unsigned-changes --build=full
cd ..
lintian --fail-on error --tag-display-limit 0 ./*.changes
rm -f "$directory"/*annulus*.deb # packages of an older version
cp ./*.deb ./*.dsc ./*.tar.* ./*.buildinfo ./*.changes "$directory"
