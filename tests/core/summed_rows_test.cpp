// SPDX-License-Identifier: Apache-2.0
// The rows of a shard that have sums. Queries with keys elsewhere are found by a loop over all queries by the
// definition, rows of intervals by a loop over all positions.
#include "core/summed_rows.hpp"

#include "support/mask.hpp"
#include "support/plan.hpp"
#include "support/random_problem.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <ranges>
#include <set>
#include <vector>

namespace annulus::test {
namespace {

Plan plan_of(const Problem &problem, const Window &shard) {
    annulus::Problem sizes = plan_problem_of(problem);
    sizes.queries = sizes.keys = shard;
    return {pattern_of(problem), sizes};
}

// Returns the row of the sums of each query of a head, by position. Asks for one window after the other.
std::map<std::int64_t, std::int64_t> rows_of(const SummedRows &rows, std::int32_t head, const Window &shard,
                                             std::int64_t window_length) {
    std::map<std::int64_t, std::int64_t> found;
    for (std::int64_t start = shard.start; start < shard.end(); start += window_length) {
        const Window window = intersect(shard, {start, window_length});
        rows.for_each(head, window, [&](std::int64_t position, std::int64_t row) {
            EXPECT_TRUE(position >= window.start && position < window.end()) << position;
            EXPECT_EQ(rows.row(head, position), row) << position;
            EXPECT_TRUE(found.emplace(position, row).second) << position << " comes twice";
        });
    }
    return found;
}

class RandomShards : public testing::TestWithParam<int> {};

TEST_P(RandomShards, HaveSumsOfQueriesWithOtherKeys) {
    const auto seed = static_cast<std::uint64_t>(GetParam());
    Problem problem = seed % 3 == 0 ? random_window_problem(seed) : random_problem(seed);
    problem.window.reset();
    SCOPED_TRACE(testing::Message() << problem);
    const Mask mask(problem);
    std::mt19937_64 generator(seed);
    const auto number = [&](std::int64_t least, std::int64_t greatest) {
        return std::uniform_int_distribution<std::int64_t>(least, greatest)(generator);
    };
    for (int i = 0; i < 5; ++i) {
        const std::int64_t start = number(0, problem.length);
        const Window shard{start, number(0, problem.length - start)};
        SCOPED_TRACE(testing::Message() << "shard " << shard.start << " to " << shard.end());
        const SummedRows rows(plan_of(problem, shard));
        for (std::int32_t head = 0; head < problem.heads; ++head) {
            const auto found = rows_of(rows, head, shard, number(1, problem.length));
            std::set<std::int64_t> different;
            for (const auto &[position, row] : found) {
                EXPECT_TRUE(row >= 0 && row < rows.count()) << row;
                different.insert(row);
            }
            EXPECT_EQ(different.size(), found.size());
            for (std::int64_t n = shard.start; n < shard.end(); ++n) {
                const bool has_other_keys = std::ranges::any_of(
                    mask.keys(n, head).positions, [&](std::int64_t m) { return m < shard.start || m >= shard.end(); });
                EXPECT_TRUE(!has_other_keys || found.contains(n)) << "query " << n << " of head " << head;
            }
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Many, RandomShards, testing::Range(0, 100));

class RandomIntervals : public testing::TestWithParam<int> {};

TEST_P(RandomIntervals, HaveEachRowOnce) {
    std::mt19937_64 generator(static_cast<std::uint64_t>(GetParam()));
    const auto number = [&](std::int64_t least, std::int64_t greatest) {
        return std::uniform_int_distribution<std::int64_t>(least, greatest)(generator);
    };
    constexpr std::int32_t heads = 6;
    std::vector<SummedInterval> intervals;
    for (std::int64_t i = number(0, 6); i > 0; --i) {
        const std::int64_t start = number(0, 300), stride = number(1, 9);
        const bool is_whole = number(0, 1) == 0;
        const auto first_head = static_cast<std::int32_t>(is_whole ? 0 : number(0, heads - 1));
        intervals.push_back({{start, number(1, 200)},
                             is_whole ? stride * number(1, 12) : number(1, 120),
                             stride,
                             first_head,
                             is_whole ? heads : static_cast<std::int32_t>(number(1, heads - first_head)),
                             0,
                             number(1, 2)});
    }
    const SummedRows rows(intervals);
    for (std::int32_t head = 0; head < heads; ++head) {
        const auto found = rows_of(rows, head, {0, 520}, number(1, 520));
        std::set<std::int64_t> different;
        for (const auto &[position, row] : found) {
            EXPECT_TRUE(row >= 0 && row < rows.count()) << row;
            different.insert(row);
        }
        EXPECT_EQ(different.size(), found.size());
        for (std::int64_t n = 0; n < 520; ++n) {
            const bool is_in_interval = std::ranges::any_of(intervals, [&](const SummedInterval &interval) {
                const std::int64_t of_branch = head - interval.first_head;
                return n >= interval.rows.start && n < interval.rows.end() && of_branch >= 0 &&
                       of_branch < interval.head_count &&
                       n % interval.segment_length % interval.stride ==
                           of_branch / interval.heads_of_phase % interval.stride;
            });
            EXPECT_EQ(found.contains(n), is_in_interval) << n << " of head " << head;
            EXPECT_EQ(rows.row(head, n) >= 0, is_in_interval) << n << " of head " << head;
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Many, RandomIntervals, testing::Range(0, 300));

// Rows of a dilation are among the rows of a smaller dilation that divides it, if segments begin at multiples of both.
TEST(SummedRows, AreCountedOnceForNestedClasses) {
    const auto interval = [](std::int64_t segment_length, std::int64_t stride) {
        return SummedInterval{{4096, 8192}, segment_length, stride, 0, 8, 0, 1};
    };
    EXPECT_EQ(SummedRows({interval(2048, 16), interval(4096, 64), interval(1 << 20, 256)}).count(), 8192 / 16);
    EXPECT_EQ(SummedRows({interval(2048, 16), interval(4096, 24)}).count(), 8192 / 16 + 2 * 171);
    EXPECT_EQ(SummedRows({interval(2041, 16), interval(4096, 64)}).count(), 515 + 8192 / 64);
}

struct Counted {
    std::vector<BranchSpec> branches;
    Window shard;
    bool causal;
    std::int64_t count;
};

// Branches that do not cross a border add nothing. A branch that does adds the queries of one class, of one segment.
TEST(SummedRows, AreAsManyAsTheClassesOfCutSegments) {
    const std::vector<BranchSpec> longnet = {{.segment = 64},
                                             {.segment = 256, .dilation = 4},
                                             {.segment = 1024, .dilation = 16},
                                             {.segment = 4096, .dilation = 64}};
    const std::vector<BranchSpec> near = {{.kind = ANNULUS_BRANCH_WINDOW, .left = 30, .right = 9}};
    const std::vector<Counted> table = {
        {longnet, {0, 2048}, true, 0},
        {longnet, {2048, 2048}, true, 2048 / 64},
        {longnet, {0, 2048}, false, 2048 / 64},
        // 63, 255, 1023 and 2047 queries until the ends of the segments that the border cuts
        {longnet, {2049, 2047}, true, 63 + 64 + 64 + 32},
        {{{}}, {100, 301}, true, 301},
        {{{}, {.dilation = 3}}, {100, 301}, false, 301}, // the second branch has no further queries
        {{{.dilation = 7, .query = ANNULUS_QUERY_RESIDUE}}, {100, 301}, false, 301},
        {near, {1000, 500}, true, 30},
        {near, {1000, 500}, false, 39},
        {near, {1000, 35}, false, 35},
        // One row for each query: branches of different heads share rows, and smaller intervals are inside larger ones.
        {{with_heads({}, 0, 3), with_heads({}, 3, 4), with_heads({}, 7, 1)}, {100, 301}, false, 301},
        {{with_heads(global_spec(0, 16, true), 0, 4)}, {100, 301}, false, 301},
        {{window_spec(255, 255), {}}, {100, 301}, false, 301},
    };
    for (const Counted &row : table) {
        Problem problem{.length = 4096, .heads = 8, .branches = row.branches, .causal = row.causal};
        EXPECT_EQ(SummedRows(plan_of(problem, row.shard)).count(), row.count)
            << problem << " shard from " << row.shard.start << " to " << row.shard.end();
    }
}

} // namespace
} // namespace annulus::test
