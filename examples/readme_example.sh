#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# readme_example.sh README PROGRAM: the README's first C block must be the program, which is compiled and run as a test.
set -eu
awk '/^```$/ { inside = 0 } inside { print } /^```c$/ && !seen++ { inside = 1 }' "$1" | diff - "$2"
