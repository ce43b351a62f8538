// SPDX-License-Identifier: Apache-2.0
// The half-precision types as they are stored, and their conversions. Conversions to wider types are exact. Conversions
// from float and from double round once, to the nearest (ties to even).
#pragma once

#include <bit>
#include <concepts>
#include <cstdint>
#include <type_traits>

namespace annulus {

struct bfloat16 {
    std::uint16_t bits;
};

struct float16 {
    std::uint16_t bits;
};

namespace detail {

// The fields of an IEEE-style binary format: sign, exponent, fraction, from the top.
template <class T> struct Format;
template <> struct Format<double> {
    using Bits = std::uint64_t;
    static constexpr int fraction = 52, exponent = 11;
};
template <> struct Format<float> {
    using Bits = std::uint32_t;
    static constexpr int fraction = 23, exponent = 8;
};
template <> struct Format<bfloat16> { static constexpr int fraction = 7, exponent = 8; };
template <> struct Format<float16> { static constexpr int fraction = 10, exponent = 5; };

template <class T> constexpr int bias = (1 << (Format<T>::exponent - 1)) - 1;

// Returns `bits` / 2^shift, rounded to the nearest integer, ties to even; 1 <= shift < width of Bits.
template <class Bits> constexpr Bits shift_to_nearest_even(Bits bits, int shift) {
    const Bits odd = (bits >> shift) & 1;
    return (bits + ((Bits{1} << (shift - 1)) - 1) + odd) >> shift;
}

template <class Half, class Wide> constexpr Half narrow(Wide value) {
    using From = Format<Wide>;
    using To = Format<Half>;
    using Bits = typename From::Bits;
    constexpr int dropped = From::fraction - To::fraction;
    constexpr Bits one = 1;
    constexpr Bits sign_bit = one << (From::fraction + From::exponent);
    constexpr Bits infinity = ((one << From::exponent) - 1) << From::fraction;
    constexpr Bits half_infinity = ((one << To::exponent) - 1) << To::fraction;
    // How much smaller the exponent field becomes in Half, and the smallest magnitude that is normal in both formats.
    constexpr Bits rebias = static_cast<Bits>(bias<Wide> - bias<Half>) << From::fraction;
    constexpr Bits smallest_normal = rebias + (one << From::fraction);

    const Bits bits = std::bit_cast<Bits>(value);
    const Bits magnitude = bits & ~sign_bit;
    Bits result;
    if (magnitude > infinity) {
        // NaN: the upper bits of its payload, and the quiet bit, so that it cannot turn into an infinity.
        const Bits payload = (magnitude >> dropped) & ((one << To::fraction) - 1);
        result = half_infinity | (one << (To::fraction - 1)) | payload;
    } else if (rebias == 0 || magnitude >= smallest_normal) {
        // A carry out of the fraction correctly raises the exponent, up to infinity.
        result = shift_to_nearest_even<Bits>(magnitude - rebias, dropped);
        result = result < half_infinity ? result : half_infinity;
    } else {
        // Subnormal in Half: the significand counts multiples of the smallest subnormal. For shifts past the limit even
        // the rounding bit is zero, and so is the result.
        const int below = bias<Wide> - bias<Half> + 1 - static_cast<int>(magnitude >> From::fraction);
        const Bits significand = (magnitude & ((one << From::fraction) - 1)) | (one << From::fraction);
        const int shift = dropped + below;
        result = shift <= From::fraction + 1 ? shift_to_nearest_even<Bits>(significand, shift) : 0;
    }
    const Bits sign = bits >> (From::fraction + From::exponent) << (To::fraction + To::exponent);
    return Half{static_cast<std::uint16_t>(sign | result)};
}

} // namespace detail

constexpr float to_float(bfloat16 value) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}

constexpr float to_float(float16 value) {
    const std::uint32_t sign = static_cast<std::uint32_t>(value.bits & 0x8000u) << 16;
    const std::uint32_t magnitude = value.bits & 0x7fffu;
    std::uint32_t wide;
    if (magnitude < 0x0400u) // zero or subnormal: a multiple of 2^-24, exact in float
        wide = std::bit_cast<std::uint32_t>(static_cast<float>(magnitude) * 0x1p-24f);
    else if (magnitude < 0x7c00u)
        wide = (magnitude << 13) + (static_cast<std::uint32_t>(127 - 15) << 23);
    else // infinity and NaN keep the exponent of all ones
        wide = (magnitude << 13) | 0x7f800000u;
    return std::bit_cast<float>(sign | wide);
}

// Returns the T nearest to `value`, a float or a double. A number that is too large becomes infinity, NaN stays NaN.
template <class T, std::floating_point Wide> constexpr T from_float(Wide value) {
    if constexpr (std::is_floating_point_v<T>)
        return static_cast<T>(value);
    else
        return detail::narrow<T>(value);
}

// Returns a number of any element type as float64, exactly.
constexpr double to_double(double value) {
    return value;
}
constexpr double to_double(float value) {
    return value;
}
constexpr double to_double(bfloat16 value) {
    return to_float(value);
}
constexpr double to_double(float16 value) {
    return to_float(value);
}

} // namespace annulus
