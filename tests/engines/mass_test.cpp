// SPDX-License-Identifier: Apache-2.0
// The attention mass of keys, against the sum of all queries' probabilities by the definition.
#include "engines/subject.hpp"
#include "engines/table.hpp"

#include "support/compare.hpp"
#include "support/mask.hpp"
#include "support/mass.hpp"
#include "support/sequences.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

namespace annulus::test {

namespace {

RunOptions mass_options(RunOptions options) {
    options.mass = true;
    return options;
}

// Combinations of lengths, sequences, windows and heads that the tables of other tests do not have.
std::vector<NamedProblem> own_problems() {
    constexpr auto hilbert = ANNULUS_ORDER_HILBERT;
    const std::vector<BranchSpec> branches = {{.segment = 48}, {.segment = 129, .dilation = 3}, {.dilation = 2}};
    return {
        {"packed_sequences",
         {.batch = 2,
          .length = 211,
          .heads = 6,
          .kv_heads = 2,
          .dim = 16,
          .branches = branches,
          .zero_keys = true,
          .sequences = Sequences{{2, 50, 50, 99, 201}, {48, 0, 40, 102}}}},
        {"padded_sequences",
         {.batch = 3,
          .length = 131,
          .heads = 2,
          .dim = 40,
          .branches = branches,
          .causal = true,
          .sequences = Sequences{{}, {131, 0, 77}}}},
        {"curves_of_sequences",
         {.length = 230,
          .heads = 4,
          .dim = 24,
          .branches = {{.segment = 64, .dilation = 2, .order = hilbert}, {.dilation = 3, .order = hilbert}},
          .sequences = Sequences{{3, 67, 128, 228}, {}}}},
        {"window_of_queries",
         {.batch = 2,
          .length = 190,
          .heads = 4,
          .kv_heads = 2,
          .dim = 16,
          .branches = {{.segment = 40}, {.segment = 120, .dilation = 4}},
          .causal = true,
          .window = QueryWindow{35, 90}}},
        {"one_query", {.length = 150, .heads = 3, .dim = 8, .branches = branches, .window = QueryWindow{100, 1}}},
        {"once", {.length = 150, .heads = 3, .dim = 8, .branches = branches, .keys_once = true}},
        {"rows_without_keys",
         {.length = 150,
          .heads = 6,
          .kv_heads = 2,
          .dim = 24,
          .branches = {{.segment = 50, .dilation = 3, .head_count = 4}},
          .layout = Layout::gaps}},
        // More heads for a key/value head than columns: several rounds, and the last one has a column too many.
        {"many_heads_of_one_key", {.batch = 2, .length = 70, .heads = 23, .kv_heads = 1, .branches = {{}, {4, 2}}}},
        {"sharp", {.length = 99, .dim = 64, .branches = {{.segment = 32}, {}}, .spread = 30}},
        {"one_position", {.length = 1}},
        {"gigapath", gigapath(700)},
    };
}

std::vector<NamedProblem> problems() {
    std::vector<NamedProblem> all = own_problems();
    for (const auto &table : {rule_combinations(), named_problems(), with_keys_once(nested_problems())})
        for (const NamedProblem &named : up_to(small_work, table))
            all.push_back(named);
    return with_dtypes(all, subject_dtypes());
}

class Mass : public testing::TestWithParam<NamedProblem> {};

TEST_P(Mass, IsTheSumOfProbabilities) {
    const Problem &problem = GetParam().problem;
    if (const char *reason = subject().refusal_of(problem))
        GTEST_SKIP() << reason;
    const Inputs inputs = random_inputs(problem, 1);
    const std::vector<double> exact = mass_by_definition(problem, inputs);
    for (const RunOptions &options : subject_ways())
        expect_mass(problem, run(problem, poisoned(problem, inputs), mass_options(options)).mass, exact);
}

INSTANTIATE_TEST_SUITE_P(Problems, Mass, testing::ValuesIn(problems()),
                         [](const auto &named) { return named.param.name; });

// Each query that attends to a key gives 1 in total.
TEST(MassOfHeads, AddsUpToTheQueries) {
    for (const annulus_dtype dtype : subject_dtypes()) {
        const Problem problem = {.length = 700,
                                 .heads = 4,
                                 .dim = 32,
                                 .branches = {{.segment = 100, .dilation = 2}, {.dilation = 4}},
                                 .causal = true,
                                 .dtype = dtype};
        const Results results = run(problem, random_inputs(problem, 2), mass_options(subject()));
        const auto rows = static_cast<std::ptrdiff_t>(problem.length);
        for (std::int32_t h = 0; h < problem.heads; ++h) {
            const auto mass = results.mass.begin() + h * rows, lse = results.lse.begin() + h * rows;
            const auto queries =
                static_cast<double>(std::count_if(lse, lse + rows, [](double value) { return value > -INFINITY; }));
            EXPECT_LT(queries, problem.length);
            const double tolerance = bytes_of(dtype) == 2 ? rounding_unit(dtype) : 1e-5;
            EXPECT_NEAR(std::accumulate(mass, mass + rows, 0.0), queries, tolerance * queries) << problem;
        }
    }
}

// A NaN in a query's row reaches the keys that the query attends to, of the heads that share them, and no other key.
TEST(MassOfNan, ReachesAttendedKeysAlone) {
    for (const bool causal : {false, true})
        for (const annulus_dtype dtype : subject_dtypes()) {
            const Problem problem = {.length = 260,
                                     .heads = 4,
                                     .kv_heads = 2,
                                     .dim = 16,
                                     .branches = {{.segment = 60}, {.segment = 130, .dilation = 2}},
                                     .causal = causal,
                                     .dtype = dtype};
            SCOPED_TRACE(testing::Message() << problem);
            Inputs inputs = random_inputs(problem, 3);
            const std::vector<double> exact = mass_by_definition(problem, inputs);
            constexpr std::int64_t position = 100;
            constexpr std::int32_t head = 2;
            inputs.q[(position * problem.heads + head) * problem.dim + 5] = std::numeric_limits<double>::quiet_NaN();
            const std::vector<double> mass = run(problem, inputs, mass_options(subject())).mass;
            const Mask::Keys attended = Mask(problem).keys(position, head);
            int reached = 0;
            for (std::int32_t h = 0; h < problem.heads; ++h)
                for (std::int64_t m = 0; m < problem.length; ++m) {
                    const auto at = static_cast<std::size_t>(h * problem.length + m);
                    const bool is_attended = std::ranges::count(attended.positions, m) > 0;
                    if (h == head) {
                        ASSERT_EQ(std::isnan(mass[at]), is_attended) << "at " << m;
                    } else if (problem.kv_head(h) != problem.kv_head(head) || !is_attended) {
                        ASSERT_NEAR(mass[at], exact[at], 0.02 * exact[at] + 1e-4) << "head " << h << " at " << m;
                    }
                    reached += std::isnan(mass[at]);
                }
            EXPECT_GE(reached, 30);
        }
}

} // namespace
} // namespace annulus::test
