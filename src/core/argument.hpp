// SPDX-License-Identifier: Apache-2.0
// Checks of plain arguments. Each throws Error(ANNULUS_ERROR_ARGUMENT) with the argument's name and value.
#pragma once

#include "core/dtype_number.hpp"
#include "core/error.hpp"
#include "core/known.hpp"

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

namespace annulus {

inline void check_not_null(const char *name, const void *pointer) {
    if (!pointer)
        throw Error(ANNULUS_ERROR_ARGUMENT, "%s is NULL; it must not be", name);
}

template <class T> T &required(T *pointer, const char *name) {
    check_not_null(name, pointer);
    return *pointer;
}

inline void check_at_least(const char *name, std::int64_t value, std::int64_t least) {
    if (value < least)
        throw Error(ANNULUS_ERROR_ARGUMENT, "%s is %lld; it must be at least %lld", name, static_cast<long long>(value),
                    static_cast<long long>(least));
}

inline void check_between(const char *name, std::int64_t value, std::int64_t least, std::int64_t most) {
    if (least == most && value != least)
        throw Error(ANNULUS_ERROR_ARGUMENT, "%s is %lld; it must be %lld", name, static_cast<long long>(value),
                    static_cast<long long>(least));
    if (value < least || value > most)
        throw Error(ANNULUS_ERROR_ARGUMENT, "%s is %lld; it must be from %lld to %lld", name,
                    static_cast<long long>(value), static_cast<long long>(least), static_cast<long long>(most));
}

// Checks an enumeration whose values are numbered without gaps.
template <class Enum> void check_enum(const char *name, Enum value) {
    check_between(name, enum_value(value), known(value).first, known(value).last);
}

// Returns a caller's text for a message of one line: its first 64 bytes, with '?' for what is not printable ASCII.
inline std::string shown_text(std::string_view text) {
    std::string shown(text.substr(0, 64));
    std::ranges::replace_if(
        shown, [](unsigned char c) { return c < ' ' || c > '~'; }, '?');
    return shown;
}

} // namespace annulus
