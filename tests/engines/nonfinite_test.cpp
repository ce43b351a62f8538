// SPDX-License-Identifier: Apache-2.0
// A NaN or an infinity in one row of Q, K, V or dO reaches the rows that attend to it and no other row, in both passes.
// This also holds if the other rows are masked in the same tile.
#include "engines/subject.hpp"
#include "engines/table.hpp"

#include "support/compare.hpp"
#include "support/mask.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <tuple>

namespace annulus::test {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

enum class Pattern { mixed, whole, once };

Problem pattern(Pattern pattern, bool causal, annulus_dtype dtype) {
    if (pattern == Pattern::whole) // all tiles of 64 are full; causality hides some pairs
        return {.length = 192,
                .heads = 4,
                .kv_heads = 2,
                .dim = 72,
                .branches = {{.segment = 192}},
                .causal = causal,
                .dtype = dtype};
    return {.length = 150,
            .heads = 4,
            .kv_heads = 2,
            .branches = {{.segment = 70},
                         {.segment = 100, .dilation = 3, .query = ANNULUS_QUERY_EVERY},
                         {.dilation = 5, .query = ANNULUS_QUERY_RESIDUE, .order = ANNULUS_ORDER_HILBERT}},
            .causal = causal,
            .keys_once = pattern == Pattern::once,
            .dtype = dtype};
}

// The rows (position, head) that may differ from a clean run.
using Rows = std::set<std::pair<std::int64_t, std::int32_t>>;

// Returns the queries that attend to a key row of a key/value head.
Rows queries_of(const Problem &problem, const Mask &mask, std::int64_t key, std::int32_t kv_head) {
    Rows rows;
    for (std::int64_t n = 0; n < problem.length; ++n)
        for (std::int32_t h = 0; h < problem.heads; ++h) {
            if (problem.kv_head(h) != kv_head)
                continue;
            const std::vector<std::int64_t> positions = mask.keys(n, h).positions;
            if (std::find(positions.begin(), positions.end(), key) != positions.end())
                rows.insert({n, h});
        }
    return rows;
}

Rows keys_of(const Problem &problem, const Mask &mask, const Rows &queries) {
    Rows rows;
    for (const auto &[n, h] : queries)
        for (const std::int64_t m : mask.keys(n, h).positions)
            rows.insert({m, problem.kv_head(h)});
    return rows;
}

class Nonfinite : public testing::TestWithParam<std::tuple<Pattern, bool, annulus_dtype, double, std::size_t>> {
  protected:
    const bool causal_ = std::get<1>(GetParam());
    const annulus_dtype dtype_ = std::get<2>(GetParam());
    const double value_ = std::get<3>(GetParam());
    const RunOptions options_ = subject_ways()[std::get<4>(GetParam())];
    const Problem problem_ = taken(pattern(std::get<0>(GetParam()), causal_, dtype_), options_);
    const Mask mask_{problem_};
    const Inputs clean_inputs_ = random_inputs(problem_, 1);
    const Results clean_ = run(problem_, clean_inputs_, options_);

    // Fills one row of [length, heads, dim].
    void set_row(std::vector<double> &values, std::int32_t heads, std::int64_t position, std::int32_t head) const {
        const auto first = values.begin() + (position * heads + head) * problem_.dim;
        std::fill(first, first + problem_.dim, value_);
    }

