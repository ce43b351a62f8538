// SPDX-License-Identifier: Apache-2.0
// Compares `fused` with the reference, forward and backward: sizes around its tiles, and patterns with code of their
// own.
#include "cuda/fused/calls.hpp"
#include "cuda/fused/problems.hpp"

#include "support/compare.hpp"
#include "support/number.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
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

// Half a segment's rows are a class: more than a row block, and fewer in the last segment.
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

// Returns inputs in which the scores of every third query rise or fall by `slope`. Keys are visited from the last to
// the first, so a negative slope makes scores rise. Other queries do not see the slope.
Inputs with_sloping_scores(const Problem &problem, double slope) {
    Inputs inputs = random_inputs(problem, 1);
    const auto dim = static_cast<std::size_t>(problem.dim), heads = static_cast<std::size_t>(problem.heads);
    for (std::size_t row = 0; row < inputs.q.size() / dim; ++row) {
        inputs.q[row * dim] = row / heads % 3 == 0 ? 4 : 0;
        double &key = inputs.k[row * dim];
        key = round_to(problem.dtype, key + slope * static_cast<double>(row / heads));
    }
    return inputs;
}

class Maxima : public testing::TestWithParam<std::tuple<std::int32_t, double>> {
  protected:
    Problem problem_of(annulus_dtype dtype) const {
        Problem problem = {.length = 603, .heads = 2, .dim = std::get<0>(GetParam()), .branches = {{}}, .dtype = dtype};
        problem.scale = 0.125;
        return problem;
    }
    const double slope_ = std::get<1>(GetParam());
};

// Each block's maximum is larger than that of the block before: a little, or so much that 2 to the power of the
// difference overflows float32.
TEST_P(Maxima, MayMoveFromBlockToBlock) {
    for (const annulus_dtype dtype : subject_dtypes()) {
        const Problem problem = problem_of(dtype);
        SCOPED_TRACE(testing::Message() << problem);
        const Inputs inputs = with_sloping_scores(problem, slope_);
        expect_agreement(problem, inputs, run(problem, inputs, subject_for(problem)), run_exact(problem, inputs));
    }
}

// Results are the same to the bit: warps recompute the scores of all their queries if the maximum of one query moves.
TEST_P(Maxima, OfOtherQueriesDoNotMatter) {
    for (const annulus_dtype dtype : subject_dtypes()) {
        const Problem problem = problem_of(dtype);
        SCOPED_TRACE(testing::Message() << problem);
        const Inputs inputs = with_sloping_scores(problem, slope_);
        Inputs others = inputs;
        const auto row_elements = static_cast<std::size_t>(problem.heads * problem.dim);
        const auto is_sloping = [&](std::size_t element, std::size_t elements) { return element / elements % 3 == 0; };
        for (std::size_t i = 0; i < others.q.size(); ++i)
            if (is_sloping(i, row_elements))
                others.q[i] = 0;
        const Results sloping = run(problem, inputs, subject_for(problem)),
                      level = run(problem, others, subject_for(problem));
        // Compares `elements` elements of each position: a tensor [length, heads, dim] or, if `elements` is 1, [heads,
        // length].
        const auto expect_same = [&](const char *name, std::vector<double> got, const std::vector<double> &wanted,
                                     std::size_t elements) {
            for (std::size_t i = 0; i < got.size(); ++i)
                if (is_sloping(elements == 1 ? i % static_cast<std::size_t>(problem.length) : i, elements))
                    got[i] = wanted[i];
            expect_identical(name, got, wanted);
        };
        expect_same("out", sloping.out, level.out, row_elements);
        expect_same("lse", sloping.lse, level.lse, 1);
        expect_same("d_q", sloping.d_q, level.d_q, row_elements);
    }
}

std::string name_of_slope(const testing::TestParamInfo<Maxima::ParamType> &info) {
    const auto [dim, slope] = info.param;
    const std::string hundredths = std::to_string(std::lround(std::abs(slope * 100)));
    return "dim_" + std::to_string(dim) + (slope < 0 ? "_rises_by_hundredths_" : "_falls_by_hundredths_") + hundredths;
}

INSTANTIATE_TEST_SUITE_P(Fused, Maxima,
                         testing::Combine(testing::Values(32, 48, 64, 128, 256),
                                          testing::Values(-10., -1., -0.1, 0.01, 0.1)),
                         name_of_slope);

class Patterns : public testing::TestWithParam<NamedProblem> {};

TEST_P(Patterns, AgreeWithReference) {
    const Problem &problem = GetParam().problem;
    const Inputs inputs = random_inputs(problem, 1);
    const Results results = run(problem, inputs, subject()), exact = run_exact(problem, inputs);
    expect_agreement(problem, inputs, results, exact);
    // A key to which no query attends has no gradient at all.
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
