// SPDX-License-Identifier: Apache-2.0
// `fused` against the reference: sizes around its tiles, and patterns that it treats apart; forward and backward.
#include "cuda/fused/calls.hpp"
#include "cuda/fused/problems.hpp"

#include "support/compare.hpp"
#include "support/number.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

namespace annulus::test {
namespace {

class Sizes : public testing::TestWithParam<std::tuple<std::int64_t, std::int32_t>> {};

TEST_P(Sizes, AgreeWithReference) {
    const auto [length, dim] = GetParam();
    for (const annulus_dtype dtype : subject_dtypes())
        for (const bool causal : {false, true}) {
            const Problem problem = {.length = length,
                                     .heads = 3,
                                     .dim = dim,
                                     .branches = {{.segment = 150}, {.dilation = 3}},
                                     .causal = causal,
                                     .dtype = dtype};
            SCOPED_TRACE(testing::Message() << problem);
            const Inputs inputs = random_inputs(problem, 1);
            expect_agreement(problem, inputs, run(problem, inputs, subject_for(problem)), run_exact(problem, inputs));
        }
}

// Half a segment's rows are a class: more than a row block, and what the last segment leaves.
TEST_P(Sizes, AgreeWithReferenceAlongACurve) {
    const auto [length, dim] = GetParam();
    for (const annulus_dtype dtype : subject_dtypes())
        for (const bool causal : {false, true}) {
            const Problem problem = {.length = length,
                                     .heads = 4,
                                     .kv_heads = 2,
                                     .dim = dim,
                                     .branches = {{.segment = 150, .dilation = 2, .order = ANNULUS_ORDER_HILBERT}},
                                     .causal = causal,
                                     .dtype = dtype};
            SCOPED_TRACE(testing::Message() << problem);
            const Inputs inputs = random_inputs(problem, 2);
            expect_agreement(problem, inputs, run(problem, inputs, subject_for(problem)), run_exact(problem, inputs));
        }
}

std::string name_of_sizes(const testing::TestParamInfo<Sizes::ParamType> &info) {
    const auto [length, dim] = info.param;
    return "length_" + std::to_string(length) + "_dim_" + std::to_string(dim);
}

INSTANTIATE_TEST_SUITE_P(Fused, Sizes,
                         testing::Combine(testing::Values(1, 7, 31, 32, 33, 63, 64, 65, 127, 128, 129, 191, 192, 193,
                                                          257, 383),
                                          testing::Values(8, 16, 40, 64, 72, 96, 128, 136, 192, 200, 256)),
                         name_of_sizes);

// Scores that rise or fall along the keys: each block's maximum is a little larger than that of the one before.
TEST(Maxima, MayRiseFromBlockToBlock) {
    for (const annulus_dtype dtype : subject_dtypes())
        for (const std::int32_t dim : {32, 64, 128})
            for (const double slope : {-0.1, 0.01, 0.1}) {
                Problem problem = {.length = 1003, .heads = 2, .dim = dim, .branches = {{}}, .dtype = dtype};
                SCOPED_TRACE(testing::Message() << problem << ", slope " << slope);
                problem.scale = 0.125;
                Inputs inputs = random_inputs(problem, 1);
                for (std::size_t row = 0; row < inputs.q.size() / dim; ++row) {
                    inputs.q[row * dim] = 4;
                    double &key = inputs.k[row * dim];
                    key = round_to(dtype, key + slope * static_cast<double>(row / problem.heads));
                }
                expect_agreement(problem, inputs, run(problem, inputs, subject_for(problem)),
                                 run_exact(problem, inputs));
            }
}

class Patterns : public testing::TestWithParam<NamedProblem> {};

TEST_P(Patterns, AgreeWithReference) {
    const Problem &problem = GetParam().problem;
    const Inputs inputs = random_inputs(problem, 1);
    const Results results = run(problem, inputs, subject()), exact = run_exact(problem, inputs);
    expect_agreement(problem, inputs, results, exact);
    // What no query attends to has no gradient at all.
    for (std::size_t row = 0; row < exact.d_v.size(); row += problem.dim) {
        const auto is_zero = [&](const std::vector<double> &values) {
            const auto first = values.begin() + static_cast<std::ptrdiff_t>(row);
            return std::all_of(first, first + problem.dim, [](double x) { return x == 0; });
        };
        ASSERT_TRUE(!is_zero(exact.d_v) || (is_zero(results.d_k) && is_zero(results.d_v))) << "element " << row;
    }
}

INSTANTIATE_TEST_SUITE_P(Fused, Patterns, testing::ValuesIn(patterns()), name_of_problem);

class SomePatterns : public testing::TestWithParam<NamedProblem> {
  protected:
    const Problem &problem_ = GetParam().problem;
};

TEST_P(SomePatterns, AreTheSameBitsAgain) {
    const Inputs inputs = random_inputs(problem_, 1);
    expect_identical(run(problem_, inputs, subject()), run(problem_, inputs, subject()));
}

TEST_P(SomePatterns, AgreeWithReferenceInLittleWorkspace) {
    const Inputs inputs = random_inputs(problem_, 1);
    const Results exact = run_exact(problem_, inputs);
    RunOptions options = subject();
    options.raise_limit = true;
    for (const std::uint64_t limit : {std::uint64_t{1}, std::uint64_t{1} << 20}) {
        SCOPED_TRACE(limit);
        options.workspace_limit = limit;
        expect_agreement(problem_, inputs, run(problem_, inputs, options), exact);
    }
}

TEST_P(SomePatterns, NeedNoGradientOfLse) {
    Inputs inputs = random_inputs(problem_, 2, false);
    const Results results = run(problem_, inputs, subject());
    expect_agreement(problem_, inputs, results, run_exact(problem_, inputs));
    inputs.d_lse.assign(problem_.lse_size(), 0);
    expect_identical(run(problem_, inputs, subject()), results);
}

TEST_P(SomePatterns, MayHaveAGradientOfLseAlone) {
    Inputs inputs = random_inputs(problem_, 3);
    std::fill(inputs.d_out.begin(), inputs.d_out.end(), 0);
    const Results results = run(problem_, inputs, subject());
    expect_agreement(problem_, inputs, results, run_exact(problem_, inputs));
    EXPECT_TRUE(std::all_of(results.d_v.begin(), results.d_v.end(), [](double x) { return x == 0; }));
}

INSTANTIATE_TEST_SUITE_P(Fused, SomePatterns, testing::ValuesIn(some_patterns()), name_of_problem);

} // namespace
} // namespace annulus::test
