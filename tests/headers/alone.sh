#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# alone.sh <header> <compiler and options>...: checks that the header compiles without other headers before it, and
# twice in one file.
set -eu
header=$1
shift
printf '#include <annulus/%s>\n#include <annulus/%s>\nextern int something;\n' "$header" "$header" |
    "$@" -pedantic -Wall -Wextra -Werror -fsyntax-only -
