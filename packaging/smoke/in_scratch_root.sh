#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# in_scratch_root.sh DIRECTORY: installs the packages in DIRECTORY (build_deb.sh) by dpkg on a copy of this machine's
# file system. It runs smoke.sh there, then removes and purges the packages. The copy is an overlay in memory, so the
# machine does not change. The sources and /tmp are hidden in it.
# It needs root or sudo, and the dependencies of the packages in DIRECTORY. It exits with 77 if overlays cannot be
# mounted, as in most containers.
set -eu
[ $# = 1 ] || {
    echo "usage: in_scratch_root.sh DIRECTORY" >&2
    exit 2
}
directory=$(cd "$1" && pwd)
smoke=$(cd "$(dirname "$0")" && pwd)
sources=$(cd "$smoke/../.." && pwd)
as_root=''
[ "$(id -u)" = 0 ] || as_root=sudo

$as_root unshare --mount true || exit 77

# All mounts end with the namespace.
# shellcheck disable=SC2016
exec $as_root unshare --mount sh -euc '
    directory=$1 smoke=$2 sources=$3
    base=$(mktemp -d)
    trap "umount -l $base && rmdir $base" EXIT
    mount -t tmpfs annulus "$base"
    mkdir "$base/upper" "$base/work" "$base/root" "$base/empty"
    mount -t overlay annulus -o "lowerdir=/,upperdir=$base/upper,workdir=$base/work" "$base/root" || exit 77
    cp -r "$directory" "$base/packages"
    cp -r "$smoke" "$base/smoke"
    for name in proc dev; do
        mount --rbind "/$name" "$base/root/$name"
    done
    [ ! -d "$base/root/$sources" ] || mount --bind "$base/empty" "$base/root/$sources"
    mount -t tmpfs annulus "$base/root/tmp"
    mv "$base/packages" "$base/smoke" "$base/root/tmp"

    chroot "$base/root" sh -euc "
        export DEBIAN_FRONTEND=noninteractive
        rm -f /tmp/packages/*-dbgsym_*
        dpkg --install /tmp/packages/*.deb
        sh /tmp/smoke/smoke.sh
        dpkg --purge libannulus-cuda1 libannulus-mpi1 python3-annulus annulus-tools libannulus-dev libannulus1
        [ ! -e /usr/lib/python3/dist-packages/annulus ]
    "
' sh "$directory" "$smoke" "$sources"
