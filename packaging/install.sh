#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# install.sh SECTION...: installs the missing Debian packages of the given sections of packages.txt.
set -eu
for section; do
    case $section in
    pypi*) echo "install.sh: section $section lists PyPI's packages; pip installs them" >&2 && exit 2 ;;
    esac
done
command -v dpkg-query >/dev/null || exit 0 # not Debian: the build reports what is missing

missing=''
for package in $(sh "$(dirname "$0")/list.sh" "$@"); do
    dpkg-query --show --showformat='${Status}\n' "$package" 2>/dev/null | grep -q '^install ok installed' ||
        missing="$missing $package"
done
[ -n "$missing" ] || exit 0
echo "installing$missing"
as_root=''
[ "$(id -u)" = 0 ] || as_root=sudo
$as_root apt-get update -qq
# shellcheck disable=SC2086
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
