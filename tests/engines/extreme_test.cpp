// SPDX-License-Identifier: Apache-2.0
// Numbers at the limits of the type of accumulation, against what annulus/attention.h promises there. A result is
// right, or it is an infinity or NaN, but never another finite number.
#include "engines/subject.hpp"

#include "support/compare.hpp"
#include "support/mask.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>

namespace annulus::test {
namespace {

// A row of O: its index in the results, and the keys that its query attends to.
struct Row {
    std::size_t out, statistic;
    std::int32_t head;
    std::int64_t query;
    Mask::Keys keys;
};

template <class Use> void for_each_row(const Problem &problem, Use use) {
    const Mask mask(problem);
    for (std::int64_t j = 0; j < problem.query_length(); ++j)
        for (std::int32_t h = 0; h < problem.heads; ++h)
            use(Row{static_cast<std::size_t>((j * problem.heads + h) * problem.dim),
                    static_cast<std::size_t>(h * problem.query_length() + j), h, j,
                    mask.keys(problem.query_start() + j, h)});
}

// Patterns with and without rows that see no key, and lengths that no segment divides.
std::vector<std::pair<std::string, Problem>> patterns() {
    return {
        {"dense", {.length = 67, .dim = 16}},
        {"causal", {.length = 131, .heads = 3, .dim = 16, .branches = {{.segment = 50}}, .causal = true}},
        {"dilated", {.length = 203, .heads = 4, .dim = 16, .branches = {{.segment = 60, .dilation = 3}}}},
        {"every",
         {.length = 150,
          .heads = 4,
          .dim = 16,
          .branches = {{.segment = 70, .dilation = 4, .query = ANNULUS_QUERY_EVERY}},
          .causal = true}},
        {"two_branches",
         {.length = 333, .heads = 2, .dim = 64, .branches = {{.segment = 32}, {.segment = 300, .dilation = 5}}}},
    };
}

class Extreme : public testing::TestWithParam<std::tuple<annulus_dtype, std::size_t>> {
  protected:
    void SetUp() override {
        problem_ = patterns()[std::get<1>(GetParam())].second;
        problem_.dtype = std::get<0>(GetParam());
    }

    // Sets the scale of the scores. Returns false if the engine refuses the problem.
    bool accept(double scale) {
        problem_.scale = scale;
        return !subject().refusal_of(problem_);
    }

    Inputs rounded(Inputs inputs) const {
        for (std::vector<double> *values : {&inputs.q, &inputs.k, &inputs.v, &inputs.d_out})
            for (double &value : *values)
                value = round_to(problem_.dtype, value);
        return inputs;
    }

    bool splits_float32() const { return problem_.dtype == ANNULUS_FLOAT32 && subject().splits_float32; }
    bool is_half_range() const { return problem_.dtype == ANNULUS_FLOAT16; }

