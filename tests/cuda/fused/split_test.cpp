// SPDX-License-Identifier: Apache-2.0
// Tests `fused` where it splits its work: branches into several launches, and stored dS into parts.
#include "cuda/fused/calls.hpp"
#include "cuda/fused/problems.hpp"
#include "cuda/fused/storing_branches.hpp"

#include "support/compare.hpp"
#include "support/number.hpp"
#include "support/ranks.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace annulus::test {
namespace {

std::uint64_t bytes_of(annulus_pass pass, const Problem &problem, std::uint64_t limit) {
    RunOptions options = subject();
    options.workspace_limit = limit;
    const Context context = make_context(make_config(problem, options).get(), 0, device_memory());
    const annulus_call_options call = options_of(problem);
    const annulus_problem sizes = sizes_of(problem, &call);
    std::uint64_t bytes = 0;
    check(annulus_workspace_size(context.get(), &sizes, pass, &bytes));
    return bytes;
}

// ---- Stored dS

// There are more than eight tiles of keys for each multiprocessor, so tiles are not ordered by length.
TEST(StoredDs, OfManySegmentsAgreeWithCpu) {
    for (const bool causal : {false, true}) {
        const Problem problem = {.length = 8192,
                                 .heads = 17,
                                 .dim = 72,
                                 .branches = {{.segment = 128}},
                                 .causal = causal,
                                 .dtype = ANNULUS_BFLOAT16};
        SCOPED_TRACE(testing::Message() << problem);
        const Inputs inputs = random_inputs(problem, 1);
        expect_agreement_with_cpu(problem, inputs, run(problem, inputs, subject()));
    }
}

// Segments end within a row block. Their dS lies beside that of missing rows, and the rows behind their K belong to
// other segments. With dilation, dS has more bytes than the zeros; otherwise it would not be stored. If tiles of
// queries are few, `mma` divides the keys of each among CTAs (StoredDs.OfTwoKernelsDividesKeysOfFewTiles checks that).
class StoredDsOfOddLengths : public testing::TestWithParam<NamedProblem> {};

TEST_P(StoredDsOfOddLengths, AgreesWithCpu) {
    const Problem &problem = GetParam().problem;
    const Inputs inputs = random_inputs(problem, 1);
    expect_agreement_with_cpu(problem, inputs, run(problem, inputs, subject()));
}

std::vector<NamedProblem> odd_problems() {
    const std::vector<NamedProblem> problems = {
        {"short", {.batch = 2, .length = 1025, .heads = 3, .dim = 72, .branches = {{.segment = 131}}}},
        {"dilated", {.length = 2303, .heads = 3, .dim = 72, .branches = {{.segment = 1001, .dilation = 2}}}},
        {"few_tiles", {.length = 7011, .heads = 1, .dim = 72, .branches = {{.segment = 0}}}},
        {"whole", {.length = 1999, .heads = 2, .dim = 96, .branches = {{.segment = 0}}}},
        {"last_of_one", {.length = 1153, .heads = 4, .kv_heads = 2, .dim = 80, .branches = {{.segment = 128}}}},
        {"hilbert",
         {.length = 1603,
          .heads = 2,
          .dim = 80,
          .branches = {{.segment = 1001, .dilation = 2, .order = ANNULUS_ORDER_HILBERT}}}},
    };
    std::vector<NamedProblem> all;
    for (const NamedProblem &named : problems)
        for (const bool causal : {false, true}) {
            all.push_back(named);
            all.back().problem.causal = causal;
            all.back().name += causal ? "_causal" : "";
        }
    return with_dtypes(all, {ANNULUS_BFLOAT16, ANNULUS_FLOAT16});
}

INSTANTIATE_TEST_SUITE_P(Fused, StoredDsOfOddLengths, testing::ValuesIn(odd_problems()), name_of_problem);

// A problem, and a workspace limit in MiB that leaves room for dS in several passes only.
struct ProblemInPasses {
    Problem problem;
    int mib;
    bool needs_large_tiles = false; // with the small tiles of 99 KiB, `mma` computes dS twice
};

// `fused` has no room for dS of three heads and segments. So there are slices of the keys and, except for the last
// problem, three passes over the queries. `segments` takes a launch of three segments, then one of two
// (StoredDs.TakesSlicesAndFewPasses checks the numbers).
std::vector<ProblemInPasses> problems_in_passes_of_fused() {
    const Problem whole = {
        .length = 14003, .heads = 3, .dim = 72, .branches = {{.segment = 0}}, .dtype = ANNULUS_BFLOAT16};
    Problem batch = whole, causal = whole, dilated = whole, segments = whole, grouped = whole;
    batch.batch = 2;
    causal.causal = true;
    dilated.length = 35007;
    dilated.branches = {{.segment = 28006, .dilation = 2}};
    segments.heads = 1;
    segments.length = 60013;
    segments.branches = {{.segment = 14003}};
    grouped.heads = 6;
    grouped.kv_heads = 3;
    return {{batch, 300}, {causal, 300}, {dilated, 300}, {segments, 300}, {grouped, 800}};
}

// `mma` has no room for dS of one head and segment. So there are two to four passes
// (StoredDs.OfTwoKernelsTakesFewPasses checks the numbers). With dilation, a launch has both segments.
std::vector<ProblemInPasses> problems_in_passes_of_mma() {
    const Problem whole = {
        .length = 16411, .heads = 2, .dim = 72, .branches = {{.segment = 0}}, .dtype = ANNULUS_BFLOAT16};
    Problem batch = whole, long_one = whole, dilated = whole, grouped = whole, causal = whole;
    batch.batch = 2;
    batch.heads = 1;
    causal.heads = 1;
    causal.causal = true;
    long_one.length = 24771;
    long_one.heads = 1;
    Problem long_causal = long_one;
    long_causal.causal = true;
    dilated.length = 38007;
    dilated.heads = 1;
    dilated.branches = {{.segment = 36022, .dilation = 2}};
    grouped.kv_heads = 1;
    grouped.dtype = ANNULUS_FLOAT16;
    return {{batch, 360}, {long_one, 480}, {dilated, 400}, {grouped, 360}, {long_causal, 500}, {causal, 160, true}};
}

// The second segment of dilated problems is shorter than the queries before a pass's queries.
TEST(StoredDsInPasses, AgreesWithCpu) {
    const bool is_fused = subject().engine == ANNULUS_ENGINE_FUSED;
    for (const auto &[problem, mib, needs_large_tiles] :
         is_fused ? problems_in_passes_of_fused() : problems_in_passes_of_mma()) {
        SCOPED_TRACE(testing::Message() << problem);
        RunOptions options = subject();
        options.workspace_limit = static_cast<std::uint64_t>(mib) << 20;
        EXPECT_TRUE(needs_large_tiles ||
                    bytes_of(ANNULUS_PASS_BACKWARD, problem, options.workspace_limit) > options.workspace_limit / 2);
        const Inputs inputs = random_inputs(problem, 1);
        const Results results = run(problem, inputs, options);
        expect_agreement_with_cpu(problem, inputs, results);
        expect_identical(run(problem, inputs, options), results);
    }
}

// One query has a NaN, in the first or the last of three passes. It must reach only its dQ and the gradients of the
// keys up to it.
TEST(StoredDsInPasses, NanReachesWhatDependsOnIt) {
    const bool is_fused = subject().engine == ANNULUS_ENGINE_FUSED;
    const Problem problem = {.length = 14003,
                             .heads = is_fused ? 3 : 1,
                             .dim = 72,
                             .branches = {{.segment = 0}},
                             .causal = true,
                             .dtype = ANNULUS_BFLOAT16};
    RunOptions options = subject();
    options.workspace_limit = std::uint64_t{is_fused ? 300U : 130U} << 20;
    const Inputs inputs = random_inputs(problem, 1);
    const Results clean = run(problem, inputs, options);
    const std::int64_t row = problem.heads * problem.dim;
    for (const std::int64_t query : {1003, 13999}) {
        SCOPED_TRACE(query);
        Inputs spoilt = inputs;
        std::fill_n(spoilt.d_out.begin() + query * row, row, std::numeric_limits<double>::quiet_NaN());
        const Results got = run(problem, spoilt, options);
        const auto expect_nan_from_to = [&](std::vector<double> Results::*gradient, std::int64_t first,
                                            std::int64_t last) {
            const double tolerance = 4 * rounding_unit(problem.dtype);
            for (std::size_t i = 0; i < (got.*gradient).size(); ++i) {
                const std::int64_t position = static_cast<std::int64_t>(i) / row;
                const double is = (got.*gradient)[i], was = (clean.*gradient)[i];
                if (first <= position && position <= last)
                    ASSERT_TRUE(std::isnan(is)) << "position " << position;
                else
                    ASSERT_LE(std::fabs(is - was), tolerance * (1 + std::fabs(was))) << "position " << position;
            }
        };
        expect_nan_from_to(&Results::d_q, query, query);
        expect_nan_from_to(&Results::d_k, 0, query);
        expect_nan_from_to(&Results::d_v, 0, query);
    }
}

// With `mma`, a rank has more rows than dS of one pass can be stored for, of its own keys and of the other rank's, and
// one GPU takes more passes. With `fused`, a rank has several slices of the keys, and one GPU several passes, too.
TEST(StoredDsInPasses, OfRanksAgreesWithOne) {
    const bool is_fused = subject().engine == ANNULUS_ENGINE_FUSED;
    for (const bool causal : {false, true}) {
        const std::vector<std::int64_t> lengths =
            is_fused ? std::vector<std::int64_t>{20001, 19000} : std::vector<std::int64_t>{27001, 25000};
        const RankOptions options = {.lengths = lengths, .run = subject()};
        const Problem problem = {.length = lengths[0] + lengths[1],
                                 .heads = is_fused ? 3 : 1,
                                 .dim = 72,
                                 .branches = {{.segment = 0}},
                                 .causal = causal,
                                 .dtype = ANNULUS_BFLOAT16};
        SCOPED_TRACE(testing::Message() << problem);
        const Inputs inputs = random_inputs(problem, 1);
        const Results one = run(problem, inputs, subject()), ranks = run_ranks(problem, inputs, options);
        expect_near(ranks, one, tolerance_of(problem.dtype));
    }
}

// ---- Sums of ranks

// Sums are of one row of 16 at most, beside two numbers of each query and what travels. Sums of all rows would have
// several times the bytes.
TEST(SumsOfRanks, AreOfFewRows) {
    constexpr std::int64_t rows = 65536, few = rows / 16;
    Problem problem = {.length = 2 * rows, .heads = 4, .dim = 64, .branches = {}, .dtype = ANNULUS_FLOAT16};
    for (int i = 0; i < 5; ++i)
        problem.branches.push_back({.segment = 2048LL << 2 * i, .dilation = 1LL << 2 * i});
    const Context context = make_context(make_config(problem, subject()).get(), 0, device_memory());
    const annulus_problem sizes = sizes_of(problem);
    annulus_shards shards = ANNULUS_SHARDS_INIT;
    shards.ranks = 2;
    for (const annulus_pass pass : passes)
        for (const int rank : {0, 1}) {
            SCOPED_TRACE(testing::Message() << "pass " << pass << " rank " << rank);
            annulus_estimate estimate = ANNULUS_ESTIMATE_INIT;
            check(annulus_estimate_rank(context.get(), &sizes, pass, &shards, rank, &estimate));
            const std::uint64_t tensors = pass == ANNULUS_PASS_FORWARD ? 1 : 3;
            const std::uint64_t sums = problem.heads * few * tensors * problem.dim * sizeof(float);
            const std::uint64_t numbers = 2 * problem.heads * rows * sizeof(float);
            const std::uint64_t travel = 2 * (estimate.sent_bytes + estimate.received_bytes);
            EXPECT_LE(estimate.workspace_bytes, sums + numbers + travel);
            EXPECT_LT(sums + numbers + travel, 16 * sums / 3);
        }
}

// ---- Branches that store dS
//
// StoredDs.OfSeveralBranches checks that they do.

class StoringBranches : public testing::Test {
  protected:
    void SetUp() override {
        if (subject().engine != ANNULUS_ENGINE_FUSED)
            GTEST_SKIP() << "only `fused` stores dS of several branches";
    }
};

TEST_F(StoringBranches, AgreeWithCpu) {
    for (const auto &[name, problem] : problems_of_storing_branches()) {
        SCOPED_TRACE(name);
        const Inputs inputs = random_inputs(problem, 1);
        const Results results = run(problem, inputs, subject());
        expect_agreement_with_cpu(problem, inputs, results);
        for (int i = 0; i < 3; ++i)
            expect_identical(run(problem, inputs, subject()), results);
    }
}

// With half of the workspace dS is computed twice.
TEST_F(StoringBranches, AgreeWithCpuInLessWorkspace) {
    const Problem problem = problems_of_storing_branches().front().second;
    const Inputs inputs = random_inputs(problem, 1);
    RunOptions options = subject();
    options.workspace_limit = bytes_of(ANNULUS_PASS_BACKWARD, problem, 0) / 2;
    expect_agreement_with_cpu(problem, inputs, run(problem, inputs, options));
}

// Some heads at a time, of which the last part has fewer; slices of the keys.
TEST_F(StoringBranches, AgreeWithCpuInParts) {
    for (const LimitedStoring &limited : problems_of_limited_storing()) {
        SCOPED_TRACE(testing::Message() << limited.problem);
        const Inputs inputs = random_inputs(limited.problem, 1);
        RunOptions options = subject();
        options.workspace_limit = limited.limit;
        expect_agreement_with_cpu(limited.problem, inputs, run(limited.problem, inputs, options));
    }
}

// A rank's own keys are stored, and the keys of the other rank are not. The border cuts a segment of each branch.
TEST_F(StoringBranches, OfRanksAgreeWithOne) {
    for (const auto &[name, problem] : problems_of_storing_branches()) {
        if (problem.branches.size() > 2 || problem.batch > 1)
            continue;
        Problem both = problem;
        both.length = 2 * problem.length;
        SCOPED_TRACE(name);
        const RankOptions options = {.lengths = {problem.length + 100, problem.length - 100}, .run = subject()};
        const Inputs inputs = random_inputs(both, 1);
        const Results one = run(both, inputs, subject()), ranks = run_ranks(both, inputs, options);
        expect_near(ranks, one, tolerance_of(both.dtype));
    }
}

// ---- Branches of several launches

class Split : public testing::TestWithParam<NamedProblem> {
  protected:
    const Problem &problem_ = GetParam().problem;
    const Inputs inputs_ = random_inputs(problem_, 1);

