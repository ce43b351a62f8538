// SPDX-License-Identifier: Apache-2.0
// Tests NaN and infinities in the inputs of `fused`. They must reach the results that depend on them, and no other rows
// of the same tiles.
#include "cuda/fused/calls.hpp"

#include "support/compare.hpp"
#include "support/mask.hpp"
#include "support/number.hpp"
#include "support/ranks.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

namespace annulus::test {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

std::vector<NamedProblem> ragged_problems() {
    constexpr auto residue = ANNULUS_QUERY_RESIDUE;
    constexpr auto every = ANNULUS_QUERY_EVERY;
    const std::vector<NamedProblem> problems = {
        {"segments", {.length = 391, .dim = 64, .branches = {{.segment = 150}}}},
        {"dilated", {.length = 391, .heads = 3, .dim = 64, .branches = {{.segment = 260, .dilation = 3}}}},
        {"stored_ds", {.length = 391, .heads = 3, .dim = 72, .branches = {{.segment = 150}}}},
        {"every",
         {.length = 391, .heads = 3, .dim = 40, .branches = {{.segment = 270, .dilation = 3, .query = every}}}},
        {"residue", {.length = 391, .dim = 128, .branches = {{.segment = 300, .dilation = 2, .query = residue}}}},
        {"branches",
         {.length = 391,
          .heads = 4,
          .kv_heads = 2,
          .dim = 64,
          .branches = {{.segment = 70}, {.segment = 280, .dilation = 4}}}},
        {"grouped_every",
         {.length = 391,
          .heads = 4,
          .kv_heads = 1,
          .dim = 128,
          .branches = {{.segment = 90},
                       {.segment = 270, .dilation = 2, .phase = ANNULUS_PHASE_INTERLEAVE, .query = every}}}},
        {"dim_192", {.length = 391, .dim = 192, .branches = {{.segment = 150}, {.segment = 300, .dilation = 2}}}},
        {"hilbert",
         {.length = 384, .dim = 64, .branches = {{.segment = 160, .dilation = 2, .order = ANNULUS_ORDER_HILBERT}}}},
        {"stored_ds_hilbert",
         {.length = 384, .dim = 80, .branches = {{.segment = 170, .order = ANNULUS_ORDER_HILBERT}}}},
    };
    std::vector<NamedProblem> all;
    for (const NamedProblem &named : problems)
        for (const bool causal : {false, true})
            for (const bool window : {false, true}) {
                all.push_back(named);
                all.back().problem.causal = causal;
                if (window)
                    all.back().problem.window = QueryWindow{77, 165};
                all.back().name += causal ? "_causal" : "";
                all.back().name += window ? "_window" : "";
            }
    std::erase_if(all, [](const NamedProblem &named) { return subject().refusal_of(named.problem); });
    return with_dtypes(all, {ANNULUS_BFLOAT16});
}

// An input tensor of which rows are made NaN or infinite. dQ and dK depend on all inputs.
struct Spoilt {
    const char *name;
    std::vector<double> Inputs::*rows;
    bool has_query_rows;
    bool out, lse, d_v; // whether each depends on the input
};
constexpr Spoilt spoilt_q = {"Q", &Inputs::q, true, true, true, true};
constexpr Spoilt spoilt_k = {"K", &Inputs::k, false, true, true, true};
constexpr Spoilt spoilt_v = {"V", &Inputs::v, false, true, false, false};
constexpr Spoilt spoilt_d_out = {"dO", &Inputs::d_out, true, false, false, true};

// Problems computed by one rank, or by three ranks on one GPU.
class Nonfinite : public testing::TestWithParam<std::tuple<NamedProblem, int>> {
  protected:
    const Problem &problem_ = std::get<0>(GetParam()).problem;
    const int ranks_ = std::get<1>(GetParam());
    const std::vector<std::vector<std::int64_t>> keys_ = keys_of_queries(); // [query, head]
    const Inputs clean_inputs_ = random_inputs(problem_, 1);
    const Results clean_ = results_of(clean_inputs_);

