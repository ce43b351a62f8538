// SPDX-License-Identifier: Apache-2.0
// Several ranks, as threads, against the reference engine on each whole sequence in float64. Rows that belong to no
// sequence hold NaN.
#include "engines/table.hpp"
#include "ranks/ranks_subject.hpp"

#include "support/compare.hpp"
#include "support/random_problem.hpp"
#include "support/sequences.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <string>
#include <vector>

namespace annulus::test {

namespace {

class Expected {
  public:
    Expected(const Problem &problem, std::uint64_t seed) : Expected(problem, random_inputs(problem, seed)) {}

    void expect_of(const RanksWay &way, const std::vector<std::int64_t> &lengths) const {
        const int ranks = static_cast<int>(lengths.size());
        for (const annulus_exchange exchange : {ANNULUS_EXCHANGE_RING, ANNULUS_EXCHANGE_GATHER}) {
            SCOPED_TRACE(testing::Message()
                         << way.name << " " << testing::PrintToString(lengths) << " exchange " << exchange);
            RankOptions options;
            options.lengths = lengths;
            options.set_lengths = exchange == ANNULUS_EXCHANGE_GATHER;
            options.run = way.run;
            options.run.exchange = exchange;
            options.memories = way.memories(ranks);
            alone_.expect(run_ranks(problem_, inputs_, options, way.comms(ranks)));
        }
    }

    void expect_of(const RanksWay &way, int ranks, const Ranges &ranges) const {
        for (const annulus_exchange exchange : {ANNULUS_EXCHANGE_RING, ANNULUS_EXCHANGE_GATHER}) {
            SCOPED_TRACE(testing::Message()
                         << way.name << " lengths " << testing::PrintToString(ranges.lengths) << " of ranks "
                         << testing::PrintToString(ranges.ranks) << " exchange " << exchange);
            RankOptions options;
            options.run = way.run;
            options.run.exchange = exchange;
            options.memories = way.memories(ranks);
            alone_.expect(run_ranges(problem_, inputs_, options, ranges, way.comms(ranks)));
        }
    }

  private:
    Expected(const Problem &problem, const Inputs &inputs)
        : problem_(problem), inputs_(poisoned(problem, inputs)), alone_(problem, inputs) {}

