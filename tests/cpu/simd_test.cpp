// SPDX-License-Identifier: Apache-2.0
// The vector kernels of every instruction set of this machine, not only of the set that it would choose, against the
// same operations in float64.
#include "cpu/simd/simd.hpp"

#include "support/number.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <ostream>
#include <random>
#include <string>
#include <vector>

namespace annulus {

namespace simd_baseline {
extern const VectorKernels<float> float_kernels;
extern const VectorKernels<double> double_kernels;
} // namespace simd_baseline
#if defined(__x86_64__)
namespace simd_avx2 {
extern const VectorKernels<float> float_kernels;
extern const VectorKernels<double> double_kernels;
} // namespace simd_avx2
namespace simd_avx512 {
extern const VectorKernels<float> float_kernels;
extern const VectorKernels<double> double_kernels;
} // namespace simd_avx512
#endif

namespace test {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

struct Set {
    std::string name;
    const VectorKernels<float> *single_precision;
    const VectorKernels<double> *double_precision;
};

std::ostream &operator<<(std::ostream &out, const Set &set) {
    return out << set.name;
}

std::vector<Set> sets() {
    std::vector<Set> all = {{"baseline", &simd_baseline::float_kernels, &simd_baseline::double_kernels}};
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        all.push_back({"avx2", &simd_avx2::float_kernels, &simd_avx2::double_kernels});
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("fma"))
        all.push_back({"avx512", &simd_avx512::float_kernels, &simd_avx512::double_kernels});
#endif
    return all;
}

// Runs a test with both types of a set.
class Simd : public testing::TestWithParam<Set> {
  protected:
    template <class Test> void on_both_types(const Test &test) const {
        test(*GetParam().single_precision, ANNULUS_FLOAT32);
        test(*GetParam().double_precision, ANNULUS_FLOAT64);
    }
};

template <class T> std::vector<T> random_values(std::size_t count, double deviation, unsigned seed) {
    std::mt19937 generator(seed);
    std::normal_distribution<double> normal(0, deviation);
    std::vector<T> values(count);
    for (T &value : values)
        value = static_cast<T>(normal(generator));
    return values;
}

TEST_P(Simd, LoadsEveryHalf) {
    for (const auto dtype : {ANNULUS_BFLOAT16, ANNULUS_FLOAT16})
        for (unsigned first = 0; first < 65536; first += 8) {
            std::uint16_t halves[8];
            float loaded[8];
            bool finite = true;
            for (unsigned i = 0; i < 8; ++i) {
                halves[i] = static_cast<std::uint16_t>(first + i);
                finite &= std::isfinite(load(dtype, &halves[i]));
            }
            ASSERT_EQ(GetParam().single_precision->load_row(dtype, halves, 8, loaded), finite);
            for (unsigned i = 0; i < 8; ++i) {
                const double wanted = load(dtype, &halves[i]);
                ASSERT_TRUE(loaded[i] == wanted || (std::isnan(loaded[i]) && std::isnan(wanted))) << first + i;
            }
        }
}

TEST_P(Simd, StoresHalvesRoundedToNearestEven) {
    std::mt19937 generator(1);
    for (const auto dtype : {ANNULUS_BFLOAT16, ANNULUS_FLOAT16})
        for (int repeat = 0; repeat < 50000; ++repeat) {
            float values[8];
            for (float &value : values) { // any bits; every other one close to the middle of two halves
                auto bits = static_cast<std::uint32_t>(generator());
                if (generator() & 1) {
                    const std::uint32_t below = dtype == ANNULUS_BFLOAT16 ? 0xFFFF : 0x1FFF;
                    bits = (bits & ~below) + (below + 1) / 2 + static_cast<std::uint32_t>(generator() % 3) - 1;
                }
                if (dtype == ANNULUS_FLOAT16 && generator() & 1) // where float16 is not an infinity
                    bits = (bits & 0x8FFFFFFF) | 0x30000000;
                value = std::bit_cast<float>(bits);
            }
            std::uint16_t stored[8], wanted[8];
            GetParam().single_precision->store_row(dtype, values, 1, 8, stored);
            for (int i = 0; i < 8; ++i) {
                store(dtype, &wanted[i], static_cast<double>(values[i]));
                const bool both_nan = std::isnan(values[i]) && std::isnan(load(dtype, &stored[i]));
                ASSERT_TRUE(both_nan || stored[i] == wanted[i]) << values[i] << " in " << annulus_dtype_name(dtype);
            }
        }
}

TEST_P(Simd, RowArithmetic) {
    on_both_types([]<class T>(const VectorKernels<T> &kernels, annulus_dtype dtype) {
        const double unit = rounding_unit(dtype);
        for (int n = 8; n <= 256; n += 8) {
            const std::vector<T> a = random_values<T>(n, 1, n), b = random_values<T>(n, 1, n + 1);
            std::vector<T> sum = a, scaled = a, copy(n), stored(n);
            kernels.add(sum.data(), b.data(), n);
            kernels.scale(scaled.data(), T{3}, n);
            EXPECT_TRUE(kernels.load_row(dtype, a.data(), n, copy.data()));
            kernels.store_row(dtype, a.data(), T{0.5}, n, stored.data());
            double dot = 0, magnitude = 0;
            for (int i = 0; i < n; ++i) {
                ASSERT_EQ(sum[i], a[i] + b[i]);
                ASSERT_EQ(scaled[i], a[i] * 3);
                ASSERT_EQ(copy[i], a[i]);
                ASSERT_EQ(stored[i], a[i] / 2);
                dot += static_cast<double>(a[i]) * static_cast<double>(b[i]);
                magnitude += std::fabs(static_cast<double>(a[i]) * static_cast<double>(b[i]));
            }
            ASSERT_NEAR(kernels.dot(a.data(), b.data(), n), dot, n * unit * magnitude);
            for (const double special : {nan, infinity, -infinity}) {
                std::vector<T> row = a;
                row[n - 1] = static_cast<T>(special);
                EXPECT_FALSE(kernels.load_row(dtype, row.data(), n, copy.data()));
            }
        }
    });
}

// Row-major A (or, stored transposed, [k, a_column]) times packed B, at sizes around those of the kernels' tiles.
// Memory behind C must not change.
TEST_P(Simd, ProductsOfTiles) {
    on_both_types([]<class T>(const VectorKernels<T> &kernels, annulus_dtype dtype) {
        const double unit = rounding_unit(dtype);
        unsigned seed = 0;
        for (const int m : {0, 1, 3, 4, 5, 6, 7, 11, 12, 13, 23, 24, 25, 32, 128})
            for (const int n : {8, 16, 24, 32, 40, 56, 72, 256})
                for (const int k : {1, 2, 8, 31, 128})
                    for (const bool adds : {false, true}) {
                        const bool transposed = ++seed % 2 == 0;
                        const int pitch = (transposed ? m : k) + static_cast<int>(seed % 3);
                        const std::vector<T> a = random_values<T>((transposed ? k : m) * pitch, 1, seed);
                        const std::vector<T> b = random_values<T>(k * n, 1, seed + 1);
                        const std::vector<T> before = random_values<T>(m * n + 8, 1, seed + 2);
                        std::vector<T> c = before;
                        const T factor = adds ? T{1} : T{-3};
                        const int a_row = transposed ? 1 : pitch, a_column = transposed ? pitch : 1;
                        kernels.multiply({m, n, k, a.data(), a_row, a_column, b.data(), c.data(), adds, factor});
                        for (int i = 0; i < m * n; ++i) {
                            double sum = 0, magnitude = 0;
                            for (int x = 0; x < k; ++x) {
                                const double term = static_cast<double>(a[i / n * a_row + x * a_column]) *
                                                    static_cast<double>(b[x * n + i % n]);
                                sum += term;
                                magnitude += std::fabs(term);
                            }
                            const double start = adds ? static_cast<double>(before[i]) : 0;
                            ASSERT_NEAR(c[i], static_cast<double>(factor) * sum + start,
                                        (k + 2) * unit * (3 * magnitude + std::fabs(start)))
                                << m << " x " << n << " x " << k << ", element " << i;
                        }
                        ASSERT_TRUE(std::equal(c.begin() + m * n, c.end(), before.begin() + m * n));
                    }
    });
}

TEST_P(Simd, MaskHidesKeysOutsideABand) {
    on_both_types([]<class T>(const VectorKernels<T> &kernels, annulus_dtype) {
        constexpr int keys = 9;
        std::vector<T> scores = random_values<T>(keys * group_columns, 1, 1);
        scores[group_columns] = static_cast<T>(nan); // key 1, query 0: masked like any other
        const std::vector<T> before = scores;
        std::int64_t key_positions[keys], query_positions[group_columns];
        for (int key = 0; key < keys; ++key)
            key_positions[key] = (std::int64_t{1} << 40) + 3 * key;
        for (int c = 0; c < group_columns; ++c)
            query_positions[c] = (std::int64_t{1} << 40) + c;
        for (const T value : {static_cast<T>(-infinity), T{0}}) {
            for (const auto &[behind, ahead] : std::vector<std::pair<int, int>>{{1 << 30, 0}, {4, 0}, {0, 0}, {5, 7}}) {
                scores = before;
                kernels.mask(scores.data(), keys, key_positions, query_positions, behind, ahead, value);
                for (int i = 0; i < keys * group_columns; ++i) {
                    const int distance = 3 * (i / group_columns) - i % group_columns;
                    const T wanted = distance < -behind || distance > ahead ? value : before[i];
                    ASSERT_TRUE(scores[i] == wanted || (std::isnan(scores[i]) && std::isnan(wanted)));
                }
            }
        }
    });
}

TEST_P(Simd, MaskHidesKeysOfTheQuerysClass) {
    on_both_types([]<class T>(const VectorKernels<T> &kernels, annulus_dtype) {
        constexpr int keys = 9;
        std::vector<T> scores = random_values<T>(keys * group_columns, 1, 1);
        scores[2] = static_cast<T>(nan); // key 0, query 2: hidden like any other
        const std::vector<T> before = scores;
        std::int64_t key_classes[keys], query_classes[group_columns];
        for (int key = 0; key < keys; ++key)
            key_classes[key] = (std::int64_t{1} << 40) + key % 4;
        for (int c = 0; c < group_columns; ++c)
            query_classes[c] = c % 5 == 0 ? -1 : (std::int64_t{1} << 40) + (c + 2) % 4;
        for (const T value : {static_cast<T>(-infinity), T{0}}) {
            kernels.mask_equal(scores.data(), keys, key_classes, query_classes, value);
            for (int i = 0; i < keys * group_columns; ++i) {
                const int key = i / group_columns, c = i % group_columns;
                ASSERT_EQ(scores[i], c % 5 != 0 && key % 4 == (c + 2) % 4 ? value : before[i]);
            }
        }
    });
}

TEST_P(Simd, MaskHidesKeysOfTheQuerysClassInABand) {
    on_both_types([]<class T>(const VectorKernels<T> &kernels, annulus_dtype) {
        constexpr int keys = 9;
        const std::vector<T> before = random_values<T>(keys * group_columns, 1, 1);
        std::int64_t key_classes[keys], key_positions[keys], query_classes[group_columns],
            query_positions[group_columns];
        for (int key = 0; key < keys; ++key) {
            key_classes[key] = key % 3;
            key_positions[key] = (std::int64_t{1} << 40) + 3 * key;
        }
        for (int c = 0; c < group_columns; ++c) {
            query_classes[c] = c % 5 == 0 ? -1 : c % 3;
            query_positions[c] = (std::int64_t{1} << 40) + c;
        }
        for (const auto &[behind, ahead] : std::vector<std::pair<int, int>>{{1 << 30, 0}, {4, 0}, {0, 0}, {5, 7}}) {
            std::vector<T> scores = before;
            kernels.mask_equal_near(scores.data(), keys, key_classes, query_classes, key_positions, query_positions,
                                    behind, ahead, T{0});
            for (int i = 0; i < keys * group_columns; ++i) {
                const int key = i / group_columns, c = i % group_columns, distance = 3 * key - c;
                const bool is_hidden = c % 5 != 0 && key % 3 == c % 3 && distance >= -behind && distance <= ahead;
                ASSERT_EQ(scores[i], is_hidden ? T{0} : before[i]);
            }
        }
    });
}

TEST_P(Simd, RunningSoftmax) {
    on_both_types([]<class T>(const VectorKernels<T> &kernels, annulus_dtype dtype) {
        const double unit = rounding_unit(dtype);
        std::vector<T> m(group_columns, static_cast<T>(-infinity)), l(group_columns, T{0}), correction(group_columns);
        std::vector<double> all_scores[group_columns];
        unsigned seed = 0;
        for (const int keys : {1, 3, 4, 17, 64}) {
            std::vector<T> scores = random_values<T>(keys * group_columns, 20, ++seed);
            for (int key = 0; key < keys; ++key) {
                scores[key * group_columns] = static_cast<T>(-infinity);                       // never a key
                scores[key * group_columns + 1] = keys < 4 ? static_cast<T>(-infinity) : T{1}; // no key at first
                scores[key * group_columns + 2] = keys < 4 ? T{1} : static_cast<T>(-infinity); // no key later on
                scores[key * group_columns + 3] = static_cast<T>(dtype == ANNULUS_FLOAT32 ? 5e3 : 5e5); // far from 0
            }
            const std::vector<T> given = scores, m_before = m;
            const bool moved = kernels.softmax(scores.data(), keys, m.data(), l.data(), correction.data());
            bool any_correction = false;
            for (int c = 0; c < group_columns; ++c) {
                for (int key = 0; key < keys; ++key)
                    all_scores[c].push_back(given[key * group_columns + c]);
                const double greatest = *std::max_element(all_scores[c].begin(), all_scores[c].end());
                const double base = greatest == -infinity ? 0 : greatest;
                double sum = 0;
                for (const double score : all_scores[c])
                    sum += std::exp2(score - base);
                // The difference of a score and the maximum is rounded before it becomes an exponent.
                const auto near_power = [&](double got, double score) {
                    const double wanted = std::exp2(score - base);
                    const double size = score == -infinity ? 0 : 1 + std::fabs(score) + std::fabs(base);
                    return std::fabs(got - wanted) <= unit * size * wanted + 1e-37; // smaller powers are 0
                };
                ASSERT_EQ(m[c], greatest);
                ASSERT_NEAR(l[c], sum, 100 * unit * sum);
                ASSERT_TRUE(near_power(correction[c], m_before[c])) << correction[c];
                any_correction |= correction[c] != T{1};
                for (int key = 0; key < keys; ++key) {
                    const double score = given[key * group_columns + c];
                    ASSERT_TRUE(near_power(scores[key * group_columns + c], score)) << scores[key * group_columns + c];
                    if (score == -infinity) {
                        ASSERT_EQ(scores[key * group_columns + c], T{0});
                    }
                }
            }
            EXPECT_EQ(moved, any_correction);
        }
    });
}

TEST_P(Simd, Gradient) {
    on_both_types([]<class T>(const VectorKernels<T> &kernels, annulus_dtype dtype) {
        constexpr int keys = 13;
        const double tolerance = 16 * rounding_unit(dtype);
        std::vector<T> scores = random_values<T>(keys * group_columns, 5, 1),
                       d_p = random_values<T>(keys * group_columns, 3, 2);
        std::vector<T> lse = random_values<T>(group_columns, 5, 3), delta = random_values<T>(group_columns, 3, 4);
        scores[3] = static_cast<T>(-infinity);
        lse[1] = delta[1] = static_cast<T>(nan);
        lse[2] = static_cast<T>(infinity); // a query without keys
        d_p[2] = static_cast<T>(nan);
        const std::vector<T> s = scores, d = d_p;
        std::vector<T> p_alone = scores;
        kernels.gradient(scores.data(), d_p.data(), keys, lse.data(), delta.data(), T{0.25});
        kernels.gradient(p_alone.data(), nullptr, keys, lse.data(), delta.data(), T{0.25});
        ASSERT_EQ(std::memcmp(p_alone.data(), scores.data(), scores.size() * sizeof(T)), 0);
        for (int i = 0; i < keys * group_columns; ++i) {
            const int c = i % group_columns;
            if (std::isinf(s[i]) || c == 2) {
                ASSERT_EQ(scores[i], T{0});
                ASSERT_EQ(d_p[i], T{0});
            } else if (c == 1) {
                ASSERT_TRUE(std::isnan(scores[i]) && std::isnan(d_p[i]));
            } else {
                const double p = std::exp2(static_cast<double>(s[i]) - static_cast<double>(lse[c]));
                const double terms = std::fabs(static_cast<double>(d[i])) + std::fabs(static_cast<double>(delta[c]));
                // The difference of score and LSE is rounded before it becomes an exponent.
                const double size = std::fabs(static_cast<double>(s[i])) + std::fabs(static_cast<double>(lse[c])) + 1;
                ASSERT_NEAR(scores[i], p, tolerance * size * p);
                ASSERT_NEAR(d_p[i], 0.25 * p * (static_cast<double>(d[i]) - static_cast<double>(delta[c])),
                            tolerance * size * p * terms);
            }
        }
    });
}

INSTANTIATE_TEST_SUITE_P(Sets, Simd, testing::ValuesIn(sets()),
                         [](const testing::TestParamInfo<Set> &set) { return set.param.name; });

TEST(SimdChoice, IsTheWidestSetOfTheMachine) {
    EXPECT_EQ(simd_name(), sets().back().name);
    EXPECT_EQ(&vector_kernels<float>(), sets().back().single_precision);
    EXPECT_EQ(&vector_kernels<double>(), sets().back().double_precision);
}

} // namespace
} // namespace test
} // namespace annulus
