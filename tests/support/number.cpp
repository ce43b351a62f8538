// SPDX-License-Identifier: Apache-2.0
#include "support/number.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <vector>

namespace annulus::test {
namespace {

// A binary floating-point format: 1 sign bit, then the exponent, then `precision` - 1 bits of fraction.
struct Format {
    int precision;
    int min_exponent;  // of a normal number
    double min_normal; // 2^min_exponent
    double overflow;   // the power of two above the greatest finite number
};

Format format_of(annulus_dtype dtype) {
    switch (dtype) {
    case ANNULUS_FLOAT64:
        return {53, -1022, 0x1p-1022, std::numeric_limits<double>::infinity()};
    case ANNULUS_FLOAT32:
        return {24, -126, 0x1p-126, 0x1p128};
    case ANNULUS_BFLOAT16:
        return {8, -126, 0x1p-126, 0x1p128};
    case ANNULUS_FLOAT16:
        return {11, -14, 0x1p-14, 0x1p16};
    case ANNULUS_DTYPE_NONE:
        break;
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
    if (magnitude < format.min_normal) { // in units of the smallest subnormal
        const double units = std::ldexp(magnitude, fraction_bits - format.min_exponent);
        return static_cast<std::uint16_t>(sign | static_cast<std::uint16_t>(units));
    }
    // The exponent field of a double, whose bias is 1023, and the upper bits of its fraction.
    const std::uint64_t upper_bits = std::bit_cast<std::uint64_t>(magnitude) >> (52 - fraction_bits);
    const auto bias = static_cast<std::uint64_t>(1023 + format.min_exponent - 1);
    return static_cast<std::uint16_t>(sign | (upper_bits - (bias << fraction_bits)));
}

double decode_half(Format format, std::uint16_t bits) {
    const int fraction_bits = format.precision - 1;
    const int field = (bits & 0x7fff) >> fraction_bits;
    const int fraction = bits & ((1 << fraction_bits) - 1);
    const double sign = bits & 0x8000 ? -1 : 1;
    if (field == 0x7fff >> fraction_bits)
        return fraction ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
    if (field == 0)
        return sign * std::ldexp(fraction, format.min_exponent - fraction_bits);
    return sign * std::ldexp(fraction + (1 << fraction_bits), field - 1 + format.min_exponent - fraction_bits);
}

// Returns the values of all bit patterns.
std::vector<double> decode_all(Format format) {
    std::vector<double> values;
    for (std::uint32_t bits = 0; bits <= 0xffff; ++bits)
        values.push_back(decode_half(format, static_cast<std::uint16_t>(bits)));
    return values;
}

} // namespace

double round_to(annulus_dtype dtype, double value) {
    if (dtype == ANNULUS_FLOAT64 || value == 0 || !std::isfinite(value))
        return value;
    const Format format = format_of(dtype);
    double rounded;
    if (std::fabs(value) < format.min_normal) {
        // All subnormal numbers have the same last place.
        const int last_place = format.min_exponent - format.precision + 1;
        rounded = std::ldexp(std::nearbyint(std::ldexp(value, -last_place)), last_place);
    } else {
        const int dropped_bits = 53 - format.precision;
        const std::uint64_t last_place = std::uint64_t{1} << dropped_bits;
        std::uint64_t bits = std::bit_cast<std::uint64_t>(value);
        bits += last_place / 2 - 1 + (bits >> dropped_bits & 1); // a carry out of the fraction raises the exponent
        rounded = std::bit_cast<double>(bits & ~(last_place - 1));
    }
    if (std::fabs(rounded) >= format.overflow)
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
    static const std::vector<double> bfloat16 = decode_all(format_of(ANNULUS_BFLOAT16));
    static const std::vector<double> float16 = decode_all(format_of(ANNULUS_FLOAT16));
    return (dtype == ANNULUS_BFLOAT16 ? bfloat16 : float16)[bits];
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
