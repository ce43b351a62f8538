// SPDX-License-Identifier: Apache-2.0
// The attention mass over several ranks, as threads. Each rank finds the masses of its own keys, as the definition has
// them.
#include "engines/table.hpp"
#include "ranks/ranks_subject.hpp"

#include "support/mass.hpp"
#include "support/random_problem.hpp"
#include "support/sequences.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace annulus::test {

namespace {

void expect_masses(const Problem &problem, std::uint64_t seed) {
    const Inputs inputs = random_inputs(problem, seed);
    const std::vector<double> exact = mass_by_definition(problem, inputs);
    for (const RanksWay &way : ranks_ways())
        for (const annulus_exchange exchange : {ANNULUS_EXCHANGE_RING, ANNULUS_EXCHANGE_GATHER}) {
            const int ranks = way.rank_counts[seed % way.rank_counts.size()];
            RankOptions options;
            options.lengths = seed % 2 ? even_lengths(problem.length, ranks) //
                                       : random_lengths(problem.length, ranks, seed);
            options.run = way.run;
            options.run.mass = true;
            options.run.exchange = exchange;
            options.memories = way.memories(ranks);
            SCOPED_TRACE(testing::Message() << way.name << " " << testing::PrintToString(options.lengths)
                                            << " exchange " << exchange << " " << problem);
            expect_mass(problem, run_ranks(problem, poisoned(problem, inputs), options, way.comms(ranks)).mass, exact);
        }
}

std::vector<NamedProblem> problems() {
    std::vector<NamedProblem> all = {
        // Sequences on one rank and on several ranks, and rows that belong to no sequence.
        {"sequences",
         {.batch = 2,
          .length = 211,
          .heads = 6,
          .kv_heads = 2,
          .dim = 16,
          .branches = {{.segment = 48}, {.dilation = 3}},
          .zero_keys = true,
          .sequences = Sequences{{2, 50, 50, 99, 201}, {48, 0, 40, 102}}}},
        {"curves",
         {.length = 150,
          .heads = 4,
          .dim = 24,
          .branches = {{.segment = 30, .dilation = 2, .order = ANNULUS_ORDER_HILBERT},
                       {.dilation = 3, .order = ANNULUS_ORDER_HILBERT}}}},
        {"rounds", {.length = 90, .heads = 18, .kv_heads = 1, .branches = {{}, {.segment = 20, .dilation = 2}}}},
        {"longformer",
         {.length = 91,
          .heads = 4,
          .kv_heads = 2,
          .dim = 24,
          .branches = {window_spec(9, 9), global_spec(30, 4, true)},
          .keys_once = true}},
        {"fewer_rows_than_ranks", {.length = 3, .heads = 2, .dim = 8}},
    };
    for (const NamedProblem &named : up_to(small_work, with_keys_once(nested_problems())))
        all.push_back(named);
    all = with_dtypes(all, ranks_dtypes());
    for (const NamedProblem &named : with_dtypes(rule_combinations(), ranks_rule_dtypes()))
        all.push_back(named);
    return all;
}

class Mass : public testing::TestWithParam<NamedProblem> {};

TEST_P(Mass, OfOwnKeys) {
    const Problem &problem = GetParam().problem;
    if (const char *reason = ranks_ways().front().run.refusal_of(problem))
        GTEST_SKIP() << reason;
    for (const std::uint64_t seed : {1, 2})
        expect_masses(problem, seed);
}

INSTANTIATE_TEST_SUITE_P(Problems, Mass, testing::ValuesIn(problems()),
                         [](const auto &named) { return named.param.name; });

class Random : public testing::TestWithParam<int> {};

TEST_P(Random, OfOwnKeys) {
    const auto seed = static_cast<std::uint64_t>(GetParam());
    expect_masses(taken(random_shared_problem(seed), ranks_ways().front().run), seed);
}

INSTANTIATE_TEST_SUITE_P(Seeds, Random, testing::Range(0, sweep_size(100)));

// Zigzag shards, which balance causal attention.
TEST(MassOfRanges, IsOfTheRowsOfEachRank) {
    for (const RanksWay &way : ranks_ways())
        for (const annulus_dtype dtype : ranks_dtypes()) {
            const Problem problem = taken(mixed_problem(dtype), way.run);
            const Inputs inputs = random_inputs(problem, 9);
            RankOptions options;
            options.run = way.run;
            options.run.mass = true;
            options.memories = way.memories(2);
            Ranges ranges{even_lengths(problem.length, 4), {0, 1, 1, 0}};
            expect_mass(problem, run_ranges(problem, inputs, options, ranges, way.comms(2)).mass,
                        mass_by_definition(problem, inputs));
        }
}

} // namespace
} // namespace annulus::test
