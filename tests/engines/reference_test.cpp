// SPDX-License-Identifier: Apache-2.0
// The reference engine, with which other engines are compared, against the plain formula. Also both in extreme cases,
// for which the right result is known.
#include "engines/table.hpp"

#include "support/compare.hpp"
#include "support/plain.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace annulus::test {
namespace {

std::vector<NamedProblem> small_problems() {
    std::vector<NamedProblem> problems = rule_combinations();
    for (const NamedProblem &named : named_problems())
        problems.push_back(named);
    return with_dtypes(up_to(small_work, problems),
                       {ANNULUS_FLOAT64, ANNULUS_FLOAT32, ANNULUS_BFLOAT16, ANNULUS_FLOAT16});
}

std::string name_of(const testing::TestParamInfo<NamedProblem> &info) {
    return info.param.name;
}

class Reference : public testing::TestWithParam<NamedProblem> {};

TEST_P(Reference, AgreesWithPlainFormula) {
    const Problem &problem = GetParam().problem;
    const Inputs inputs = random_inputs(problem, 2);
    const Results results = run(problem, inputs, {.engine = ANNULUS_ENGINE_REFERENCE});
    expect_agreement(problem, inputs, results, plain(problem, inputs, ANNULUS_FLOAT64));
}

INSTANTIATE_TEST_SUITE_P(Table, Reference, testing::ValuesIn(small_problems()), name_of);

constexpr double infinity = std::numeric_limits<double>::infinity();

struct Oracle {
    const char *name;
    Results (*compute)(const Problem &problem, const Inputs &inputs);
};

std::ostream &operator<<(std::ostream &out, const Oracle &oracle) {
    return out << oracle.name;
}

class Edges : public testing::TestWithParam<std::tuple<Oracle, annulus_dtype>> {
  protected:
    const annulus_dtype dtype_ = std::get<1>(GetParam());

    Results compute(const Problem &problem, const Inputs &inputs) const {
        return std::get<0>(GetParam()).compute(problem, inputs);
    }

    // Q and K are 1: with D = 8 every score is 8 times the scale. LSE has no gradient.
    static Inputs equal_scores(const Problem &problem) {
        Inputs inputs = random_inputs(problem, 5, false);
        inputs.q.assign(problem.q_size(), 1);
        inputs.k.assign(problem.kv_size(), 1);
        return inputs;
    }