    static std::uint64_t forward_bytes(const Problem &problem, std::uint64_t limit) {
        return bytes_of(ANNULUS_PASS_FORWARD, problem, limit);
    }
    // Returns the least workspace. The engine refuses less.
    static std::uint64_t least_bytes(annulus_pass pass, const Problem &problem) {
        RunOptions options = subject();
        options.workspace_limit = 1;
        const Context context = make_context(make_config(problem, options).get(), 0, device_memory());
        const annulus_call_options call = options_of(problem);
        const annulus_problem sizes = sizes_of(problem, &call);
        std::uint64_t bytes = 0;
        EXPECT_EQ(annulus_workspace_size(context.get(), &sizes, pass, &bytes), ANNULUS_ERROR_WORKSPACE);
        return annulus_last_error_bytes();
    }
    // The first of two forward launches leaves partial results. A single launch has only counters and branches.
    static constexpr std::uint64_t most_of_one_launch = 4096;
    static bool is_split(const Problem &problem, std::uint64_t limit) {
        return forward_bytes(problem, limit) > most_of_one_launch;
    }
};

TEST_P(Split, AgreesWithCpu) {
    ASSERT_TRUE(is_split(problem_, 0));
    const Results results = run(problem_, inputs_, subject());
    expect_agreement_with_cpu(problem_, inputs_, results);
    for (int i = 0; i < 3; ++i)
        expect_identical(run(problem_, inputs_, subject()), results);
}

TEST_P(Split, NeedsNoLse) {
    ASSERT_TRUE(is_split(problem_, 0));
    Call call(problem_, inputs_, device_memory(), true);
    const Context context = context_for(problem_, subject().engine);
    check(call.forward(context.get()));
    const Results with_lse = call.results(ANNULUS_PASS_FORWARD);
    call.reset(inputs_);
    const Call::Arguments &a = call.arguments;
    check(annulus_forward(context.get(), &a.q, &a.k, &a.v, &a.out, nullptr, &call.options));
    Results without_lse = call.results(ANNULUS_PASS_FORWARD);
    without_lse.lse = with_lse.lse;
    expect_identical(without_lse, with_lse);
}

// With less workspace there is one grid, if that takes less time than some heads after the other.
TEST_P(Split, AgreesWithCpuInLessWorkspace) {
    const CpuResults wanted = run_on_cpu(problem_, inputs_);
    for (const annulus_pass pass : passes) {
        RunOptions options = subject();
        options.backward = pass == ANNULUS_PASS_BACKWARD;
        const std::uint64_t all = bytes_of(pass, problem_, 0);
        // If heads share K and V, the sums are always of all heads.
        options.workspace_limit = std::max(all / 4 * 3, least_bytes(pass, problem_));
        ASSERT_TRUE(options.workspace_limit < all || options.backward);
        ASSERT_LE(bytes_of(pass, problem_, options.workspace_limit), options.workspace_limit);
        expect_agreement(problem_, run(problem_, inputs_, options), wanted.exact, wanted.low);
    }
}

// Branches that need several grids. dK and dV are computed for fewer heads at a time than O. If heads share K and V,
// the sums of dK and dV are of all heads.
class SeveralGrids : public Split {};

TEST_P(SeveralGrids, AreTheSameSomeHeadsAtATime) {
    RunOptions options = subject();
    const std::uint64_t all = forward_bytes(problem_, 0);
    options.workspace_limit = all / 4 * 3;
    ASSERT_TRUE(is_split(problem_, options.workspace_limit));
    ASSERT_LT(forward_bytes(problem_, options.workspace_limit), all);
    Results results = run(problem_, inputs_, subject());
    expect_agreement_with_cpu(problem_, inputs_, results);
    options.backward = problem_.kv() == problem_.heads;
    if (!options.backward)
        results.d_q = results.d_k = results.d_v = {};
    expect_identical(run(problem_, inputs_, options), results);
}

// The sums of one head need too much memory. Other rows share a tile than with all rows at once, so bits may differ.
TEST_P(SeveralGrids, AgreeWithCpuSomeRowsAtATime) {
    const CpuResults wanted = run_on_cpu(problem_, inputs_);
    for (const annulus_pass pass : passes) {
        RunOptions options = subject();
        options.backward = pass == ANNULUS_PASS_BACKWARD;
        options.workspace_limit = least_bytes(pass, problem_);
        ASSERT_LT(options.workspace_limit, bytes_of(pass, problem_, 0));
        ASSERT_LE(bytes_of(pass, problem_, options.workspace_limit), options.workspace_limit);
        const Results results = run(problem_, inputs_, options);
        expect_agreement(problem_, results, wanted.exact, wanted.low);
        expect_identical(run(problem_, inputs_, options), results);
    }
}

TEST_P(Split, IsOnePassWhereTheLimitIsTooSmall) {
    RunOptions options = subject();
    options.backward = false;
    options.workspace_limit = most_of_one_launch;
    ASSERT_FALSE(is_split(problem_, options.workspace_limit));
    expect_agreement_with_cpu(problem_, inputs_, run(problem_, inputs_, options));
}

// Expects NaN and infinity to reach the elements of results that they reach on the CPU.
void expect_nonfinite_reach(const Problem &problem, Inputs inputs) {
    const std::int64_t row = problem.kv() * problem.dim;
    for (const std::int64_t position : {1, 4096})
        std::fill_n(inputs.k.begin() + position * row, row, std::numeric_limits<double>::quiet_NaN());
    std::fill_n(inputs.v.begin() + 301 * row, row, std::numeric_limits<double>::infinity());
    Problem exact = problem;
    exact.dtype = ANNULUS_FLOAT64;
    const Results got = run(problem, inputs, subject());
    const Results wanted = run(exact, inputs, {.engine = ANNULUS_ENGINE_CPU, .threads = 0});
    for (const auto tensor : {&Results::out, &Results::d_q, &Results::d_k, &Results::d_v}) {
        std::int64_t nonfinite = 0;
        for (std::size_t i = 0; i < (got.*tensor).size(); ++i) {
            nonfinite += !std::isfinite((wanted.*tensor)[i]);
            ASSERT_EQ(std::isfinite((got.*tensor)[i]), std::isfinite((wanted.*tensor)[i])) << "element " << i;
        }
        EXPECT_GT(nonfinite, 0);
    }
}

TEST_P(Split, NonfiniteRowsReachWhatTheyReachOnCpu) {
    expect_nonfinite_reach(problem_, inputs_);
}

TEST_F(StoringBranches, NonfiniteRowsReachWhatTheyReachOnCpu) {
    for (const auto &[name, problem] : problems_of_storing_branches())
        if (name == "two" || name == "causal") {
            SCOPED_TRACE(name);
            expect_nonfinite_reach(problem, random_inputs(problem, 1));
        }
}

INSTANTIATE_TEST_SUITE_P(Fused, Split, testing::ValuesIn(split_problems()), name_of_problem);
INSTANTIATE_TEST_SUITE_P(Fused, SeveralGrids, testing::ValuesIn(problems_of_several_grids()), name_of_problem);

} // namespace
} // namespace annulus::test
