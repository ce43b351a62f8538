#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# languages.sh <source> <compiler and options>...: checks that the source, which uses every macro and enumerator of the
# headers, compiles without a warning.
set -eu
source=$1
shift
"$@" -pedantic -Wall -Wextra -Wconversion -Werror -fsyntax-only "$source"
