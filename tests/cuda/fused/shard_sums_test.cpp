// SPDX-License-Identifier: Apache-2.0
// The rows of a rank's shard that have partial results on a GPU. A loop over all rows checks that each row which a
// launch leaves partial, and each row with keys or queries of other ranks, has a place of its own.
#include "cuda/fused/plan/shard_sums.hpp"
#include "cuda/fused/sm90/kernels.hpp"
#include "cuda/results/device_summed_rows.hpp"

#include "support/mask.hpp"
#include "support/plan.hpp"
#include "support/random_problem.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <random>
#include <set>
#include <utility>
#include <vector>

namespace annulus::test {
namespace {

constexpr int multiprocessors = 132; // of an H200

Plan plan_of(const Problem &problem, const Window &shard) {
    annulus::Problem sizes = plan_problem_of(problem);
    sizes.queries = sizes.keys = shard;
    return {pattern_of(problem), sizes};
}

ForwardPlan forward_of(const Plan &plan) {
    const KernelShape shape = forward_shape(plan.problem().head_dim);
    return plan_forward(plan, KeyScope::own_keys, make_grids(plan, GridResult::outputs, shape), shape, multiprocessors,
                        0);
}

BackwardPlan backward_of(const Plan &plan, std::uint64_t limit = 0) {
    const BackwardShapes shapes = backward_shapes(plan.problem().head_dim);
    return plan_backward(plan, KeyScope::own_keys, make_backward_grids(plan, shapes), shapes, multiprocessors, limit);
}

// Checks the rows of one side, whose launches are over `grids`. is_foreign(position, head): the row has keys or queries
// of other ranks.
void expect_places(const std::optional<SummedRows> &summed, const std::vector<PlannedGrid> &grids, const Window &shard,
                   int heads, const std::function<bool(std::int64_t, int)> &is_foreign) {
    if (!summed) // all rows have partial results
        return;
    EXPECT_LT(summed->count(), shard.length);
    ASSERT_LE(summed->intervals().size(), DeviceSummedRows::max_intervals);
    const DeviceSummedRows on_device(&*summed);
    EXPECT_EQ(on_device.count, summed->count());
    const TileGrid &last = grids.back().tiles;
    for (int head = 0; head < heads; ++head) {
        std::set<int> taken;
        std::size_t places = 0; // that have a row
        for (int row = 0; row < on_device.count; ++row) {
            const int position = on_device.position(head, row);
            places += position >= shard.start && position < shard.end() && on_device.row(head, position) == row;
        }
        for (auto position = static_cast<int>(shard.start); position < shard.end(); ++position) {
            const int row = on_device.row(head, position);
            EXPECT_EQ(row, summed->row(head, position)) << position << " of head " << head;
            if (row >= 0) {
                EXPECT_TRUE(row < summed->count() && taken.insert(row).second) << position << " of head " << head;
                EXPECT_EQ(on_device.position(head, row), position) << position << " of head " << head;
            }
            const bool is_partial = last.rows_left_partial.has(head, position) ||
                                    last.rows_with_partial.has(head, position) || is_foreign(position, head);
            EXPECT_TRUE(!is_partial || row >= 0) << position << " of head " << head;
        }
        EXPECT_EQ(places, taken.size());
    }
}

void expect_places(const Problem &problem, const Window &shard, const std::function<bool(std::int64_t, int)> &has_keys,
                   const std::function<bool(std::int64_t, int)> &has_queries) {
    SCOPED_TRACE(testing::Message() << problem << " shard " << shard.start << " to " << shard.end());
    const Plan plan = plan_of(problem, shard);
    const ForwardPlan forward = forward_of(plan);
    const ShardSums outputs = summed_rows(plan, forward);
    EXPECT_FALSE(outputs.keys);
    expect_places(outputs.queries, forward.grids, shard, problem.heads, has_keys);
    const BackwardPlan backward = backward_of(plan);
    const ShardSums gradients = summed_rows(plan, backward);
    expect_places(gradients.queries, backward.queries.grids, shard, problem.heads, has_keys);
    expect_places(gradients.keys, backward.keys.grids, shard, problem.heads, has_queries);
    // The workspace limit, which takes effect later, does not change them.
    const BackwardPlan limited = backward_of(plan, 1 << 20);
    const ShardSums limited_sums = summed_rows(plan, limited);
    EXPECT_EQ(limited_sums.queries.has_value(), gradients.queries.has_value());
    EXPECT_EQ(limited_sums.keys.has_value(), gradients.keys.has_value());
    EXPECT_TRUE((!gradients.queries || limited.queries.finishes) && (!gradients.keys || limited.keys.finishes));
}

class RandomShardSums : public testing::TestWithParam<int> {};

TEST_P(RandomShardSums, HaveAPlaceForEachPartialRow) {
    const auto seed = static_cast<std::uint64_t>(GetParam());
    for (Problem problem : {random_problem(seed), random_window_problem(seed)}) {
        problem.window.reset();
        problem.dtype = ANNULUS_BFLOAT16;
        std::mt19937_64 generator(seed);
        const auto number = [&](std::int64_t least, std::int64_t greatest) {
            return std::uniform_int_distribution<std::int64_t>(least, greatest)(generator);
        };
        const std::int64_t start = number(0, problem.length - 1);
        const Window shard{start, number(1, problem.length - start)};
        if (curve_refusal(plan_of(problem, shard)))
            continue;
        const auto is_outside = [&](std::int64_t m) { return m < shard.start || m >= shard.end(); };
        const Mask mask(problem);
        std::set<std::pair<std::int64_t, int>> with_keys, with_queries;
        for (int head = 0; head < problem.heads; ++head)
            for (std::int64_t n = 0; n < problem.length; ++n)
                for (const std::int64_t m : mask.keys(n, head).positions) {
                    if (!is_outside(n) && is_outside(m))
                        with_keys.insert({n, head});
                    if (is_outside(n) && !is_outside(m))
                        with_queries.insert({m, head});
                }
        expect_places(
            problem, shard,
            [&](std::int64_t n, int head) {
                return with_keys.contains({n, head});
            },
            [&](std::int64_t m, int head) {
                return with_queries.contains({m, head});
            });
    }
}

INSTANTIATE_TEST_SUITE_P(Many, RandomShardSums, testing::Range(0, 200));

// Two branches may store dS, if the workspace limit has room for it. At some limits more memory does not do: slices of
// keys then have more cells, and too few groups.
TEST(ShardSums, OfBranchesThatStoreDsAreTheSameForAnyLimit) {
    const Problem problem = {.length = 380364,
                             .heads = 2,
                             .dim = 72,
                             .branches = {{.segment = 6301}, {.segment = 93541, .dilation = 10}},
                             .dtype = ANNULUS_BFLOAT16};
    for (const std::int64_t start : {0, 190182}) {
        const Plan plan = plan_of(problem, {start, 190182});
        const BackwardPlan whole = backward_of(plan);
        const ShardSums wanted = summed_rows(plan, whole);
        ASSERT_TRUE(wanted.queries && wanted.keys);
        EXPECT_TRUE(whole.branches_store_ds());
        int storing = 0, computing_twice = 0;
        for (std::uint64_t mib = 1; mib < 700; mib += mib < 480 ? 20 : 1) {
            const BackwardPlan backward = backward_of(plan, mib << 20);
            ++(backward.branches_store_ds() ? storing : computing_twice);
            const ShardSums found = summed_rows(plan, backward);
            ASSERT_TRUE(found.queries && found.keys);
            for (const auto &[own, same] :
                 {std::pair(&*found.queries, &*wanted.queries), {&*found.keys, &*wanted.keys}}) {
                EXPECT_EQ(own->count(), same->count()) << mib << " MiB";
                EXPECT_EQ(own->intervals().size(), same->intervals().size()) << mib << " MiB";
            }
            EXPECT_TRUE(backward.queries.finishes && backward.keys.finishes);
        }
        EXPECT_TRUE(storing > 0 && computing_twice > 0);
    }
}

struct Counted {
    std::vector<BranchSpec> branches;
    bool causal;
    Window shard;
    std::int64_t outputs, queries, keys; // -1: all rows
};

constexpr std::int64_t all = -1;

// Counts sums of long shards of 131,072 or more positions. The launches of LongNet are two: the first has the dilations
// 16, 64 and 256, or for the gradients of keys 64 and 256.
TEST(ShardSums, AreFewForDilatedBranchesAndWindows) {
    std::vector<BranchSpec> longnet;
    for (int i = 0; i < 5; ++i)
        longnet.push_back({.segment = 2048LL << 2 * i, .dilation = 1LL << 2 * i});
    const std::vector<BranchSpec> near = {window_spec(4095, 0)};
    constexpr Window first{0, 65536}, second{65536, 65536}, odd{65537, 65537};
    const std::vector<Counted> table = {
        {longnet, false, first, 4096, 4096, 1024},
        {longnet, false, second, 4096, 4096, 1024},
        {longnet, true, second, 4096, 4096, 1024},
        {{{}}, false, first, all, all, all},
        {{{}, {.dilation = 4}}, true, first, 0, 0, all},
        {near, true, second, 4095 + 64, 4095 + 64, 0},
        {near, true, first, 0, 0, 4095 + 64},
    };
    const auto none = [](std::int64_t, int) { return false; };
    const auto count = [](const std::optional<SummedRows> &rows) { return rows ? rows->count() : all; };
    for (const Counted &row : table) {
        Problem problem{.length = 131072,
                        .heads = 16,
                        .dim = 128,
                        .branches = row.branches,
                        .causal = row.causal,
                        .dtype = ANNULUS_BFLOAT16};
        SCOPED_TRACE(testing::Message() << problem << " shard from " << row.shard.start);
        const Plan plan = plan_of(problem, row.shard);
        const ShardSums gradients = summed_rows(plan, backward_of(plan));
        EXPECT_EQ(count(summed_rows(plan, forward_of(plan)).queries), row.outputs);
        EXPECT_EQ(count(gradients.queries), row.queries);
        EXPECT_EQ(count(gradients.keys), row.keys);
    }
    // A border that cuts segments of all branches.
    Problem problem{.length = 131074, .heads = 3, .dim = 128, .branches = longnet, .dtype = ANNULUS_BFLOAT16};
    expect_places(problem, odd, none, none);
    problem.heads = 16;
    const Plan plan = plan_of(problem, odd);
    EXPECT_LT(count(summed_rows(plan, forward_of(plan)).queries), 65537 / 5);
}

} // namespace
} // namespace annulus::test