    const Problem &problem_;
    const Inputs inputs_;
    const EachAlone alone_;
};

// Checks the elements of a gradient tensor, which were all `before` at first. Each rank stores `sums` by its own
// GradientSpec.
void expect_rows_written(const Problem &problem, std::size_t tensor, std::int64_t row_size,
                         const std::vector<std::int64_t> &lengths,
                         const std::vector<std::array<GradientSpec, 3>> &gradients, double before,
                         const std::vector<double> &got, const std::vector<double> &sums) {
    std::int64_t start = 0;
    for (std::size_t rank = 0; rank < lengths.size(); start += lengths[rank++]) {
        const GradientSpec &spec = gradients[rank][tensor];
        const annulus_dtype dtype = spec.is_float32 ? ANNULUS_FLOAT32 : problem.dtype;
        for (std::int64_t b = 0; b < problem.batch; ++b)
            for (std::int64_t i = 0; i < lengths[rank] * row_size; ++i) {
                const auto at = static_cast<std::size_t>((b * problem.length + start) * row_size + i);
                const double sum = round_to(statistics_dtype(problem.dtype), (spec.adds ? before : 0) + sums[at]);
                ASSERT_EQ(got[at], round_to(dtype, sum))
                    << "gradient " << tensor << " of rank " << rank << " at " << at;
            }
    }
}

void expect_written(const Problem &problem, const std::vector<std::int64_t> &lengths,
                    const std::vector<std::array<GradientSpec, 3>> &gradients, double before, const Results &got,
                    const Results &sums) {
    const std::int64_t query_row = problem.heads * problem.dim, key_row = problem.kv() * problem.dim;
    expect_rows_written(problem, 0, query_row, lengths, gradients, before, got.d_q, sums.d_q);
    expect_rows_written(problem, 1, key_row, lengths, gradients, before, got.d_k, sums.d_k);
    expect_rows_written(problem, 2, key_row, lengths, gradients, before, got.d_v, sums.d_v);
}

class Table : public testing::TestWithParam<NamedProblem> {};

TEST_P(Table, RanksAgreeWithOne) {
    const Problem &problem = GetParam().problem;
    const std::vector<RanksWay> ways = ranks_ways();
    if (const char *reason = ways.front().run.refusal_of(problem))
        GTEST_SKIP() << reason;
    const Expected expected(problem, 1);
    for (const RanksWay &way : ways)
        for (const int ranks : way.rank_counts) {
            if (ranks == 1 || !quick())
                expected.expect_of(way, even_lengths(problem.length, ranks));
            if (ranks > 1)
                expected.expect_of(way, random_lengths(problem.length, ranks, 1));
        }
}

// Gives range i of 2P to rank min(i, 2P - 1 - i). Under causality all ranks then have the same work.
Ranges zigzag(std::int64_t length, int ranks) {
    Ranges ranges{even_lengths(length, 2 * ranks), {}};
    for (std::int32_t i = 0; i < 2 * ranks; ++i)
        ranges.ranks.push_back(std::min(i, 2 * ranks - 1 - i));
    return ranges;
}

// Returns random ranges. Some are empty, some neighbours have one owner, and some ranks have no range.
Ranges random_ranges(std::int64_t length, int ranks, std::uint64_t seed) {
    std::mt19937_64 generator(seed);
    const int count = 1 + static_cast<int>(generator() % 9);
    Ranges ranges{random_lengths(length, count, seed), {}};
    for (int i = 0; i < count; ++i)
        ranges.ranks.push_back(static_cast<std::int32_t>(generator() % static_cast<std::uint64_t>(ranks)));
    return ranges;
}

TEST_P(Table, RanksWithRangesAgreeWithOne) {
    const Problem &problem = GetParam().problem;
    const std::vector<RanksWay> ways = ranks_ways();
    if (const char *reason = ways.front().run.refusal_of(problem))
        GTEST_SKIP() << reason;
    const Expected expected(problem, 2);
    for (const RanksWay &way : ways) {
        const int ranks = way.rank_counts.back();
        expected.expect_of(way, ranks, zigzag(problem.length, ranks));
        expected.expect_of(way, ranks,
                           random_ranges(problem.length, ranks, static_cast<std::uint64_t>(problem.length)));
        if (problem.sequences)
            expected.expect_of(way, ranks, balanced_ranges(problem, ranks));
    }
}

// Returns the problems without query windows, which several ranks do not support.
std::vector<NamedProblem> table(const std::vector<NamedProblem> &problems, const std::vector<annulus_dtype> &dtypes) {
    std::vector<NamedProblem> all = with_dtypes(up_to(quick() ? 1e6 : small_work, problems), dtypes);
    std::erase_if(all, [](const NamedProblem &named) { return named.problem.window.has_value(); });
    return all;
}

std::string name_of(const testing::TestParamInfo<NamedProblem> &info) {
    return info.param.name;
}

INSTANTIATE_TEST_SUITE_P(Rules, Table, testing::ValuesIn(table(rule_combinations(), ranks_rule_dtypes())), name_of);
INSTANTIATE_TEST_SUITE_P(Named, Table, testing::ValuesIn(table(named_problems(), ranks_dtypes())), name_of);
INSTANTIATE_TEST_SUITE_P(RulesOnce, Table,
                         testing::ValuesIn(table(with_keys_once(rule_combinations()), {ranks_rule_dtypes().front()})),
                         name_of);
INSTANTIATE_TEST_SUITE_P(NestedOnce, Table, testing::ValuesIn(table(with_keys_once(nested_problems()), ranks_dtypes())),
                         name_of);

// Sequences on one rank, on two ranks, and over all ranks. Some ranks have rows that belong to no sequence.
std::vector<NamedProblem> sequences() {
    const std::vector<BranchSpec> branches = {
        {.segment = 20}, {.segment = 64, .dilation = 3, .query = ANNULUS_QUERY_EVERY}, {.dilation = 2}};
    std::vector<NamedProblem> problems;
    const auto add = [&](const std::string &name, std::int64_t batch, const Sequences &sequences) {
        for (const bool causal : {false, true})
            problems.push_back({name + (causal ? "_causal" : ""),
                                {.batch = batch,
                                 .length = 150,
                                 .heads = 4,
                                 .kv_heads = 2,
                                 .dim = 16,
                                 .branches = branches,
                                 .causal = causal,
                                 .zero_keys = !causal,
                                 .sequences = sequences}});
    };
    add("packed", 1, {{0, 10, 11, 80, 150}, {}});
    add("packed_two_entries", 2, {{0, 70, 140, 150}, {}});
    add("packed_with_gaps", 2, {{20, 60, 60, 120, 140}, {30, 0, 60, 1}});
    add("all_rows_at_one_end", 1, {{0, 15, 30}, {}});
    add("empty_sequences", 1, {{10, 10, 150, 150}, {0, 0, 0}});
    add("padded", 4, {{}, {150, 0, 1, 77}});
    problems.push_back({"curves",
                        {.length = 150,
                         .heads = 4,
                         .branches = {{.segment = 30, .dilation = 2, .order = ANNULUS_ORDER_HILBERT},
                                      {.dilation = 3, .order = ANNULUS_ORDER_HILBERT}},
                         .sequences = Sequences{{3, 67, 128, 148}, {}}}});
    return problems;
}

INSTANTIATE_TEST_SUITE_P(Sequences, Table, testing::ValuesIn(table(sequences(), ranks_dtypes())), name_of);

// Global positions: on one shard, over borders of shards, more than a shard has, beyond the end; with segments and
// windows that end at the borders of shards and others.
std::vector<NamedProblem> global_positions() {
    std::vector<NamedProblem> problems;
    const auto add = [&](const std::string &name, const std::vector<BranchSpec> &branches, bool keys_once) {
        for (const bool causal : {false, true})
            problems.push_back({name + (causal ? "_causal" : ""),
                                {.batch = 2,
                                 .length = 151,
                                 .heads = 4,
                                 .kv_heads = 2,
                                 .dim = 24,
                                 .branches = branches,
                                 .causal = causal,
                                 .keys_once = keys_once}});
    };
    BranchSpec of_some_heads = global_spec(149, 7, true);
    of_some_heads.first_head = 1;
    of_some_heads.head_count = 2;
    add("sinks", {window_spec(17, 0), global_spec(0, 4)}, false);
    add("longformer", {window_spec(9, 9), global_spec(0, 3, true)}, true);
    add("over_borders", {{.segment = 50}, {.segment = 75, .dilation = 3}, global_spec(44, 63, true)}, false);
    add("many", {window_spec(3, 2, 4), global_spec(20, 100, true)}, true);
    add("at_the_end", {{.segment = 10}, of_some_heads}, false);
    add("two_branches", {global_spec(148, 1, true), {.dilation = 5}, global_spec(70, 2)}, false);
    add("alone", {global_spec(51, 3)}, false);
    for (std::size_t i = 0; i < 4; ++i) {
        problems.push_back({problems[i].name + "_documents", problems[i].problem});
        problems.back().problem = in_documents(problems.back().problem, {2, 90, 0, 59, 1, 40});
    }
    return problems;
}

INSTANTIATE_TEST_SUITE_P(GlobalPositions, Table, testing::ValuesIn(table(global_positions(), ranks_dtypes())), name_of);

// One branch whose classes have whole blocks of 64 rows on each rank. For such blocks an engine may store more results.
std::vector<NamedProblem> whole_blocks() {
    std::vector<NamedProblem> problems;
    for (const bool causal : {false, true})
        for (const std::int64_t dilation : {1, 2})
            for (const std::int32_t kv_heads : {1, 2})
                problems.push_back({"dilation_" + std::to_string(dilation) + "_kv_" + std::to_string(kv_heads) +
                                        (causal ? "_causal" : ""),
                                    {.batch = 2,
                                     .length = quick() ? 192 : 384,
                                     .heads = 2,
                                     .kv_heads = kv_heads,
                                     .dim = 72,
                                     .branches = {{.dilation = dilation}},
                                     .causal = causal}});
    // Several sequences, which use such memory one after the other.
    for (std::size_t i = 0; i < 2; ++i) {
        problems.push_back({problems[4 * i].name + "_documents", problems[4 * i].problem});
        problems.back().problem = in_documents(problems.back().problem, {128, 64, quick() ? 0 : 192});
    }
    return problems;
}

INSTANTIATE_TEST_SUITE_P(WholeBlocks, Table, testing::ValuesIn(with_dtypes(whole_blocks(), ranks_dtypes())), name_of);

// Shards and ranges that cut no segment along a curve: some engines take no others. In some problems a branch in the
// linear order reaches over the shards. In the others no rank needs rows of another rank.
class WholeSegments : public testing::TestWithParam<NamedProblem> {};

TEST_P(WholeSegments, AlongACurveAgreeWithOne) {
    const Problem &problem = GetParam().problem;
    const std::int64_t segment = problem.branches.back().segment, count = problem.length / segment;
    const auto in_segments = [&](std::vector<std::int64_t> lengths) {
        for (std::int64_t &length : lengths)
            length *= segment;
        lengths.back() += problem.length % segment;
        return lengths;
    };
    const Expected expected(problem, 4);
    for (const RanksWay &way : ranks_ways())
        for (const int ranks : way.rank_counts) {
            expected.expect_of(way, in_segments(even_lengths(count, ranks)));
            expected.expect_of(way, in_segments(random_lengths(count, ranks, 2)));
            Ranges ranges = zigzag(count, ranks);
            ranges.lengths = in_segments(ranges.lengths);
            expected.expect_of(way, ranks, ranges);
        }
}

std::vector<NamedProblem> curves_of_whole_segments() {
    constexpr auto hilbert = ANNULUS_ORDER_HILBERT;
    const std::vector<NamedProblem> problems = {
        {"one_curve", {.heads = 4, .dim = 72, .branches = {{.segment = 144, .dilation = 2, .order = hilbert}}}},
        {"curve_and_line",
         {.batch = 2,
          .heads = 4,
          .dim = 64,
          .branches = {{.dilation = 4}, {.segment = 144, .dilation = 2, .order = hilbert}}}},
        {"curves_and_lines",
         {.heads = 4,
          .kv_heads = 2,
          .dim = 128,
          .branches = {{.segment = 50},
                       {.dilation = 8},
                       {.segment = 72, .dilation = 3, .order = hilbert},
                       {.segment = 144, .dilation = 2, .query = ANNULUS_QUERY_RESIDUE, .order = hilbert}}}},
    };
    std::vector<NamedProblem> all;
    for (const auto &[name, problem] : problems)
        for (const bool causal : {false, true}) {
            all.push_back({name + (causal ? "_causal" : ""), problem});
            all.back().problem.length = (quick() ? 3 : 7) * 144 + 100; // 100: a short segment, of 10 x 10 cells
            all.back().problem.causal = causal;
        }
    return with_dtypes(all, ranks_dtypes());
}

INSTANTIATE_TEST_SUITE_P(Curves, WholeSegments, testing::ValuesIn(curves_of_whole_segments()), name_of);

// Each rank stores the gradients of its rows in its own way. The sums that it should add come from a run that adds to
// zeros, in the widest dtype.
TEST(Ranks, WriteGradientsEachItsOwnWay) {
    const std::vector<RanksWay> ways = ranks_ways();
    constexpr GradientSpec plain{}, adds{.adds = true};
    for (const bool causal : {false, true})
        for (const annulus_dtype dtype : ranks_dtypes()) {
            Problem problem = taken(mixed_problem(dtype), ways.front().run);
            problem.causal = causal;
            const bool is_half = bytes_of(dtype) == 2;
            const GradientSpec wide{.is_float32 = is_half, .adds = true};
            const std::vector<std::array<GradientSpec, 3>> kinds = {
                {adds, plain, wide}, {wide, wide, wide}, {plain, plain, plain}, {GradientSpec{is_half}, adds, plain}};
            Inputs inputs = random_inputs(problem, 3);
            const Results exact = run_exact(problem, inputs), low = plain_if_half(problem, inputs);
            for (const RanksWay &way : ways)
                for (const int ranks : way.rank_counts) {
                    SCOPED_TRACE(testing::Message() << way.name << " ranks: " << ranks << " " << problem);
                    RankOptions options;
                    options.lengths = random_lengths(problem.length, ranks, 5);
                    options.set_lengths = true;
                    options.run = way.run;
                    options.memories = way.memories(ranks);
                    const auto run_from = [&](double before, const auto &gradients) {
                        inputs.d_q.assign(problem.q_size(), before);
                        inputs.d_k.assign(problem.kv_size(), before);
                        inputs.d_v = inputs.d_k;
                        options.gradients = gradients;
                        return run_ranks(problem, inputs, options, way.comms(ranks));
                    };
                    const auto count = static_cast<std::size_t>(ranks);
                    const Results sums = run_from(0, std::vector(count, kinds[1]));
                    expect_agreement(problem, sums, exact, low);
                    std::vector<std::array<GradientSpec, 3>> mixed;
                    for (std::size_t rank = 0; rank < count; ++rank)
                        mixed.push_back(kinds[rank % kinds.size()]);
                    expect_written(problem, options.lengths, mixed, 3, run_from(3, mixed), sums);
                }
        }
}

// Results are the same in every run. Sums in the order of arrival would sometimes differ.
TEST(Ranks, GiveTheSameBitsEveryTime) {
    const std::vector<RanksWay> ways = ranks_ways();
    Problem problem = taken(mixed_problem(ranks_dtypes().back()), ways.front().run);
    problem.causal = false;
    const Inputs inputs = random_inputs(problem, 7);
    for (const RanksWay &way : ways)
        for (const annulus_exchange exchange : {ANNULUS_EXCHANGE_RING, ANNULUS_EXCHANGE_GATHER}) {
            const int ranks = way.rank_counts.back();
            RankOptions options;
            options.lengths = random_lengths(problem.length, ranks, 7);
            options.run = way.run;
            options.run.exchange = exchange;
            options.memories = way.memories(ranks);
            const Results first = run_ranks(problem, inputs, options, way.comms(ranks));
            for (int i = 0; i < (quick() ? 2 : 10); ++i)
                expect_identical(run_ranks(problem, inputs, options, way.comms(ranks)), first);
        }
}

// Checks long shards against one rank of the same engine. The reference engine would take minutes.
void expect_long_shards_agree(Problem problem) {
    const std::vector<RanksWay> ways = ranks_ways();
    const std::int64_t half = quick() ? 12000 : 150000;
    problem.length = 2 * half + 1;
    problem.dtype = ranks_dtypes().front();
    const Inputs inputs = random_inputs(problem, 3);
    const Results wanted = run(problem, inputs, ways.front().run);
    for (const RanksWay &way : ways)
        for (const annulus_exchange exchange : {ANNULUS_EXCHANGE_RING, ANNULUS_EXCHANGE_GATHER}) {
            SCOPED_TRACE(testing::Message() << way.name << " exchange " << exchange << " " << problem);
            const int ranks = way.rank_counts.back();
            RankOptions options;
            options.lengths.assign(static_cast<std::size_t>(ranks), 4999);
            options.lengths.front() = half + 1;
            options.lengths.back() = ranks > 1 ? half - (ranks - 2) * 4999 : problem.length;
            options.run = way.run;
            options.run.exchange = exchange;
            options.memories = way.memories(ranks);
            expect_near(run_ranks(problem, inputs, options, way.comms(ranks)), wanted, tolerance_of(problem.dtype));
        }
}

// Branches that reach far over the border have their rows in messages of their own.
TEST(LongShards, AgreeWithOneRankWhereBranchesReachFar) {
    for (const bool causal : {false, true})
        expect_long_shards_agree({.heads = 2,
                                  .kv_heads = 1,
                                  .dim = 8,
                                  .branches = {{.segment = 64}, {.segment = 4096, .dilation = 64}, {.dilation = 2048}},
                                  .causal = causal,
                                  .keys_once = causal});
}

// Global positions of another rank beside segments that end at the border and segments and windows that do not.
TEST(LongShards, AgreeWithOneRankBesideGlobalPositions) {
    for (const bool causal : {false, true})
        expect_long_shards_agree({.heads = 2,
                                  .dim = 8,
                                  .branches = {{.segment = 64},
                                               {.segment = 3000, .dilation = 16},
                                               window_spec(60, 60, 5),
                                               global_spec(4997, 5, true)},
                                  .causal = causal});
}

// Branches so different that an engine may split the branches of a rank's own keys over several launches.
TEST(LongShards, AgreeWithOneRankWhereBranchesAreSplit) {
    for (const bool causal : {false, true})
        expect_long_shards_agree({.heads = 2,
                                  .dim = 8,
                                  .branches = {{.segment = 64}, {.segment = 3000, .dilation = 16}, {.dilation = 64}},
                                  .causal = causal});
}

class Random : public testing::TestWithParam<int> {};

TEST_P(Random, RanksAgreeWithOne) {
    const auto seed = static_cast<std::uint64_t>(GetParam());
    Problem problem = random_shared_problem(seed);
    problem.keys_once = seed % 4 == 2;
    const std::vector<RanksWay> ways = ranks_ways();
    problem = taken(problem, ways.front().run);
    SCOPED_TRACE(testing::Message() << problem);
    const Expected expected(problem, seed);
    for (const RanksWay &way : ways) {
        const int ranks = way.rank_counts[seed % way.rank_counts.size()];
        expected.expect_of(way, random_lengths(problem.length, ranks, seed));
    }
}

INSTANTIATE_TEST_SUITE_P(Seeds, Random, testing::Range(0, sweep_size(quick() ? 100 : 300)));

} // namespace
} // namespace annulus::test
