#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# statuses.sh <api directory> <compiler and options>...: checks that the compiler warns if a program ignores a status
# that it must look at. Otherwise it must not warn.
set -eu
api=$1
shift

# Every function that returns a status is marked with ANNULUS_API_STATUS, except one.
unmarked=$(cat "$api"/annulus/*.h | sed -n 's/^ANNULUS_API annulus_status \([a-z_]*\)(.*/\1/p')
[ "$unmarked" = annulus_comm_abort ] || { echo "without ANNULUS_API_STATUS: $unmarked" >&2; exit 1; }

# compiles <statement> <compiler and options>...: checks that the statement compiles without a warning.
compiles() {
    statement=$1
    shift
    {
        echo '#include <annulus/annulus.h>'
        echo 'void use(annulus_config *config, annulus_comm *comm);'
        echo "void use(annulus_config *config, annulus_comm *comm) { (void)config; (void)comm; $statement }"
    } | "$@" "-I$api" -Wall -Wextra -Werror -c -o /dev/null -
}

compiles 'if (annulus_config_set_causal(config, 1) != ANNULUS_OK) annulus_config_destroy(config);' "$@"
compiles 'annulus_comm_abort(comm);' "$@"
if messages=$(compiles 'annulus_config_set_causal(config, 1);' "$@" 2>&1); then
    echo "no warning of a status that nobody looks at" >&2
    exit 1
fi
case $messages in *unused*) ;; *) echo "$messages" >&2; exit 1 ;; esac
# If the language has [[nodiscard]], a program can ignore a status explicitly.
case " $* " in *c++20* | *c23*) compiles '(void)annulus_config_set_causal(config, 1);' "$@" ;; esac
