#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# list.sh SECTION...: prints the packages of the given sections of packages.txt.
set -eu
exec awk -v sections=" $* " '
    /^# [a-z0-9-]+:/ { sub(":", "", $2); wanted = index(sections, " " $2 " ") }
    /^[^#]/ && wanted' "$(dirname "$0")/packages.txt"
