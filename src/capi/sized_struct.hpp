// SPDX-License-Identifier: Apache-2.0
// Structs that begin with `size` and grow at their end: a caller that was compiled with another version of the headers
// has a shorter or a longer one.
#pragma once

#include "core/argument.hpp"
#include "core/error.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <type_traits>

namespace annulus {

// A copy of the caller's struct, with zeros for what its version does not have. `last` is the last member that the
// struct's first version had. Throws unless the size is possible and the bytes this version does not know are zero.
template <class Struct, class Member> Struct read_sized(const char *name, const Struct *given, Member Struct::*last) {
    static_assert(std::is_trivially_copyable_v<Struct> && offsetof(Struct, size) == 0);
    // No version will ever be that long; a larger size is one that was not set.
    constexpr std::size_t most = 4096;
    required(given, name);
    Struct copy{};
    const auto *copy_begin = reinterpret_cast<const std::byte *>(&copy);
    const auto least =
        static_cast<std::size_t>(reinterpret_cast<const std::byte *>(&(copy.*last)) - copy_begin) + sizeof(Member);
    const std::size_t size = given->size;
    if (size < least || size > most)
        throw Error(ANNULUS_ERROR_ARGUMENT, "size of %s is %zu; it must be the struct's size, here %zu", name, size,
                    sizeof(Struct));
    const auto *bytes = reinterpret_cast<const std::byte *>(given);
    for (std::size_t i = sizeof(Struct); i < size; ++i)
        if (bytes[i] != std::byte{0})
            throw Error(ANNULUS_ERROR_ARGUMENT,
                        "byte %zu of %s is not zero; this version of annulus knows the first %zu bytes only", i, name,
                        sizeof(Struct));
    std::memcpy(&copy, given, std::min(size, sizeof(Struct)));
    return copy;
}

// Hands back what read_sized() copied, as far as the caller's struct reaches.
template <class Struct> void write_sized(Struct *given, const Struct &result) {
    std::memcpy(given, &result, std::min(given->size, sizeof(Struct)));
}

} // namespace annulus