    std::vector<std::vector<std::int64_t>> keys_of_queries() const {
        const Mask mask(problem_);
        std::vector<std::vector<std::int64_t>> keys;
        for (std::int64_t i = 0; i < problem_.query_length(); ++i)
            for (std::int32_t h = 0; h < problem_.heads; ++h)
                keys.push_back(mask.keys(problem_.query_start() + i, h).positions);
        return keys;
    }

    Results results_of(const Inputs &inputs) const {
        if (ranks_ == 1)
            return run(problem_, inputs, subject());
        static CudaMemory memories[3] = {CudaMemory(CudaMemory::Order::own_stream),
                                         CudaMemory(CudaMemory::Order::own_stream),
                                         CudaMemory(CudaMemory::Order::own_stream)};
        return run_ranks(problem_, inputs,
                         {.lengths = even_lengths(problem_.length, ranks_),
                          .run = subject(),
                          .memories = {&memories[0], &memories[1], &memories[2]}});
    }

    using Rows = std::vector<bool>; // [position, head]

    // Expects clean results, but for rounding, in rows that were not reached. Rows that were reached must be NaN if NaN
    // went in. Element i belongs to row row_of(i).
    template <class RowOf>
    void expect_clean_but(const char *name, std::vector<double> Results::*tensor, const Results &results,
                          const Rows &reached, double value, double roundings, const RowOf &row_of) const {
        const std::vector<double> &got = results.*tensor, &clean = clean_.*tensor;
        const double tolerance = roundings * rounding_unit(problem_.dtype);
        for (std::size_t i = 0; i < got.size(); ++i) {
            const std::size_t row = row_of(i);
            const bool is_clean =
                got[i] == clean[i] || std::fabs(got[i] - clean[i]) <= tolerance * (1 + std::fabs(clean[i]));
            ASSERT_TRUE(reached[row] ? std::isnan(got[i]) || !std::isnan(value) : is_clean)
                << name << ", row " << row << ", " << (reached[row] ? "reached" : "not reached") << ": " << got[i];
        }
    }

