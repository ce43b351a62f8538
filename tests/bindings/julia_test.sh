#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# julia_test.sh FILE: runs a test file of the Julia package. Exits with 77 (skipped) without Julia.
set -eu
command -v julia >/dev/null || {
    echo "there is no julia"
    exit 77
}
exec julia --startup-file=no --project="$(dirname "$1")/.." "$1"
