// SPDX-License-Identifier: Apache-2.0
// Structs of the C API begin with `size` and grow at their end. A caller that was compiled with another version of the
// headers has a shorter or a longer struct.
#pragma once

#include "core/argument.hpp"
#include "core/error.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <type_traits>

namespace annulus {

// Returns a copy of the caller's struct, with zeros for members that its version lacks. `last` is the last member of
// the struct's first version. Throws if the size is impossible, or if a byte that this version does not know is not
// zero.
template <class Struct, class Member> Struct read_sized(const char *name, const Struct *given, Member Struct::*last) {
    static_assert(std::is_trivially_copyable_v<Struct> && offsetof(Struct, size) == 0);
    // No version will ever be longer. A larger size means that the caller did not set `size`.
    constexpr std::size_t max_bytes = 4096;
    required(given, name);
    Struct copy{};
    const auto *copy_begin = reinterpret_cast<const std::byte *>(&copy);
    const auto *last_end = reinterpret_cast<const std::byte *>(&(copy.*last) + 1);
    const auto min_bytes = static_cast<std::size_t>(last_end - copy_begin);
    const std::size_t size = given->size;
    if (size < min_bytes || size > max_bytes)
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

// Writes a copy that read_sized() made back to the caller's struct, as far as it reaches.
template <class Struct> void write_sized(Struct *given, const Struct &result) {
    std::memcpy(given, &result, std::min(given->size, sizeof(Struct)));
}

} // namespace annulus