    // Spoils the rows of all positions for which is_spoilt is true, in all heads and in all of `tensors`. All tensors
    // must be of one side, queries or keys. The spoilt rows must reach the queries that have them or attend to them,
    // and the gradients of these queries' keys.
    template <class IsSpoilt>
    void expect_to_reach_what_depends_on_it(const std::vector<Spoilt> &tensors, double value,
                                            const IsSpoilt &is_spoilt) const {
        const bool has_query_rows = tensors.front().has_query_rows;
        const std::int64_t first = has_query_rows ? problem_.query_start() : 0;
        const std::int64_t count = has_query_rows ? problem_.query_length() : problem_.length;
        const std::int64_t row = (has_query_rows ? problem_.heads : problem_.kv()) * problem_.dim;
        Inputs inputs = clean_inputs_;
        bool out = false, lse = false, d_v = false;
        for (const Spoilt &tensor : tensors) {
            for (std::int64_t i = 0; i < count; ++i)
                if (is_spoilt(first + i))
                    std::fill_n((inputs.*tensor.rows).begin() + i * row, row, value);
            out |= tensor.out;
            lse |= tensor.lse;
            d_v |= tensor.d_v;
        }

        const auto heads = static_cast<std::size_t>(problem_.heads), dim = static_cast<std::size_t>(problem_.dim);
        const std::size_t queries = keys_.size() / heads;
        const Rows no_queries(keys_.size()), no_keys(problem_.kv_size() / dim);
        Rows reached = no_queries, reached_keys = no_keys;
        for (std::size_t i = 0; i < keys_.size(); ++i) {
            const std::vector<std::int64_t> &keys = keys_[i];
            const auto query = problem_.query_start() + static_cast<std::int64_t>(i / heads);
            reached[i] =
                has_query_rows ? !keys.empty() && is_spoilt(query) : std::any_of(keys.begin(), keys.end(), is_spoilt);
            if (reached[i])
                for (const std::int64_t key : keys)
                    reached_keys[key * problem_.kv() + problem_.kv_head(static_cast<std::int32_t>(i % heads))] = true;
        }

        const Results got = results_of(inputs);
        const auto row_of = [&](std::size_t i) { return i / dim; };
        const auto row_of_lse = [&](std::size_t i) { return i % queries * heads + i / queries; };
        expect_clean_but("O", &Results::out, got, out ? reached : no_queries, value, 1, row_of);
        expect_clean_but("LSE", &Results::lse, got, lse ? reached : no_queries, value, 1, row_of_lse);
        // Recomputed rows are sums of terms that were not rounded. The query's O may have been recomputed in the same
        // way.
        expect_clean_but("dQ", &Results::d_q, got, reached, value, 4, row_of);
        expect_clean_but("dK", &Results::d_k, got, reached_keys, value, 4, row_of);
        expect_clean_but("dV", &Results::d_v, got, d_v ? reached_keys : no_keys, value, 4, row_of);
    }
};

TEST_P(Nonfinite, RowsReachWhatDependsOnThemAndNothingElse) {
    for (const std::int64_t position : {0, 63, 64, 76, 77, 130, 131, 149, 150, 241, 259, 300})
        for (const double value : {nan, position % 2 ? infinity : -infinity})
            for (const Spoilt &tensor : {spoilt_q, spoilt_k, spoilt_v, spoilt_d_out}) {
                SCOPED_TRACE(testing::Message()
                             << value << " in the rows of position " << position << " of " << tensor.name);
                ASSERT_NO_FATAL_FAILURE(
                    expect_to_reach_what_depends_on_it({tensor}, value, [&](std::int64_t n) { return n == position; }));
            }
}

// Spoils all rows that two queries do not attend to.
TEST_P(Nonfinite, RowsThatAreNoKeysReachNothing) {
    std::vector<bool> is_key(static_cast<std::size_t>(problem_.length));
    const std::int64_t heads = problem_.heads, first = problem_.query_length() / 3 * heads;
    for (std::int64_t i = first; i < first + 2 * heads; ++i)
        for (const std::int64_t key : keys_[static_cast<std::size_t>(i)])
            is_key[static_cast<std::size_t>(key)] = true;
    for (const double value : {nan, infinity, -infinity}) {
        SCOPED_TRACE(value);
        ASSERT_NO_FATAL_FAILURE(expect_to_reach_what_depends_on_it({spoilt_k, spoilt_v}, value,
                                                                   [&](std::int64_t m) { return !is_key[m]; }));
    }
}

// Spoils all rows that do not attend to two keys.
TEST_P(Nonfinite, RowsThatAreNoQueriesReachNothing) {
    std::vector<bool> attends(static_cast<std::size_t>(problem_.length));
    const std::int64_t heads = problem_.heads;
    const std::int64_t first = problem_.query_start() + problem_.query_length() / 3;
    for (std::size_t i = 0; i < keys_.size(); ++i)
        for (const std::int64_t key : keys_[i])
            if (key == first || key == first + 1)
                attends[problem_.query_start() + static_cast<std::int64_t>(i) / heads] = true;
    for (const double value : {nan, infinity, -infinity}) {
        SCOPED_TRACE(value);
        ASSERT_NO_FATAL_FAILURE(expect_to_reach_what_depends_on_it({spoilt_q, spoilt_d_out}, value,
                                                                   [&](std::int64_t n) { return !attends[n]; }));
    }
}

// Returns the ragged problems that ranks can compute. Shards cut segments, which the engine refuses along a curve, and
// ranks have no windows.
std::vector<NamedProblem> ragged_problems_for_ranks() {
    std::vector<NamedProblem> problems = ragged_problems();
    std::erase_if(problems, [](const NamedProblem &named) {
        return named.problem.window || named.problem.branches[0].order == ANNULUS_ORDER_HILBERT;
    });
    return problems;
}

std::string name_of_nonfinite(const testing::TestParamInfo<Nonfinite::ParamType> &info) {
    return std::get<0>(info.param).name;
}

INSTANTIATE_TEST_SUITE_P(Fused, Nonfinite, testing::Combine(testing::ValuesIn(ragged_problems()), testing::Values(1)),
                         name_of_nonfinite);
INSTANTIATE_TEST_SUITE_P(Ranks, Nonfinite,
                         testing::Combine(testing::ValuesIn(ragged_problems_for_ranks()), testing::Values(3)),
                         name_of_nonfinite);

} // namespace
} // namespace annulus::test
