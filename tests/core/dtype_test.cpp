// SPDX-License-Identifier: Apache-2.0
// Half-precision conversions against float64 arithmetic. Tests the value of every bit pattern by the definition of the
// format, and rounding around the middle of every two neighbours.
#include "core/dtype.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>

namespace {

using annulus::bfloat16;
using annulus::float16;
using annulus::from_float;
using annulus::to_double;
using annulus::to_float;

constexpr double infinity = std::numeric_limits<double>::infinity();

template <class T> struct Fields;
template <> struct Fields<bfloat16> { static constexpr int fraction = 7, exponent = 8; };
template <> struct Fields<float16> { static constexpr int fraction = 10, exponent = 5; };

// Returns the positive number with these bits, in float64, by the definition of the format. For the bits of infinity it
// returns the number that would follow the largest finite one. There rounding begins to overflow.
template <class T> double magnitude(int bits) {
    const int fraction = bits & ((1 << Fields<T>::fraction) - 1);
    const int exponent = bits >> Fields<T>::fraction;
    const int bias = (1 << (Fields<T>::exponent - 1)) - 1;
    const int significand = exponent == 0 ? fraction : fraction + (1 << Fields<T>::fraction);
    return std::ldexp(significand, std::max(exponent, 1) - bias - Fields<T>::fraction);
}

template <class T> constexpr int infinity_bits = ((1 << Fields<T>::exponent) - 1) << Fields<T>::fraction;

template <class T> class Half : public testing::Test {};
using Types = testing::Types<bfloat16, float16>;
TYPED_TEST_SUITE(Half, Types, );

TYPED_TEST(Half, EveryPatternHasItsValueAndComesBack) {
    for (int bits = 0; bits < 1 << 16; ++bits) {
        const TypeParam half{static_cast<std::uint16_t>(bits)};
        const float value = to_float(half);
        const double sign = bits >> 15 ? -1 : 1;
        const int positive = bits & 0x7fff;
        ASSERT_EQ(std::signbit(value), sign < 0);
        if (positive > infinity_bits<TypeParam>) {
            ASSERT_TRUE(std::isnan(value)) << bits;
            // A signalling NaN may come back quiet.
            const int quiet = bits | 1 << (Fields<TypeParam>::fraction - 1);
            ASSERT_EQ(from_float<TypeParam>(value).bits, quiet);
            ASSERT_EQ(from_float<TypeParam>(to_double(half)).bits, quiet);
            continue;
        }
        ASSERT_EQ(value, sign * (positive == infinity_bits<TypeParam> ? infinity : magnitude<TypeParam>(positive)));
        ASSERT_EQ(to_double(half), value);
        ASSERT_EQ(from_float<TypeParam>(value).bits, bits);
        ASSERT_EQ(from_float<TypeParam>(to_double(half)).bits, bits);
    }
}

// Between two neighbours the middle rounds to the even one, and every other number to the nearer one. The middle is a
// float for both formats; float64 also has numbers that are much closer to it.
TYPED_TEST(Half, RoundsToTheNearestEven) {
    for (int bits = 0; bits < infinity_bits<TypeParam>; ++bits)
        for (const int sign : {0, 0x8000}) {
            const double factor = sign ? -1 : 1;
            const double low = factor * magnitude<TypeParam>(bits), high = factor * magnitude<TypeParam>(bits + 1);
            const double middle = (low + high) / 2;
            const float middle_float = static_cast<float>(middle);
            ASSERT_EQ(middle_float, middle);
            const int even = bits + (bits & 1);
            ASSERT_EQ(from_float<TypeParam>(middle).bits, sign | even) << bits;
            ASSERT_EQ(from_float<TypeParam>(middle_float).bits, sign | even) << bits;
            const double above = factor * infinity;
            ASSERT_EQ(from_float<TypeParam>(std::nextafter(middle, 0.0)).bits, sign | bits);
            ASSERT_EQ(from_float<TypeParam>(std::nextafter(middle, above)).bits, sign | (bits + 1));
            ASSERT_EQ(from_float<TypeParam>(std::nextafter(middle_float, 0.0f)).bits, sign | bits);
            ASSERT_EQ(from_float<TypeParam>(std::nextafter(middle_float, static_cast<float>(above))).bits,
                      sign | (bits + 1));
        }
}

TYPED_TEST(Half, OutsideTheRange) {
    for (const int sign : {0, 0x8000}) {
        const double factor = sign ? -1 : 1;
        for (const double huge : {infinity, std::numeric_limits<double>::max(), 1e39})
            EXPECT_EQ(from_float<TypeParam>(factor * huge).bits, sign | infinity_bits<TypeParam>);
        EXPECT_EQ(from_float<TypeParam>(static_cast<float>(factor * infinity)).bits, sign | infinity_bits<TypeParam>);
        for (const double tiny : {0.0, std::numeric_limits<double>::denorm_min(), 1e-300, 1e-42})
            EXPECT_EQ(from_float<TypeParam>(factor * tiny).bits, sign);
        EXPECT_EQ(from_float<TypeParam>(static_cast<float>(factor * 0.0)).bits, sign);
    }
    // A NaN whose payload lies in the dropped bits alone.
    EXPECT_TRUE(std::isnan(to_float(from_float<TypeParam>(std::bit_cast<float>(0x7f800001u)))));
    EXPECT_TRUE(std::isnan(to_float(from_float<TypeParam>(std::bit_cast<double>(0x7ff0000000000001u)))));
}

// float64 is rounded once. Rounded to float32 first, this number would be a tie and round the other way.
TEST(Dtype, DoubleIsRoundedOnce) {
    EXPECT_EQ(from_float<bfloat16>(1 + 0x1p-8 + 0x1p-40).bits, 0x3f81);
    EXPECT_EQ(from_float<float16>(1 + 0x1p-11 + 0x1p-40).bits, 0x3c01);
    EXPECT_EQ(from_float<bfloat16>(static_cast<float>(1 + 0x1p-8 + 0x1p-40)).bits, 0x3f80);
}

TEST(Dtype, WorksAtCompileTime) {
    static_assert(from_float<float16>(65520.0f).bits == 0x7c00);
    static_assert(from_float<bfloat16>(-2.0).bits == 0xc000);
    static_assert(to_float(float16{0x0001}) == 0x1p-24f);
    static_assert(from_float<float>(0.1) == 0.1f && from_float<double>(0.1f) == 0.1f);
}

#ifdef __FLT16_MANT_DIG__
#ifdef __aarch64__
using CompilersFloat16 = __fp16; // on this machine g++ knows _Float16 only from version 13 on
#else
using CompilersFloat16 = _Float16;
#endif
TEST(Dtype, EqualsTheCompilersFloat16) {
    const auto bits_of = [](auto value) {
        const auto half = static_cast<CompilersFloat16>(value);
        std::uint16_t bits;
        std::memcpy(&bits, &half, sizeof bits);
        return bits;
    };
    std::mt19937_64 random(1);
    for (int sample = 0; sample < 2'000'000; ++sample) {
        const std::uint64_t bits = random();
        const float single = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
        if (!std::isnan(single)) {
            ASSERT_EQ(from_float<float16>(single).bits, bits_of(single)) << single;
        }
        // With random exponents of float64 nearly all would overflow or vanish. So take exponents around float16's.
        const double wide = std::ldexp(static_cast<double>(bits) - 0x1p63, static_cast<int>(bits % 48) - 92);
        ASSERT_EQ(from_float<float16>(wide).bits, bits_of(wide)) << wide;
    }
}
#endif

} // namespace