    Problem problem_;
};

// Finite inputs give scores below the lowest number of the type. Such a row has keys, so its result must not be that of
// a row without keys.
TEST_P(Extreme, ScoresOfMinusInfinityAreNotTakenForNoKeys) {
    const double size = problem_.dtype == ANNULUS_FLOAT64 ? 1e160 : is_half_range() ? 1e4 : 1e25;
    if (!accept(is_half_range() ? 1e36 : 1))
        GTEST_SKIP() << "not this engine's";
    Inputs inputs = random_inputs(problem_, 1, false);
    std::fill(inputs.q.begin(), inputs.q.end(), -size);
    std::fill(inputs.k.begin(), inputs.k.end(), size);
    inputs = rounded(inputs);
    const Results results = run(problem_, inputs, subject());
    for_each_row(problem_, [&](const Row &row) {
        const bool has_keys = !row.keys.positions.empty();
        for (std::int32_t d = 0; d < problem_.dim; ++d) {
            ASSERT_TRUE(has_keys ? std::isnan(results.out[row.out + d]) : results.out[row.out + d] == 0) << row.query;
            ASSERT_TRUE(has_keys ? !std::isfinite(results.d_q[row.out + d]) : results.d_q[row.out + d] == 0);
        }
        const double lse = results.lse[row.statistic];
        ASSERT_TRUE(has_keys ? std::isnan(lse) : std::isinf(lse) && lse < 0) << row.query << ": " << lse;
    });
}

// The factor of Q . K must not overflow before the product is computed.
TEST_P(Extreme, ScaleOverflowsOnlyWithTheScore) {
    if (is_half_range())
        GTEST_SKIP() << "the range of float16 is too small";
    const bool wide = problem_.dtype == ANNULUS_FLOAT64;
    if (!accept(1e3) || splits_float32())
        GTEST_SKIP() << "not this engine's";
    Inputs inputs = random_inputs(problem_, 2, false);
    std::mt19937_64 generator(2);
    std::uniform_real_distribution<double> uniform(0.3, 1);
    for (std::size_t i = 0; i < inputs.q.size(); ++i)
        inputs.q[i] = i % problem_.dim == 0 ? uniform(generator) * (wide ? 1e307 : 1e36) : 0;
    for (std::size_t i = 0; i < inputs.k.size(); i += problem_.dim)
        inputs.k[i] = uniform(generator) * (wide ? 5e-309 : 5e-38);
    inputs = rounded(inputs);
    RunOptions forward = subject();
    forward.backward = false;
    const Results results = run(problem_, inputs, forward);
    const Results exact = run_exact(problem_, inputs, false, ANNULUS_ENGINE_REFERENCE);
    const double unit = rounding_unit(wide ? ANNULUS_FLOAT64 : problem_.dtype);
    expect_near("out", results.out, exact.out, 300 * unit); // scores to some 55
    for (std::size_t i = 0; i < exact.lse.size(); ++i)
        ASSERT_TRUE(results.lse[i] == exact.lse[i] || std::fabs(results.lse[i] - exact.lse[i]) < 1e-4);
}

// If one key is visible, O is V for any score that is a number. Such a large LSE is too inexact to give probabilities
// for gradients.
TEST_P(Extreme, OneKeyOfLargeScore) {
    problem_.branches = {{.segment = 1}};
    problem_.causal = false;
    const double size = problem_.dtype == ANNULUS_FLOAT64 ? 1e9 : is_half_range() ? 1e4 : 1e5;
    if (!accept(is_half_range() ? 3 : 0.75))
        GTEST_SKIP() << "not this engine's";
    Inputs inputs = random_inputs(problem_, 3, false);
    for (std::vector<double> *values : {&inputs.q, &inputs.k})
        for (double &value : *values)
            value *= size;
    inputs = rounded(inputs);
    const Results results = run(problem_, inputs, subject());
    const double unit =
        2 * rounding_unit(problem_.dtype) + (splits_float32() ? std::ldexp(1., -21) : 0); // of a product
    for_each_row(problem_, [&](const Row &row) {
        for (std::int32_t d = 0; d < problem_.dim; ++d) {
            const std::size_t i = row.out + d;
            if (std::isfinite(results.out[i])) {
                ASSERT_NEAR(results.out[i], inputs.v[i], unit * std::fabs(inputs.v[i]));
            }
            if (std::isfinite(results.d_v[i])) { // P is 1
                ASSERT_NEAR(results.d_v[i], inputs.d_out[i], 0.2 * std::fabs(inputs.d_out[i])) << row.query;
            }
        }
    });
}

// Random magnitudes over the whole range, including zeros and subnormal numbers.
TEST_P(Extreme, ForwardIsRightOrNoNumber) {
    if (!accept(0.25))
        GTEST_SKIP() << "not this engine's";
    const bool wide = problem_.dtype == ANNULUS_FLOAT64;
    const double least = wide ? -150 : is_half_range() ? -7 : -44, most = wide ? 148 : is_half_range() ? 3.8 : 36;
    for (std::uint64_t seed = 0; seed < 4; ++seed) {
        std::mt19937_64 generator(seed);
        std::uniform_real_distribution<double> exponent(least, most), uniform(-1, 1);
        Inputs inputs = random_inputs(problem_, seed, false);
        // In each head all queries are large or all are small. The keys are the opposite, or independent of that.
        const double q_exponent = exponent(generator);
        const double k_exponent = seed % 2 ? exponent(generator) : std::clamp(1 - q_exponent, least, most);
        for (double &value : inputs.q)
            value = uniform(generator) * std::pow(10, q_exponent + uniform(generator));
        for (double &value : inputs.k)
            value = generator() % 16 == 0 ? 0 : uniform(generator) * std::pow(10, k_exponent + uniform(generator));
        inputs = rounded(inputs);
        RunOptions forward = subject();
        forward.backward = false;
        const Results results = run(problem_, inputs, forward);
        const Results exact = run_exact(problem_, inputs, false, ANNULUS_ENGINE_REFERENCE);
        // Scores up to this size give results that are numbers.
        const double largest = wide ? 1e15 : 6e7, fraction = std::pow(2, wide ? -49 : -20);
        for_each_row(problem_, [&](const Row &row) {
            double product = 0, value = 0; // the greatest sum of |q k|, and |v|
            for (const std::int64_t m : row.keys.positions) {
                const std::size_t key = (m * problem_.kv() + problem_.kv_head(row.head)) * problem_.dim;
                double sum = 0;
                for (std::int32_t d = 0; d < problem_.dim; ++d) {
                    sum += std::fabs(inputs.q[row.out + d] * inputs.k[key + d]);
                    value = std::max(value, std::fabs(inputs.v[key + d]));
                }
                product = std::max(product, sum);
            }
            const double error = fraction * product; // of a score
            for (std::int32_t d = 0; d < problem_.dim; ++d) {
                const double got = results.out[row.out + d], wanted = exact.out[row.out + d];
                if (0.25 * product < largest) {
                    ASSERT_TRUE(std::isfinite(got)) << "query " << row.query << ", products to " << product;
                }
                const double bound = std::expm1(std::min(error, 2.0)) + 2 * rounding_unit(problem_.dtype) + 1e-6;
                ASSERT_TRUE(!std::isfinite(got) || std::fabs(got - wanted) <= std::min(bound, 2.0) * value)
                    << "query " << row.query << ": " << got << " for " << wanted << ", products to " << product;
            }
        });
    }
}

class TinyFactor : public testing::TestWithParam<annulus_dtype> {};

// Two visible keys have scores far apart. The gradient of the lower score is so large that dQ is an ordinary number.
// But the factor times that key's probability is too small for the type.
TEST_P(TinyFactor, TimesASmallProbabilityLosesNoGradient) {
    const annulus_dtype dtype = GetParam();
    if (dtype == ANNULUS_FLOAT16)
        GTEST_SKIP() << "the range of float16 is too small";
    constexpr std::size_t length = 67, dim = 16;
    const double factor = 1e-36, gradient = round_to(dtype, 1e30);
    const Problem problem = {
        .length = length, .heads = 1, .dim = dim, .branches = {{.segment = 2}}, .scale = factor, .dtype = dtype};
    if (subject().refusal_of(problem))
        GTEST_SKIP() << "not this engine's";
    Inputs inputs = random_inputs(problem, 5, false);
    for (std::vector<double> *values : {&inputs.q, &inputs.k, &inputs.v, &inputs.d_out})
        std::ranges::fill(*values, 0.);
    const double high = round_to(dtype, 25 / factor);
    for (std::size_t row = 0; row < length; ++row) {
        inputs.q[row * dim] = 1;
        inputs.k[row * dim + row % 2] = row % 2 ? 1 : high;
        inputs.v[row * dim] = row % 2 ? 1 : 0;
        inputs.d_out[row * dim] = gradient;
    }
    const double low = 1 / (1 + std::exp(factor * high)), d_score = low * (1 - low) * gradient; // of the odd keys
    const Results results = run(problem, inputs, subject());
    // P and dS are rounded to the type. P also has the rounding error of LSE, 25, which is at least that of float32.
    const double tolerance =
        (8 * rounding_unit(dtype) + 200 * rounding_unit(statistics_dtype(dtype))) * factor * d_score;
    for (std::size_t row = 0; row < length; ++row) {
        const bool sees_odd = row / 2 * 2 + 1 < length; // all but the last query
        ASSERT_NEAR(results.d_q[row * dim + 1], sees_odd ? factor * d_score : 0, tolerance) << "query " << row;
        if (row % 2) {
            ASSERT_NEAR(results.d_k[row * dim], 2 * factor * d_score, 2 * tolerance) << "key " << row;
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Edges, TinyFactor, testing::ValuesIn(subject_dtypes()),
                         [](const auto &tested) { return std::string(annulus_dtype_name(tested.param)); });

std::string name_of(const testing::TestParamInfo<Extreme::ParamType> &info) {
    return std::string(annulus_dtype_name(std::get<0>(info.param))) + "_" + patterns()[std::get<1>(info.param)].first;
}

INSTANTIATE_TEST_SUITE_P(Edges, Extreme,
                         testing::Combine(testing::ValuesIn(subject_dtypes()),
                                          testing::Range<std::size_t>(0, patterns().size())),
                         name_of);

} // namespace
} // namespace annulus::test
