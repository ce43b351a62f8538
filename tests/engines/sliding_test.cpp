// SPDX-License-Identifier: Apache-2.0
// Windows and global positions: the engines `reference` and `cpu` against the plain formula over the keys of the
// definition, and against other patterns that have the same keys.
#include "engines/table.hpp"

#include "support/compare.hpp"
#include "support/mask.hpp"
#include "support/mass.hpp"
#include "support/plain.hpp"
#include "support/random_problem.hpp"
#include "support/sequences.hpp"
#include "support/window.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace annulus::test {

namespace {

const RunOptions reference = {.engine = ANNULUS_ENGINE_REFERENCE}, cpu = {.engine = ANNULUS_ENGINE_CPU};

std::vector<NamedProblem> problems() {
    std::vector<NamedProblem> all;
    const auto add = [&](const std::string &name, const Problem &problem) { add_with_causality(name, problem, all); };
    add("window", {.length = 149, .branches = {window_spec(7, 4)}});
    add("window_of_the_query_alone", {.length = 40, .branches = {window_spec(0, 0)}});
    add("window_longer_than_the_sequence", {.length = 61, .branches = {window_spec(1000, 64)}});
    add("window_of_all_before", {.length = 133, .branches = {window_spec(-1, 3)}});
    add("window_of_all_after", {.length = 133, .branches = {window_spec(5, -1)}});
    add("window_of_one_position", {.length = 1, .branches = {window_spec(3, 3, 2)}});
    add("window_as_long_as_blocks", {.length = 777, .heads = 1, .branches = {window_spec(128, 127)}});
    add("dilated_window", {.length = 151, .branches = {window_spec(5, 3, 4)}});
    add("dilation_longer_than_the_sequence", {.length = 31, .branches = {window_spec(5, 3, 40)}});
    add("windows_of_phases", {.length = 150,
                              .heads = 6,
                              .kv_heads = 2,
                              .branches = {of_phases(window_spec(4, 2, 3), ANNULUS_PHASE_INTERLEAVE),
                                           of_phases(window_spec(9, 9, 5), ANNULUS_PHASE_FIXED, 12)}});
    add("windows_of_head_ranges",
        {.length = 150,
         .heads = 6,
         .kv_heads = 3,
         .branches = {with_heads(window_spec(4, 2), 0, 2), with_heads(window_spec(20, 1, 2), 2, 3),
                      with_heads(global_spec(3, 2, true), 1, 5)}});
    add("global_keys", {.length = 141, .branches = {global_spec(17, 5)}});
    add("global_keys_and_queries", {.length = 141, .branches = {global_spec(17, 5, true)}});
    add("global_at_the_beginning", {.length = 141, .branches = {global_spec(0, 3, true)}});
    add("global_at_the_end", {.length = 141, .branches = {global_spec(140, 1, true)}});
    add("global_cut", {.length = 141, .branches = {global_spec(130, 100, true), {.segment = 50}}});
    add("global_beyond_the_end", {.length = 141, .branches = {global_spec(141, 3, true), {.segment = 50}}});
    add("global_everything", {.length = 77, .branches = {global_spec(0, 1000, true)}});
    add("longformer", {.batch = 2,
                       .length = 333,
                       .heads = 4,
                       .kv_heads = 2,
                       .dim = 16,
                       .branches = {window_spec(32, 32), global_spec(0, 3, true)},
                       .keys_once = true});
    add("beside_segments", {.length = 211,
                            .heads = 4,
                            .kv_heads = 2,
                            .branches = {{.segment = 64},
                                         {.dilation = 4},
                                         window_spec(9, 9),
                                         window_spec(6, 6, 3),
                                         {.dilation = 3, .query = ANNULUS_QUERY_EVERY},
                                         global_spec(100, 7, true)}});
    add("beside_a_curve",
        {.length = 210,
         .branches = {window_spec(9, 9, 2), {.segment = 64, .dilation = 3, .order = ANNULUS_ORDER_HILBERT}}});
    // Slots of padding belong to the segments alone.
    add("beside_padding", {.length = 205,
                           .branches = {window_spec(9, 2, 2), {.segment = 64, .dilation = 3}, global_spec(0, 2)},
                           .zero_keys = true});
    add("window_of_queries", {.length = 300,
                              .branches = {window_spec(20, 3, 2), global_spec(150, 9, true)},
                              .window = QueryWindow{131, 77}});
    add("one_query", {.length = 300, .branches = {window_spec(100, 3)}, .window = QueryWindow{299, 1}});
    return all;
}

std::vector<NamedProblem> problems_of_both_rules() {
    return with_dtypes(with_both_key_rules(problems()),
                       {ANNULUS_FLOAT64, ANNULUS_FLOAT32, ANNULUS_BFLOAT16, ANNULUS_FLOAT16});
}

std::string name_of(const testing::TestParamInfo<NamedProblem> &info) {
    return info.param.name;
}

std::string name_of_engine(const testing::TestParamInfo<annulus_engine> &info) {
    return annulus_engine_name(info.param);
}

class Sliding : public testing::TestWithParam<NamedProblem> {};

TEST_P(Sliding, AgreesWithPlainFormula) {
    const Problem &problem = GetParam().problem;
    const Inputs inputs = random_inputs(problem, 2);
    const Results exact = plain(problem, inputs, ANNULUS_FLOAT64);
    expect_agreement(problem, inputs, run(problem, inputs, reference), exact);
    expect_agreement(problem, inputs, run(problem, inputs, cpu), exact);
}

INSTANTIATE_TEST_SUITE_P(Table, Sliding, testing::ValuesIn(problems_of_both_rules()), name_of);

class RandomSliding : public testing::TestWithParam<int> {};

TEST_P(RandomSliding, AgreesWithPlainFormula) {
    const std::uint64_t seed = sweep_seed(20260202) + static_cast<std::uint64_t>(GetParam());
    const Problem problem = random_sliding_problem(seed);
    SCOPED_TRACE(testing::Message() << "ANNULUS_TEST_SEED=" << seed << " problem " << problem);
    const Inputs inputs = random_inputs(problem, seed, seed % 2 == 0);
    const Results exact = plain(problem, inputs, ANNULUS_FLOAT64);
    expect_agreement(problem, inputs, run(problem, inputs, reference), exact);
    expect_agreement(problem, inputs, run(problem, inputs, cpu), exact);
}

TEST_P(RandomSliding, HasEachSequenceAsIfAlone) {
    const std::uint64_t seed = sweep_seed(20260303) + static_cast<std::uint64_t>(GetParam());
    const Problem problem = in_random_sequences(random_sliding_problem(seed), seed);
    SCOPED_TRACE(testing::Message() << "ANNULUS_TEST_SEED=" << seed << " problem " << problem);
    const Inputs inputs = random_inputs(problem, seed);
    const EachAlone alone(problem, inputs);
    alone.expect(run(problem, poisoned(problem, inputs), cpu));
}

TEST_P(RandomSliding, HasTheMassOfTheDefinition) {
    const std::uint64_t seed = sweep_seed(20260404) + static_cast<std::uint64_t>(GetParam());
    const Problem problem = random_sliding_problem(seed);
    SCOPED_TRACE(testing::Message() << "ANNULUS_TEST_SEED=" << seed << " problem " << problem);
    const Inputs inputs = random_inputs(problem, seed);
    RunOptions options = cpu;
    options.mass = true;
    expect_mass(problem, run(problem, inputs, options).mass, mass_by_definition(problem, inputs));
}

INSTANTIATE_TEST_SUITE_P(Sweep, RandomSliding, testing::Range(0, sweep_size(quick() ? 100 : 600)));

// Sequences of several chunks of keys and queries. Backward visits only the query chunks near a key chunk.
TEST(LongWindows, AgreeWithTheReference) {
    for (const BranchSpec &branch :
         {window_spec(300, 0), window_spec(511, 513), window_spec(0, 1), window_spec(600, 200, 3)})
        for (const std::int64_t start : {0, 1733}) {
            const Problem problem = {.length = 7001,
                                     .heads = 1,
                                     .branches = {branch, global_spec(3300, 2, true)},
                                     .keys_once = true,
                                     .window = QueryWindow{start, 5003}};
            SCOPED_TRACE(testing::Message() << problem);
            const Inputs inputs = random_inputs(problem, 7);
            expect_agreement(problem, inputs, run(problem, inputs, cpu), run_exact(problem, inputs));
        }
}

TEST(LongWindows, OfEveryThirdKeyAgreeWithTheReference) {
    BranchSpec own_phase = window_spec(100, 50, 3);
    own_phase.query = ANNULUS_QUERY_DILATED;
    for (const BranchSpec &branch : {window_spec(100, 50, 3), own_phase}) {
        const Problem problem = {
            .length = 8009, .heads = 2, .kv_heads = 1, .branches = {branch}, .causal = branch.query == own_phase.query};
        SCOPED_TRACE(testing::Message() << problem);
        const Inputs inputs = random_inputs(problem, 8);
        expect_agreement(problem, inputs, run(problem, inputs, cpu), run_exact(problem, inputs));
    }
}

// NaN in a row reaches the rows that attend to it, and no other row.
TEST(NanInWindows, ReachesRowsThatAttendToIt) {
    constexpr std::int64_t bad = 157;
    for (const bool causal : {false, true}) {
        const Problem problem = {
            .length = 333,
            .heads = 1,
            .branches = {window_spec(20, 3, 2), window_spec(7, 30), global_spec(bad - 40, 3, true)},
            .causal = causal,
            .keys_once = true};
        SCOPED_TRACE(testing::Message() << problem);
        const Inputs sound = random_inputs(problem, 11);
        const Results wanted = run(problem, sound, cpu);
        Inputs inputs = sound;
        const auto spoil = [&](std::vector<double> &rows) {
            std::fill_n(rows.begin() + bad * problem.dim, problem.dim, std::numeric_limits<double>::quiet_NaN());
        };
        spoil(inputs.v);
        const Results forward = run(problem, inputs, {.engine = ANNULUS_ENGINE_CPU, .backward = false});
        inputs = sound;
        spoil(inputs.d_out);
        const Results backward = run(problem, inputs, cpu);
        const Mask mask(problem);
        const auto expect_row = [&](const std::vector<double> &got, const std::vector<double> &unspoilt, std::int64_t n,
                                    bool is_reached) {
            for (std::int64_t i = n * problem.dim; i < (n + 1) * problem.dim; ++i)
                if (is_reached)
                    ASSERT_TRUE(std::isnan(got[i])) << "row " << n;
                else
                    ASSERT_NEAR(got[i], unspoilt[i], 1e-12) << "row " << n;
        };
        const auto has = [&](std::int64_t n, std::int64_t m) {
            return std::ranges::count(mask.keys(n, 0).positions, m) > 0;
        };
        for (std::int64_t n = 0; n < problem.length; ++n) {
            expect_row(forward.out, wanted.out, n, has(n, bad));
            expect_row(backward.d_v, wanted.d_v, n, has(bad, n));
            expect_row(backward.d_k, wanted.d_k, n, has(bad, n));
        }
    }
}

// ---- Patterns that have the same keys.

class SameKeys : public testing::TestWithParam<annulus_engine> {
  protected:
    void expect_same(const Problem &got, const Problem &wanted) const {
        const Inputs inputs = random_inputs(wanted, 6);
        const RunOptions options = {.engine = GetParam()};
        expect_near(run(got, inputs, options), run(wanted, inputs, options), tolerance_of(wanted.dtype));
    }
};

TEST_P(SameKeys, AWindowWithoutEndsIsTheSequence) {
    for (const auto dilation : {1, 3}) {
        const Problem window = {.length = 101, .branches = {window_spec(-1, -1, dilation)}};
        Problem whole = window;
        whole.branches = {{.dilation = dilation, .query = ANNULUS_QUERY_RESIDUE}};
        expect_same(window, whole);
    }
}

TEST_P(SameKeys, ACausalWindowHasNoKeysAfterTheQuery) {
    const Problem right = {.length = 101, .branches = {window_spec(9, 7)}, .causal = true};
    Problem none = right;
    none.branches = {window_spec(9, 0)};
    expect_same(right, none);
}

TEST_P(SameKeys, CausalIsNoRightSide) {
    const Problem causal = {.length = 101, .branches = {window_spec(9, 0, 2)}, .causal = true};
    Problem not_causal = causal;
    not_causal.causal = false;
    expect_same(causal, not_causal);
}

TEST_P(SameKeys, TwoSidesAreOneWindowIfTheQueryCountsOnce) {
    Problem sides = {.length = 101, .branches = {window_spec(9, 0), window_spec(0, 5)}, .keys_once = true};
    Problem window = sides;
    window.branches = {window_spec(9, 5)};
    expect_same(sides, window);
}

TEST_P(SameKeys, AWindowOfOnePositionHasItself) {
    const Problem window = {.length = 33, .branches = {window_spec(0, 0, 7)}};
    Problem segments = window;
    segments.branches = {{.segment = 1}};
    expect_same(window, segments);
}

INSTANTIATE_TEST_SUITE_P(Engines, SameKeys, testing::Values(ANNULUS_ENGINE_REFERENCE, ANNULUS_ENGINE_CPU),
                         name_of_engine);

// A token decoded against a cache has the row of the whole sequence.
TEST(SlidingWindowOfQueries, HasTheRowsOfAllQueries) {
    const Problem whole = {
        .length = 500, .branches = {window_spec(40, 0, 3), global_spec(0, 4)}, .causal = true, .keys_once = true};
    const Inputs inputs = random_inputs(whole, 3);
    const Results all = run(whole, inputs, {.backward = false});
    for (const std::int64_t n : {0, 3, 119, 499}) {
        const Windowed part(whole, inputs, n, 1);
        const Results results = run(part.problem, part.inputs, {.backward = false});
        expect_near("out", results.out, part.rows_of(all).out, tolerance_of(whole.dtype));
        expect_near("lse", results.lse, part.rows_of(all).lse, tolerance_of(whole.dtype));
    }
}

} // namespace
} // namespace annulus::test
