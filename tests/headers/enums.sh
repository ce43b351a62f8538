#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# enums.sh <api directory> accepted|refused <compiler and options>...
# accepted: checks that every enum of the headers has 4 bytes, and in C++ the values of int32_t.
# refused: checks that the compiler refuses every header and names the check of export.h.
set -eu
api=$1
wanted=$2
shift 2

# enum_names <pattern>: prints the names of the headers' enums that have the pattern behind their names.
enum_names() {
    cat "$api"/annulus/*.h | sed -n "s/^ *\(typedef \)\{0,1\}enum \([a-z_]*\)$1.*{.*/\2/p"
}
enums=$(enum_names ' ANNULUS_ENUM_INT32')
[ -n "$enums" ]
[ "$(enum_names '')" = "$enums" ] || { echo "an enum of the headers has no ANNULUS_ENUM_INT32" >&2; exit 1; }

program() {
    echo '#include <annulus/annulus.h>'
    printf '#if __cplusplus >= 201103L\n#include <type_traits>\n#endif\n'
    for enum in $enums; do
        echo "typedef char ${enum}_has_4_bytes[sizeof(enum $enum) == 4 ? 1 : -1];"
        echo "#if __cplusplus >= 201103L"
        echo "static_assert(std::is_same<std::underlying_type<$enum>::type, int32_t>::value, \"$enum\");"
        echo "#endif"
    done
}

if messages=$(program | "$@" "-I$api" -pedantic -fsyntax-only - 2>&1); then
    [ "$wanted" = accepted ]
else
    echo "$messages"
    [ "$wanted" = refused ]
    for header in "$api"/annulus/*.h; do
        if messages=$(printf '#include <annulus/%s>\n' "$(basename "$header")" |
            "$@" "-I$api" -fsyntax-only - 2>&1); then
            echo "$header is accepted; it must be refused" >&2
            exit 1
        fi
        case $messages in *annulus_enums_have_32_bits*) ;; *) echo "$header: $messages" >&2; exit 1 ;; esac
    done
fi