    // So large that neither float64 nor float32 can add the logarithm of a small number to a score.
    static constexpr double large = 0x1p54;
};

std::vector<double> row_of(const std::vector<double> &rows, std::int64_t n) {
    return {rows.begin() + 8 * n, rows.begin() + 8 * (n + 1)};
}

// Row n of the result is the sum over m of weight(n, m) * row m.
template <class Weight> std::vector<double> weighted(const std::vector<double> &rows, Weight weight) {
    std::vector<double> sums(rows.size());
    const std::size_t count = rows.size() / 8;
    for (std::size_t n = 0; n < count; ++n)
        for (std::size_t m = 0; m < count; ++m)
            for (std::size_t d = 0; d < 8; ++d)
                sums[8 * n + d] += weight(n, m) * rows[8 * m + d];
    return sums;
}

TEST_P(Edges, OneKeyReachedFourTimes) {
    for (const double scale : {large, -large}) {
        const Problem problem = {
            .length = 1, .heads = 1, .branches = {4, BranchSpec{}}, .scale = scale, .dtype = dtype_};
        Inputs inputs = equal_scores(problem);
        inputs.d_lse = {1 / large};
        const Results results = compute(problem, inputs);
        EXPECT_EQ(results.out, inputs.v);
        EXPECT_EQ(results.lse, std::vector<double>(1, 8 * scale));
        EXPECT_EQ(results.d_v, inputs.d_out);
        EXPECT_EQ(results.d_q, std::vector<double>(8, scale / large));
        EXPECT_EQ(results.d_k, std::vector<double>(8, scale / large));
    }
}

TEST_P(Edges, KeysReachedOnceAndTwice) {
    for (const double scale : {large, -large, 0.0}) {
        const Problem problem = {
            .length = 6, .heads = 1, .branches = {{}, {.segment = 1}}, .scale = scale, .dtype = dtype_};
        const Inputs inputs = equal_scores(problem);
        const Results results = compute(problem, inputs);
        const auto weight = [](std::size_t n, std::size_t m) { return (n == m ? 2.0 : 1.0) / 7; };
        expect_near("out", results.out, weighted(inputs.v, weight), tolerance_of(dtype_));
        expect_near("lse", results.lse, std::vector<double>(6, scale == 0 ? std::log(7) : 8 * scale), 1e-7);
        expect_near("d_v", results.d_v, weighted(inputs.d_out, weight), tolerance_of(dtype_));
    }
}

// The last segment has one key, and one slot without a key.
TEST_P(Edges, PaddingBesideOneKey) {
    const struct {
        double scale, weight, lse;
    } cases[] = {{large, 1, 8 * large}, {-large, 0, 0}, {0, 0.5, std::log(2)}};
    for (const auto &[scale, weight, lse] : cases) {
        const Problem problem = {
            .length = 5, .heads = 1, .branches = {{.segment = 2}}, .zero_keys = true, .scale = scale, .dtype = dtype_};
        const Inputs inputs = equal_scores(problem);
        const Results results = compute(problem, inputs);
        const auto last = [&, w = weight](const std::vector<double> &rows) {
            std::vector<double> row = row_of(rows, 4);
            for (double &value : row)
                value *= w;
            return row;
        };
        expect_near("out", row_of(results.out, 4), last(inputs.v), tolerance_of(dtype_));
        expect_near("d_v", row_of(results.d_v, 4), last(inputs.d_out), tolerance_of(dtype_));
        EXPECT_NEAR(results.lse[4], lse, 1e-7);
    }
}

// Segments shorter than the dilation: no position has the residue that every query asks for.
TEST_P(Edges, ResidueWithoutPositions) {
    for (const std::int64_t segment : {1, 2})
        for (const bool zero_keys : {false, true})
            for (const double scale : {large, -large, 0.0}) {
                const Problem problem = {.length = 5,
                                         .heads = 1,
                                         .branches = {{.segment = segment,
                                                       .dilation = 3,
                                                       .phase = ANNULUS_PHASE_FIXED,
                                                       .residue = 2,
                                                       .query = ANNULUS_QUERY_EVERY}},
                                         .zero_keys = zero_keys,
                                         .scale = scale,
                                         .dtype = dtype_};
                const Results results = compute(problem, equal_scores(problem));
                const std::vector<double> nothing(40);
                EXPECT_EQ(results.lse, std::vector<double>(5, zero_keys ? 0 : -infinity));
                for (const std::vector<double> *tensor : {&results.out, &results.d_q, &results.d_k, &results.d_v})
                    EXPECT_EQ(*tensor, nothing);
            }
}

// Next to other scores, -infinity has no weight. Alone, or next to infinity, it has no defined result.
TEST_P(Edges, InfiniteScores) {
    for (const double score : {infinity, -infinity}) {
        const Problem problem = {.length = 2, .heads = 1, .dtype = dtype_};
        Inputs inputs = equal_scores(problem);
        inputs.k.assign(problem.kv_size(), score);
        const Results none = compute(problem, inputs);
        for (const double value : none.lse)
            EXPECT_TRUE(score > 0 ? value == infinity : std::isnan(value)) << value;
        for (const double value : none.out)
            EXPECT_TRUE(std::isnan(value)) << value;

        std::fill_n(inputs.k.begin() + 8, 8, 0);
        const Results results = compute(problem, inputs);
        if (score > 0) {
            EXPECT_EQ(results.lse, std::vector<double>(2, infinity));
            continue;
        }
        EXPECT_EQ(row_of(results.out, 0), row_of(inputs.v, 1));
        EXPECT_EQ(row_of(results.out, 1), row_of(inputs.v, 1));
        EXPECT_EQ(results.lse, std::vector<double>(2, 0));
        EXPECT_EQ(row_of(results.d_v, 0), std::vector<double>(8, 0));
    }
}

constexpr Oracle oracles[] = {
    {"reference", [](const Problem &problem,
                     const Inputs &inputs) { return run(problem, inputs, {.engine = ANNULUS_ENGINE_REFERENCE}); }},
    {"plain", [](const Problem &problem, const Inputs &inputs) { return plain(problem, inputs, ANNULUS_FLOAT64); }},
};

std::string name_of_edge(const testing::TestParamInfo<Edges::ParamType> &info) {
    return std::string(std::get<0>(info.param).name) + "_" + annulus_dtype_name(std::get<1>(info.param));
}

INSTANTIATE_TEST_SUITE_P(Oracles, Edges,
                         testing::Combine(testing::ValuesIn(oracles),
                                          testing::Values(ANNULUS_FLOAT64, ANNULUS_FLOAT32, ANNULUS_BFLOAT16,
                                                          ANNULUS_FLOAT16)),
                         name_of_edge);

} // namespace
} // namespace annulus::test
