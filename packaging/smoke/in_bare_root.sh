#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# in_bare_root.sh SUITE [PACKAGE]...: makes a root with only the essential packages of SUITE, sudo and the given
# packages. SUITE is bookworm or trixie of Debian, or noble of Ubuntu. In the root, the script runs the commands of
# README.md's section Install on the last commit, and tests what they installed. It leaves out the lines marked
# `instead`.
# It needs root or sudo, debootstrap with the keyring of the distribution (packages.txt, section bare), and 2 GB of
# disk. It exits with 77 if it cannot make such a root.
set -eu
[ $# -ge 1 ] || {
    echo "usage: in_bare_root.sh SUITE [PACKAGE]..." >&2
    exit 2
}
suite=$1
shift
case $suite in
    bookworm | trixie) mirror=http://deb.debian.org/debian components=main keyring=debian-archive-keyring ;;
    noble) mirror=http://archive.ubuntu.com/ubuntu components=main,universe keyring=ubuntu-archive-keyring ;;
    *)
        echo "in_bare_root.sh: suite '$suite'; it must be bookworm, trixie or noble" >&2
        exit 2
        ;;
esac
cd "$(dirname "$0")/../.."
as_root=''
[ "$(id -u)" = 0 ] || as_root=sudo
keyring=/usr/share/keyrings/$keyring.gpg
[ -f "$keyring" ] || {
    echo "in_bare_root.sh: $keyring is missing" >&2
    exit 77
}

scratch=$(mktemp -d)
trap '$as_root rm -rf "$scratch"' EXIT
root=$scratch/root
$as_root debootstrap --variant=minbase --include=sudo --components="$components" --keyring="$keyring" "$suite" "$root" \
    "$mirror" >"$scratch/log" 2>&1 || {
    tail -n 5 "$scratch/log" >&2
    exit 77
}

# Prints the commands between the lines ```sh and ``` of the section. Each line must succeed; `set -e` does not check
# commands before &&.
commands=$(awk '/^## / { wanted = $0 == "## Install" }
    /^```/ { inside = wanted && $0 == "```sh"; next }
    inside && !/# instead/ { print; print "[ $? = 0 ]" }' README.md)
echo "$commands" | grep -q 'meson install' || {
    echo "in_bare_root.sh: README.md has no section Install with commands" >&2
    exit 1
}

$as_root mkdir "$root/annulus"
git -c safe.directory='*' archive HEAD | $as_root tar -C "$root/annulus" -x
$as_root cp packaging/smoke/smoke.c "$root/annulus/program.c"
$as_root cp -L /etc/ssl/certs/ca-certificates.crt "$root/certificates" # this machine's certificates, for pip
echo 'APT::Get::Assume-Yes "true";' | $as_root tee "$root/etc/apt/apt.conf.d/yes" >/dev/null
$as_root tee "$root/commands" >/dev/null <<END
set -eux
cd /annulus
[ -z "$*" ] || { sudo apt-get update; sudo apt-get install $*; }
$commands
./a.out
annulus info
python3 - <<'end'
import annulus, numpy
ones = numpy.ones((1, 100, 1, 8), numpy.float32)
assert numpy.allclose(annulus.attention(ones, ones, ones, branches=[(0, 1)]), 1)
print("annulus", annulus.__version__, "from", annulus.__file__)
end
END

# Mounts and processes end with the namespaces.
# shellcheck disable=SC2016
$as_root unshare --mount --pid --fork --kill-child sh -euc '
    mount -t proc proc "$1/proc"
    mount --rbind /dev "$1/dev"
    exec chroot "$1" env -i HOME=/root LANG=C.UTF-8 PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        PIP_CERT=/certificates sh /commands
' sh "$root" </dev/null