    // Expects rows outside `reached` to be as in the clean run. With `shows`, all elements of rows inside are NaN.
    void expect_reached(const char *name, const std::vector<double> &got, const std::vector<double> &clean,
                        std::int32_t heads, const Rows &reached, bool shows = false) const {
        // Recomputed rows have products of another kind on engines that split factors.
        const bool is_split = dtype_ == ANNULUS_FLOAT32 && options_.splits_float32;
        const double unit = rounding_unit(dtype_) + (is_split ? 16 * rounding_unit(ANNULUS_FLOAT32) : 1e-6);
        const std::int64_t row_size = static_cast<std::int64_t>(clean.size()) / (problem_.length * heads);
        for (std::int64_t n = 0; n < problem_.length; ++n)
            for (std::int32_t h = 0; h < heads; ++h)
                for (std::int64_t d = 0; d < row_size; ++d) {
                    // LSE is [heads, length]; other results are [length, heads, dim].
                    const std::int64_t i = row_size == 1 ? h * problem_.length + n : (n * heads + h) * row_size + d;
                    if (!reached.contains({n, h})) {
                        ASSERT_NEAR(got[i], clean[i], unit * (1 + std::fabs(clean[i])))
                            << name << " of position " << n << ", head " << h;
                    } else if (shows && std::isnan(value_)) {
                        ASSERT_TRUE(std::isnan(got[i])) << name << " of position " << n << ", head " << h;
                    }
                }
    }
};

const std::int64_t positions[] = {0, 31, 64, 69, 70, 101, 149};

TEST_P(Nonfinite, KeyRowReachesItsQueries) {
    for (const std::int64_t position : positions) {
        Inputs inputs = clean_inputs_;
        set_row(inputs.k, problem_.kv(), position, 1);
        const Rows queries = queries_of(problem_, mask_, position, 1);
        const Rows keys = keys_of(problem_, mask_, queries);
        const Results results = run(problem_, inputs, options_);
        SCOPED_TRACE(testing::Message() << "key row of position " << position);
        expect_reached("out", results.out, clean_.out, problem_.heads, queries, true);
        expect_reached("lse", results.lse, clean_.lse, problem_.heads, queries, true);
        expect_reached("d_q", results.d_q, clean_.d_q, problem_.heads, queries, true);
        expect_reached("d_k", results.d_k, clean_.d_k, problem_.kv(), keys, true);
        expect_reached("d_v", results.d_v, clean_.d_v, problem_.kv(), keys, true);
    }
}

TEST_P(Nonfinite, ValueRowReachesItsQueries) {
    for (const std::int64_t position : positions) {
        Inputs inputs = clean_inputs_;
        set_row(inputs.v, problem_.kv(), position, 0);
        const Rows queries = queries_of(problem_, mask_, position, 0);
        const Rows keys = keys_of(problem_, mask_, queries);
        const Results results = run(problem_, inputs, options_);
        SCOPED_TRACE(testing::Message() << "value row of position " << position);
        expect_reached("out", results.out, clean_.out, problem_.heads, queries, true);
        expect_reached("lse", results.lse, clean_.lse, problem_.heads, {});
        expect_reached("d_q", results.d_q, clean_.d_q, problem_.heads, queries, true);
        expect_reached("d_k", results.d_k, clean_.d_k, problem_.kv(), keys, true);
        expect_reached("d_v", results.d_v, clean_.d_v, problem_.kv(), {});
    }
}

TEST_P(Nonfinite, QueryRowReachesItselfAndItsKeys) {
    for (const std::int64_t position : positions) {
        Inputs inputs = clean_inputs_;
        set_row(inputs.q, problem_.heads, position, 2);
        const Rows query = {{position, 2}};
        const Rows keys = keys_of(problem_, mask_, query);
        const Results results = run(problem_, inputs, options_);
        SCOPED_TRACE(testing::Message() << "query row of position " << position);
        expect_reached("out", results.out, clean_.out, problem_.heads, query, true);
        expect_reached("lse", results.lse, clean_.lse, problem_.heads, query, true);
        expect_reached("d_q", results.d_q, clean_.d_q, problem_.heads, query, true);
        expect_reached("d_k", results.d_k, clean_.d_k, problem_.kv(), keys, true);
        expect_reached("d_v", results.d_v, clean_.d_v, problem_.kv(), keys, true);
    }
}

TEST_P(Nonfinite, GradientRowReachesItselfAndItsKeys) {
    for (const std::int64_t position : positions) {
        Inputs inputs = clean_inputs_;
        set_row(inputs.d_out, problem_.heads, position, 0);
        const Rows query = {{position, 0}};
        const Rows keys = keys_of(problem_, mask_, query);
        const Results results = run(problem_, inputs, options_);
        SCOPED_TRACE(testing::Message() << "gradient row of position " << position);
        expect_reached("d_q", results.d_q, clean_.d_q, problem_.heads, query, true);
        expect_reached("d_k", results.d_k, clean_.d_k, problem_.kv(), keys, true);
        expect_reached("d_v", results.d_v, clean_.d_v, problem_.kv(), keys, true);
    }
}

std::string name_of(const testing::TestParamInfo<Nonfinite::ParamType> &info) {
    const auto [pattern, causal, dtype, value, way] = info.param;
    static const char *const patterns[] = {"", "whole_", "once_"};
    return std::string(patterns[static_cast<int>(pattern)]) + (causal ? "causal_" : "all_") +
           annulus_dtype_name(dtype) +
           (std::isnan(value) ? "_nan"
            : value > 0       ? "_infinity"
                              : "_minus_infinity") +
           "_way_" + std::to_string(way);
}

INSTANTIATE_TEST_SUITE_P(Rows, Nonfinite,
                         testing::Combine(testing::Values(Pattern::mixed, Pattern::whole, Pattern::once),
                                          testing::Bool(), testing::ValuesIn(dtypes_of_part(subject_dtypes())),
                                          testing::Values(nan, infinity, -infinity),
                                          testing::Range(std::size_t{0}, subject_ways().size())),
                         name_of);

} // namespace
} // namespace annulus::test
