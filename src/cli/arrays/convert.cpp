// SPDX-License-Identifier: Apache-2.0
// Every number goes through double, which holds the values of all four dtypes exactly, so it is rounded once.
#include "cli/arrays/convert.hpp"

#include "cli/arrays/dtype_bytes.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace annulus::cli {

namespace {

// Returns 2^exponent. The exponent must be that of a normal double.
double power_of_two(int exponent) {
    return std::bit_cast<double>(static_cast<std::uint64_t>(1023 + exponent) << 52);
}

// A 16-bit float: sign, 15 - fraction_bits exponent bits, fraction_bits fraction bits.
template <int fraction_bits> struct Half {
    static constexpr int bias = (1 << (14 - fraction_bits)) - 1;
    static constexpr std::uint16_t infinity = static_cast<std::uint16_t>(0x7FFF >> fraction_bits << fraction_bits);
    std::uint16_t code;
};
using Bfloat16 = Half<7>;
using Float16 = Half<10>;

double widen(double value) {
    return value;
}
double widen(float value) {
    return static_cast<double>(value);
}
template <int fraction_bits> double widen(Half<fraction_bits> value) {
    using H = Half<fraction_bits>;
    const int magnitude = value.code & 0x7FFF;
    const int exponent = magnitude >> fraction_bits;
    const int fraction = magnitude & ((1 << fraction_bits) - 1);
    double result;
    if (magnitude >= H::infinity)
        result = fraction ? std::numeric_limits<double>::quiet_NaN() : std::numeric_limits<double>::infinity();
    else if (exponent == 0)
        result = fraction * power_of_two(1 - H::bias - fraction_bits);
    else
        result = (fraction + (1 << fraction_bits)) * power_of_two(exponent - H::bias - fraction_bits);
    return value.code & 0x8000 ? -result : result;
}

void narrow(double value, double &result) {
    result = value;
}
void narrow(double value, float &result) {
    result = static_cast<float>(value);
}
template <int fraction_bits> void narrow(double value, Half<fraction_bits> &result) {
    using H = Half<fraction_bits>;
    const int sign = std::signbit(value) ? 0x8000 : 0;
    int magnitude;
    if (std::isnan(value)) {
        magnitude = H::infinity | 1 << (fraction_bits - 1);
    } else if (std::abs(value) >= power_of_two(H::bias + 1)) {
        magnitude = H::infinity;
    } else {
        // The value in units of the last place; a carry out of the fraction raises the exponent as it should.
        const int own_exponent = static_cast<int>(std::bit_cast<std::uint64_t>(value) >> 52 & 0x7FF) - 1023;
        const int exponent = std::max(own_exponent, 1 - H::bias);
        const int units = static_cast<int>(std::nearbyint(std::abs(value) * power_of_two(fraction_bits - exponent)));
        magnitude = ((exponent + H::bias - 1) << fraction_bits) + units;
    }
    result.code = static_cast<std::uint16_t>(sign | magnitude);
}

template <class To, class From> void convert_all(void *target, const void *source, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
        From from;
        To to;
        std::memcpy(&from, static_cast<const std::byte *>(source) + i * sizeof from, sizeof from);
        narrow(widen(from), to);
        std::memcpy(static_cast<std::byte *>(target) + i * sizeof to, &to, sizeof to);
    }
}

// Calls `visitor` with a number of the C++ type of a dtype.
template <class Visitor> void visit(annulus_dtype dtype, const Visitor &visitor) {
    switch (dtype) {
    case ANNULUS_FLOAT64:
        return visitor(double{});
    case ANNULUS_FLOAT32:
        return visitor(float{});
    case ANNULUS_BFLOAT16:
        return visitor(Bfloat16{});
    case ANNULUS_FLOAT16:
        return visitor(Float16{});
    case ANNULUS_DTYPE_NONE:
        break;
    }
}

} // namespace

void convert(annulus_dtype to, void *target, annulus_dtype from, const void *source, std::size_t count) {
    if (count == 0) // memcpy() takes no null pointers even then
        return;
    if (to == from) {
        std::memcpy(target, source, count * static_cast<std::size_t>(dtype_bytes(to)));
        return;
    }
    visit(to, [&](auto to_type) {
        visit(from,
              [&](auto from_type) { convert_all<decltype(to_type), decltype(from_type)>(target, source, count); });
    });
}

} // namespace annulus::cli
