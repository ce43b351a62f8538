// SPDX-License-Identifier: Apache-2.0
// Division by a number that the host knows, by a multiplication (Granlund and Montgomery, 1994).
#pragma once

#include <bit>
#include <cstdint>

namespace annulus {

// Gives quotients and remainders of 0 <= x < 2^31 by 0 < value < 2^31.
struct FastDivmod {
    int value;
    std::uint32_t multiplier, shift;

    FastDivmod() = default;
    bool operator==(const FastDivmod &) const = default;
    constexpr explicit FastDivmod(int divisor)
        : value(divisor), multiplier(0),
          shift(static_cast<std::uint32_t>(std::bit_width(static_cast<unsigned>(divisor - 1)))) {
        const std::uint64_t d = static_cast<std::uint64_t>(divisor);
        multiplier = static_cast<std::uint32_t>((((std::uint64_t{1} << shift) - d) << 32) / d + 1);
    }

    constexpr int quotient(int x) const {
        const auto u = static_cast<std::uint32_t>(x);
        const auto high = static_cast<std::uint32_t>(std::uint64_t{u} * multiplier >> 32);
        return static_cast<int>((high + u) >> shift);
    }
    // For a negative x the result is unspecified, but the behaviour is defined.
    constexpr int remainder(int x) const {
        return static_cast<int>(static_cast<std::uint32_t>(x) -
                                static_cast<std::uint32_t>(quotient(x)) * static_cast<std::uint32_t>(value));
    }
};

} // namespace annulus
