#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# alone.sh <header> <compiler and options>...: the header compiles with nothing before it, and twice.
set -eu
header=$1
shift
printf '#include <annulus/%s>\n#include <annulus/%s>\nextern int something;\n' "$header" "$header" |
    "$@" -pedantic -Wall -Wextra -Werror -fsyntax-only -
