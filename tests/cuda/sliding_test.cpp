// SPDX-License-Identifier: Apache-2.0
// Windows and global positions on a GPU engine, against the reference: forward and backward.
#include "engines/subject.hpp"
#include "engines/table.hpp"

#include "support/compare.hpp"
#include "support/mask.hpp"
#include "support/mass.hpp"
#include "support/random_problem.hpp"
#include "support/sequences.hpp"
#include "support/window.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

namespace annulus::test {

namespace {

// Compares the subject with the reference.
void expect_reference(const Problem &problem, std::uint64_t seed, const RunOptions &way = subject()) {
    SCOPED_TRACE(testing::Message() << problem);
    const Inputs inputs = random_inputs(problem, seed);
    expect_agreement(problem, inputs, run(problem, inputs, way), run_exact(problem, inputs));
}

// Tiles have 64 to 192 rows and blocks of ranges 32 to 128, so these windows are shorter and longer than both, and end
// at, before and behind their ends.
class WindowSides : public testing::TestWithParam<std::tuple<std::int64_t, std::int64_t>> {};

TEST_P(WindowSides, AgreeWithReference) {
    const auto [left, right] = GetParam();
    for (const annulus_dtype dtype : dtypes_of_part(subject_dtypes()))
        for (const auto &[length, dim] : {std::pair(1031, 64), std::pair(512, 128)})
            for (const bool causal : {false, true})
                expect_reference({.length = length,
                                  .heads = 2,
                                  .dim = dim,
                                  .branches = {window_spec(left, right)},
                                  .causal = causal,
                                  .dtype = dtype},
                                 1);
}

std::string name_of_sides(const testing::TestParamInfo<WindowSides::ParamType> &info) {
    const auto text = [](std::int64_t steps) { return steps < 0 ? std::string("all") : std::to_string(steps); };
    return text(std::get<0>(info.param)) + "_and_" + text(std::get<1>(info.param));
}

INSTANTIATE_TEST_SUITE_P(Left, WindowSides,
                         testing::Combine(testing::Values(0, 1, 63, 64, 127, 129, 255, 511, 2000, -1),
                                          testing::Values(0, 77, -1)),
                         name_of_sides);

std::vector<NamedProblem> problems() {
    std::vector<NamedProblem> all;
    const auto add = [&](const std::string &name, const Problem &problem) { add_with_causality(name, problem, all); };
    add("of_one_position", {.length = 1, .branches = {window_spec(3, 3, 2)}});
    add("dilated", {.length = 1151, .heads = 2, .dim = 64, .branches = {window_spec(50, 31, 4)}});
    add("dilated_by_an_odd_number", {.length = 2203, .heads = 3, .dim = 32, .branches = {window_spec(255, 255, 7)}});
    add("dilated_more_than_the_sequence", {.length = 331, .branches = {window_spec(5, 3, 340)}});
    add("of_phases", {.length = 1150,
                      .heads = 6,
                      .kv_heads = 2,
                      .dim = 64,
                      .branches = {of_phases(window_spec(44, 20, 3), ANNULUS_PHASE_INTERLEAVE),
                                   of_phases(window_spec(9, 90, 6), ANNULUS_PHASE_FIXED, 11)}});
    add("of_head_ranges",
        {.length = 750,
         .heads = 6,
         .kv_heads = 3,
         .branches = {{.dilation = 8, .query = ANNULUS_QUERY_EVERY}, with_heads(window_spec(200, 100, 2), 2, 3)}});
    add("beside_segments", {.batch = 2,
                            .length = 1211,
                            .heads = 4,
                            .kv_heads = 2,
                            .dim = 48,
                            .branches = {{.segment = 256}, {.segment = 640, .dilation = 4}, window_spec(129, 61)}});
    add("beside_residues", {.length = 1211,
                            .heads = 2,
                            .dim = 64,
                            .branches = {{.segment = 640, .dilation = 3, .query = ANNULUS_QUERY_RESIDUE},
                                         window_spec(129, 61),
                                         window_spec(40, 61, 6)}});
    add("that_overlap", {.length = 1211,
                         .heads = 2,
                         .dim = 64,
                         .branches = {window_spec(129, 61), window_spec(300, 10), window_spec(129, 61)}});
    add("beside_a_curve",
        {.length = 1210,
         .heads = 2,
         .branches = {window_spec(90, 90), {.segment = 640, .dilation = 3, .order = ANNULUS_ORDER_HILBERT}}});
    add("beside_padding", {.length = 1205,
                           .heads = 3,
                           .dim = 64,
                           .branches = {window_spec(90, 20), {.segment = 512, .dilation = 3}},
                           .zero_keys = true});
    add("of_some_queries", {.length = 1300,
                            .heads = 4,
                            .kv_heads = 1,
                            .dim = 64,
                            .branches = {window_spec(200, 3)},
                            .window = QueryWindow{531, 377}});
    add("of_one_query", {.length = 1300,
                         .heads = 8,
                         .kv_heads = 2,
                         .dim = 128,
                         .branches = {window_spec(300, 3)},
                         .window = QueryWindow{1299, 1}});
    add("longformer", {.batch = 2,
                       .length = 1231,
                       .heads = 4,
                       .kv_heads = 2,
                       .dim = 64,
                       .branches = {window_spec(128, 128), global_spec(0, 3, true)}});
    add("global_keys", {.length = 641, .heads = 2, .branches = {global_spec(317, 75)}});
    add("global_keys_and_queries", {.length = 641, .heads = 2, .dim = 64, .branches = {global_spec(317, 75, true)}});
    add("global_at_the_end", {.length = 641, .branches = {global_spec(640, 1, true), window_spec(65, 3, 2)}});
    add("global_beyond_the_end", {.length = 641, .branches = {global_spec(641, 3, true), {.segment = 150}}});
    add("global_everything", {.length = 277, .branches = {global_spec(0, 1000, true)}});
    add("global_beside_segments", {.length = 1211,
                                   .heads = 2,
                                   .kv_heads = 1,
                                   .dim = 48,
                                   .branches = {{.segment = 256}, global_spec(100, 7, true), {.dilation = 4}}});
    add("global_of_head_ranges",
        {.length = 450,
         .heads = 6,
         .kv_heads = 3,
         .branches = {with_heads(window_spec(40, 2), 0, 2), with_heads(global_spec(3, 2, true), 1, 4)}});
    add("global_twice",
        {.length = 613, .branches = {global_spec(10, 70, true), window_spec(33, 33), global_spec(60, 90)}});
    add("global_queries_twice_apart",
        {.batch = 2,
         .length = 613,
         .heads = 3,
         .dim = 64,
         .branches = {global_spec(10, 70, true), window_spec(33, 33), global_spec(500, 9, true)}});
    add("global_queries_twice",
        {.length = 613, .branches = {global_spec(10, 70, true), window_spec(33, 33), global_spec(60, 90, true)}});
    add("global_beside_classes", {.length = 1211,
                                  .heads = 4,
                                  .dim = 64,
                                  .branches = {{.segment = 640, .dilation = 4}, global_spec(600, 7, true), {}}});
    add("global_beside_padding", {.length = 1205,
                                  .heads = 3,
                                  .dim = 64,
                                  .branches = {{.segment = 512, .dilation = 3}, global_spec(700, 5)},
                                  .zero_keys = true});
    add("global_of_some_queries", {.length = 1300,
                                   .heads = 2,
                                   .dim = 64,
                                   .branches = {window_spec(20, 3), global_spec(550, 90, true)},
                                   .window = QueryWindow{531, 77}});
    return all;
}

// Key rule `once` takes branches whose dilations divide one another and whose query rules are alike.
std::vector<NamedProblem> problems_of_both_rules() {
    return with_dtypes(with_both_key_rules(problems()), subject_dtypes());
}

std::string name_of(const testing::TestParamInfo<NamedProblem> &info) {
    return info.param.name;
}

class Sliding : public testing::TestWithParam<NamedProblem> {};

TEST_P(Sliding, AgreeWithReference) {
    const Problem &problem = GetParam().problem;
    const char *const reason = subject().refusal_of(problem);
    const auto is_named = [](const char *word) { return GetParam().name.find(word) != std::string::npos; };
    if (reason && problem.keys_once &&
        (is_named("curve") || is_named("head_ranges") || is_named("twice") || is_named("global_beside_padding")))
        GTEST_SKIP() << reason;
    ASSERT_EQ(reason, nullptr) << reason;
    expect_reference(problem, 2);
}

INSTANTIATE_TEST_SUITE_P(Table, Sliding, testing::ValuesIn(problems_of_both_rules()), name_of);

class RandomSliding : public testing::TestWithParam<int> {
  protected:
    Problem problem(std::uint64_t first_seed) {
        seed_ = sweep_seed(first_seed) + static_cast<std::uint64_t>(GetParam());
        Problem random = random_sliding_problem(seed_);
        random.dtype = subject_dtypes()[seed_ % subject_dtypes().size()];
        return taken(random, subject());
    }
    std::uint64_t seed_ = 0;
};

TEST_P(RandomSliding, AgreeWithReference) {
    const Problem own = problem(20270101);
    SCOPED_TRACE(testing::Message() << "ANNULUS_TEST_SEED=" << seed_);
    const std::vector<RunOptions> ways = subject_ways();
    expect_reference(own, seed_, ways[seed_ % ways.size()]);
}

TEST_P(RandomSliding, HaveEachSequenceAsIfAlone) {
    const Problem own = taken(in_random_sequences(problem(20270202), seed_), subject());
    SCOPED_TRACE(testing::Message() << "ANNULUS_TEST_SEED=" << seed_ << " problem " << own);
    const Inputs inputs = random_inputs(own, seed_);
    const EachAlone alone(own, inputs);
    alone.expect(run(own, poisoned(own, inputs), subject()));
}

TEST_P(RandomSliding, HaveTheMassOfTheDefinition) {
    const Problem own = problem(20270303);
    SCOPED_TRACE(testing::Message() << "ANNULUS_TEST_SEED=" << seed_ << " problem " << own);
    const Inputs inputs = random_inputs(own, seed_);
    RunOptions options = subject();
    options.mass = true;
    expect_mass(own, run(own, inputs, options).mass, mass_by_definition(own, inputs));
}

INSTANTIATE_TEST_SUITE_P(Sweep, RandomSliding, testing::Range(0, sweep_size(quick() ? 100 : 600)));

// In each of these problems a few queries meet many keys, or a few keys many queries: global positions, and steps of
// decoding. Several CTAs compute the results of such a row, with a part of what it meets each.
std::vector<NamedProblem> problems_of_few_rows() {
    std::vector<NamedProblem> all;
    const auto add = [&](const std::string &name, const Problem &problem) { add_with_causality(name, problem, all); };
    add("longformer", {.batch = 2,
                       .length = 9001,
                       .heads = 4,
                       .kv_heads = 2,
                       .dim = 64,
                       .branches = {window_spec(60, 60), global_spec(0, 3, true)}});
    add("global_in_the_middle",
        {.length = 12345, .heads = 3, .dim = 40, .branches = {window_spec(20, 3), global_spec(6000, 16, true)}});
    // The positions before the global ones are cut into parts, those behind them are too few.
    add("global_beside_segments",
        {.length = 9001,
         .heads = 2,
         .dim = 128,
         .branches = {{.segment = 512}, {.segment = 2048, .dilation = 4}, global_spec(5001, 16, true)}});
    add("sinks",
        {.batch = 3, .length = 9001, .heads = 2, .dim = 64, .branches = {window_spec(100, 0), global_spec(4003, 5)}});
    add("global_at_the_end",
        {.length = 8193, .heads = 2, .dim = 64, .branches = {window_spec(20, 3, 2), global_spec(8120, 73, true)}});
    add("global_of_head_ranges",
        {.length = 9001,
         .heads = 4,
         .kv_heads = 2,
         .dim = 64,
         .branches = {with_heads(window_spec(40, 2), 0, 2), with_heads(global_spec(8990, 5, true), 1, 2)}});
    add("one_query", {.batch = 3,
                      .length = 20011,
                      .heads = 4,
                      .kv_heads = 1,
                      .dim = 64,
                      .branches = {{}},
                      .window = QueryWindow{20010, 1}});
    add("some_queries", {.length = 20011,
                         .heads = 2,
                         .dim = 64,
                         .branches = {{.segment = 2048}, {.segment = 9000, .dilation = 2}, {}},
                         .window = QueryWindow{17900, 77}});
    add("queries_of_classes", {.length = 60001,
                               .heads = 4,
                               .dim = 32,
                               .branches = {{.dilation = 4}, {.dilation = 8}},
                               .window = QueryWindow{59900, 50}});
    return all;
}

class FewRows : public testing::TestWithParam<NamedProblem> {
  protected:
    const Problem problem_ = taken(GetParam().problem, subject());
    const Inputs inputs_ = random_inputs(problem_, 3);
};

TEST_P(FewRows, AgreeWithReference) {
    SCOPED_TRACE(testing::Message() << problem_);
    const Results exact = run_exact(problem_, inputs_);
    const Results own = run(problem_, inputs_, subject());
    expect_agreement(problem_, inputs_, own, exact);
    expect_identical(run(problem_, inputs_, subject()), own);
    // With the least memory there are fewer parts, or none.
    RunOptions limited = subject();
    limited.workspace_limit = 1 << 16;
    limited.raise_limit = true;
    expect_agreement(problem_, inputs_, run(problem_, inputs_, limited), exact);
}

TEST_P(FewRows, HaveTheMassOfTheDefinition) {
    RunOptions options = subject();
    options.mass = true;
    expect_mass(problem_, run(problem_, inputs_, options).mass, mass_by_definition(problem_, inputs_));
}

INSTANTIATE_TEST_SUITE_P(Table, FewRows,
                         testing::ValuesIn(with_dtypes(with_both_key_rules(problems_of_few_rows()), subject_dtypes())),
                         name_of);

// A part whose keys are all hidden, or whose scores are NaN, is merged like any other.
TEST(NanInFewRows, ReachesRowsThatAttendToIt) {
    constexpr std::int64_t bad = 8993;
    const Problem problem = {.length = 9001,
                             .heads = 1,
                             .dim = 64,
                             .branches = {window_spec(3, 0), global_spec(8990, 5, true)},
                             .causal = true,
                             .dtype = subject_usual_dtype()};
    Inputs inputs = random_inputs(problem, 11);
    std::fill_n(inputs.k.begin() + bad * problem.dim, problem.dim, std::numeric_limits<double>::quiet_NaN());
    RunOptions forward_alone = subject();
    forward_alone.backward = false;
    const Results got = run(problem, inputs, forward_alone);
    const Mask mask(problem);
    for (std::int64_t n = 0; n < problem.length; ++n) {
        const bool is_reached = std::ranges::count(mask.keys(n, 0).positions, bad) > 0;
        for (std::int64_t i = n * problem.dim; i < (n + 1) * problem.dim; ++i)
            ASSERT_EQ(std::isnan(got.out[static_cast<std::size_t>(i)]), is_reached) << "row " << n;
    }
}

// NaN in V and dO of row `bad` reaches the rows that attend to it and, in backward, the rows to which it attends. It
// reaches no other row.
void expect_nan_where_attended(const Problem &problem, std::int64_t bad) {
    SCOPED_TRACE(testing::Message() << problem);
    const Inputs sound = random_inputs(problem, 11);
    const auto spoilt = [&](std::vector<double> Inputs::*rows) {
        Inputs inputs = sound;
        std::fill_n((inputs.*rows).begin() + bad * problem.dim, problem.dim, std::numeric_limits<double>::quiet_NaN());
        return inputs;
    };
    RunOptions forward_alone = subject();
    forward_alone.backward = false;
    const Results forward = run(problem, spoilt(&Inputs::v), forward_alone),
                  backward = run(problem, spoilt(&Inputs::d_out), subject());
    const Mask mask(problem);
    const auto has = [&](std::int64_t n, std::int64_t m) {
        return std::ranges::count(mask.keys(n, 0).positions, m) > 0;
    };
    const auto expect_row = [&](const std::vector<double> &got, std::int64_t n, bool is_reached) {
        for (std::int64_t i = n * problem.dim; i < (n + 1) * problem.dim; ++i)
            ASSERT_EQ(std::isnan(got[static_cast<std::size_t>(i)]), is_reached) << "row " << n;
    };
    for (std::int64_t n = 0; n < problem.length; ++n) {
        expect_row(forward.out, n, has(n, bad));
        expect_row(backward.d_v, n, has(bad, n));
        expect_row(backward.d_k, n, has(bad, n));
    }
}

TEST(NanInWindows, ReachesRowsThatAttendToIt) {
    const std::vector<std::vector<BranchSpec>> patterns{{window_spec(20, 3, 2), window_spec(70, 130)},
                                                        {window_spec(70, 130), global_spec(900, 6, true)},
                                                        {{.segment = 300}, global_spec(2, 3)}};
    for (const std::vector<BranchSpec> &branches : patterns)
        for (const bool causal : {false, true}) {
            Problem problem = {.length = 1033,
                               .heads = 1,
                               .dim = 64,
                               .branches = branches,
                               .causal = causal,
                               .dtype = subject_usual_dtype()};
            expect_nan_where_attended(problem, 457);
            // Kernels write no float32 gradient. So it comes from partial results of all rows, and the others do not.
            problem.dtype = ANNULUS_FLOAT16;
            for (const std::size_t gradient : {0, 1}) { // dQ, dK
                problem.gradients = {};
                problem.gradients[gradient].is_float32 = true;
                expect_nan_where_attended(problem, 457);
            }
        }
}

} // namespace
} // namespace annulus::test
