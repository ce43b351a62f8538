// SPDX-License-Identifier: Apache-2.0
#include "support/number.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <stdexcept>

namespace annulus::test {
namespace {

// A binary floating-point format: 1 sign bit, then the exponent, then `precision` - 1 bits of fraction.
struct Format {
    int precision;
    int least_exponent;    // of a normal number
    int greatest_exponent; // of a finite number
};

Format format_of(annulus_dtype dtype) {
    switch (dtype) {
    case ANNULUS_FLOAT64:
        return {53, -1022, 1023};
    case ANNULUS_FLOAT32:
        return {24, -126, 127};
    case ANNULUS_BFLOAT16:
        return {8, -126, 127};
    case ANNULUS_FLOAT16:
        return {11, -14, 15};
    }
    throw std::invalid_argument("no such dtype");
}

std::uint16_t encode_half(Format format, double rounded) {
    const std::uint16_t sign = std::signbit(rounded) ? 0x8000 : 0;
    const int fraction_bits = format.precision - 1;
    const double magnitude = std::fabs(rounded);
    const auto exponent_mask = static_cast<std::uint16_t>(0x7fff >> fraction_bits << fraction_bits);
    if (std::isnan(rounded))
        return static_cast<std::uint16_t>(exponent_mask | 1 << (fraction_bits - 1));
    if (std::isinf(rounded))
        return sign | exponent_mask;
    // In units of the smallest subnormal, the encoding of small numbers is their value; every further power of two
    // adds one to the exponent field.
    const int exponent =
        magnitude == 0 ? format.least_exponent : std::max(std::ilogb(magnitude), format.least_exponent);
    const auto significand = static_cast<std::uint32_t>(std::ldexp(magnitude, fraction_bits - exponent));
    const std::uint32_t field = static_cast<std::uint32_t>(exponent - format.least_exponent) << fraction_bits;
    return static_cast<std::uint16_t>(sign | (field + significand));
}

double decode_half(Format format, std::uint16_t bits) {
    const int fraction_bits = format.precision - 1;
    const int field = (bits & 0x7fff) >> fraction_bits;
    const int fraction = bits & ((1 << fraction_bits) - 1);
    const double sign = bits & 0x8000 ? -1 : 1;
    if (field == 0x7fff >> fraction_bits)
        return fraction ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
    if (field == 0)
        return sign * std::ldexp(fraction, format.least_exponent - fraction_bits);
    return sign * std::ldexp(fraction + (1 << fraction_bits), field - 1 + format.least_exponent - fraction_bits);
}

} // namespace

double round_to(annulus_dtype dtype, double value) {
    if (dtype == ANNULUS_FLOAT64 || value == 0 || !std::isfinite(value))
        return value;
    const Format format = format_of(dtype);
    const double least_normal = std::ldexp(1.0, format.least_exponent);
    double rounded;
    if (std::fabs(value) < least_normal) {
        // All subnormal numbers have the same last place.
        const int last_place = format.least_exponent - format.precision + 1;
        rounded = std::ldexp(std::nearbyint(std::ldexp(value, -last_place)), last_place);
    } else {
        const int dropped_bits = 53 - format.precision;
        const std::uint64_t last_place = std::uint64_t{1} << dropped_bits;
        std::uint64_t bits = std::bit_cast<std::uint64_t>(value);
        bits += last_place / 2 - 1 + (bits >> dropped_bits & 1); // a carry out of the fraction raises the exponent
        rounded = std::bit_cast<double>(bits & ~(last_place - 1));
    }
    if (std::fabs(rounded) >= std::ldexp(2.0, format.greatest_exponent))
        return std::copysign(std::numeric_limits<double>::infinity(), value);
    return rounded;
}

void store(annulus_dtype dtype, void *memory, double value) {
    const double rounded = round_to(dtype, value);
    if (dtype == ANNULUS_FLOAT64) {
        std::memcpy(memory, &rounded, sizeof rounded);
    } else if (dtype == ANNULUS_FLOAT32) {
        const auto narrow = static_cast<float>(rounded);
        std::memcpy(memory, &narrow, sizeof narrow);
    } else {
        const std::uint16_t bits = encode_half(format_of(dtype), rounded);
        std::memcpy(memory, &bits, sizeof bits);
    }
}

double load(annulus_dtype dtype, const void *memory) {
    if (dtype == ANNULUS_FLOAT64) {
        double value;
        std::memcpy(&value, memory, sizeof value);
        return value;
    }
    if (dtype == ANNULUS_FLOAT32) {
        float value;
        std::memcpy(&value, memory, sizeof value);
        return value;
    }
    std::uint16_t bits;
    std::memcpy(&bits, memory, sizeof bits);
    return decode_half(format_of(dtype), bits);
}

std::size_t bytes_of(annulus_dtype dtype) {
    return dtype == ANNULUS_FLOAT64 ? 8 : dtype == ANNULUS_FLOAT32 ? 4 : 2;
}

double rounding_unit(annulus_dtype dtype) {
    return std::ldexp(1.0, 1 - format_of(dtype).precision);
}

annulus_dtype statistics_dtype(annulus_dtype dtype) {
    return dtype == ANNULUS_FLOAT64 ? ANNULUS_FLOAT64 : ANNULUS_FLOAT32;
}

} // namespace annulus::test
