// SPDX-License-Identifier: Apache-2.0
// The plan's closed forms against counting position by position.
#include "core/plan.hpp"

#include "core/error.hpp"
#include "support/mask.hpp"
#include "support/plan.hpp"
#include "support/random_problem.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <set>
#include <vector>

namespace annulus::test {
namespace {

std::vector<std::int64_t> positions_of(const Segment &segment, const Progression &places) {
    std::vector<std::int64_t> positions;
    for (std::int64_t j = 0; j < places.count; ++j)
        positions.push_back(segment.position(places[j]));
    std::sort(positions.begin(), positions.end());
    return positions;
}

// One problem out of many, printed where it fails.
class RandomPlan : public testing::TestWithParam<int> {
  protected:
    RandomPlan() : problem_(random_problem(static_cast<std::uint64_t>(GetParam()))) {}

    const Problem problem_;
    testing::ScopedTrace trace_{__FILE__, __LINE__, testing::Message() << problem_};
    const Mask mask_{problem_};
    const Plan plan_{pattern_of(problem_), plan_problem_of(problem_)};
};

TEST_P(RandomPlan, ClassesOfKeysAndQueriesAreThoseOfTheDefinition) {
    // Causality is no property of classes.
    Problem acausal = problem_;
    acausal.causal = false;
    const Mask mask(acausal);
    const Plan plan(pattern_of(acausal), plan_problem_of(acausal));
    for (std::size_t i = 0; i < problem_.branches.size(); ++i) {
        const BranchPlan &branch = plan.branches()[i];
        for (std::int64_t n = 0; n < problem_.length; ++n) {
            const Segment segment = branch.segment(branch.segment_of(n));
            const Mask::Segment wanted_segment = mask.segment_of(i, n);
            ASSERT_EQ(segment.range.start, wanted_segment.start);
            ASSERT_EQ(segment.range.length, wanted_segment.length);
            // Only the classes depend on places; with dilation 1 there is one class, whatever the order.
            if (branch.dilation() > 1) {
                ASSERT_EQ(segment.place(n), mask.place(i, n));
                ASSERT_EQ(segment.position(mask.place(i, n)), n);
            }
            for (std::int32_t h = 0; h < problem_.heads; ++h) {
                ASSERT_EQ(branch.serves(h), mask.serves(i, h));
                if (!branch.serves(h))
                    continue;
                ASSERT_EQ(branch.phase(h), mask.phase(i, h));
                const bool own_residue = branch.query_rule() == ANNULUS_QUERY_RESIDUE;
                const std::int64_t residue = own_residue ? segment.place(n) % branch.dilation() : branch.phase(h);
                ASSERT_TRUE(branch.uses(h, residue));
                Mask::Keys keys;
                mask.add_keys(i, n, h, keys);
                const std::vector<std::int64_t> queries = positions_of(segment, branch.query_class(segment, residue));
                const bool attends = std::binary_search(queries.begin(), queries.end(), n);
                ASSERT_EQ(attends, own_residue || branch.query_rule() == ANNULUS_QUERY_EVERY ||
                                       mask.place(i, n) % branch.dilation() == residue);
                if (attends) {
                    ASSERT_EQ(positions_of(segment, branch.key_class(segment, residue)), keys.positions);
                    ASSERT_EQ(branch.padding_keys(segment, residue), keys.padding);
                }
            }
        }
    }
}

TEST_P(RandomPlan, PairsAreCounted) {
    double all = 0;
    for (std::size_t i = 0; i < problem_.branches.size(); ++i) {
        const BranchSpec &spec = problem_.branches[i];
        const double estimate = plan_.pairs(static_cast<std::int32_t>(i));
        all += estimate;
        const bool hilbert = spec.order == ANNULUS_ORDER_HILBERT && spec.dilation > 1;
        if (hilbert && (problem_.window || (problem_.causal && spec.query == ANNULUS_QUERY_EVERY)))
            continue; // positions are taken as evenly spread
        std::size_t counted = 0;
        for (std::int64_t j = 0; j < problem_.query_length(); ++j)
            for (std::int32_t h = 0; h < problem_.heads; ++h) {
                Mask::Keys keys;
                mask_.add_keys(i, problem_.query_start() + j, h, keys);
                counted += keys.positions.size();
            }
        EXPECT_EQ(estimate, static_cast<double>(counted) * static_cast<double>(problem_.batch)) << "branch " << i;
    }
    EXPECT_DOUBLE_EQ(plan_.pairs(ANNULUS_ALL_BRANCHES), all);
}

TEST_P(RandomPlan, PairsOfWindowsAddUp) {
    annulus::Problem part = plan_problem_of(problem_);
    part.queries = {0, problem_.length};
    const double whole = Plan(pattern_of(problem_), part).pairs(ANNULUS_ALL_BRANCHES);
    double sum = 0;
    std::mt19937_64 generator(static_cast<std::uint64_t>(GetParam()));
    for (std::int64_t start = 0; start < problem_.length; start = part.queries.end()) {
        std::uniform_int_distribution<std::int64_t> count(0, problem_.length - start);
        part.queries = {start, count(generator)};
        sum += Plan(pattern_of(problem_), part).pairs(ANNULUS_ALL_BRANCHES);
    }
    EXPECT_DOUBLE_EQ(sum, whole);
}

// Rows that a rank's queries want from others, where its key window is a part of the sequence.
TEST_P(RandomPlan, RemoteRowsAreCounted) {
    std::mt19937_64 generator(static_cast<std::uint64_t>(GetParam()));
    const auto number = [&](std::int64_t least, std::int64_t greatest) {
        return std::uniform_int_distribution<std::int64_t>(least, greatest)(generator);
    };
    annulus::Problem shard = plan_problem_of(problem_);
    shard.keys.start = number(0, problem_.length);
    shard.keys.length = number(0, problem_.length - shard.keys.start);
    shard.queries.start = number(0, problem_.length);
    shard.queries.length = number(0, problem_.length - shard.queries.start);
    const Plan plan(pattern_of(problem_), shard);
    SCOPED_TRACE(testing::Message() << "queries " << shard.queries.start << " + " << shard.queries.length << ", keys "
                                    << shard.keys.start << " + " << shard.keys.length);
    for (std::size_t i = 0; i < problem_.branches.size(); ++i) {
        if (problem_.branches[i].order == ANNULUS_ORDER_HILBERT && problem_.branches[i].dilation > 1)
            continue; // positions are taken as evenly spread
        std::size_t all_rows = 0;
        for (std::int32_t kv_head = 0; kv_head < problem_.kv(); ++kv_head) {
            std::set<std::int64_t> rows;
            for (std::int64_t n = shard.queries.start; n < shard.queries.end(); ++n)
                for (std::int32_t h = 0; h < problem_.heads; ++h) {
                    Mask::Keys keys;
                    if (problem_.kv_head(h) == kv_head)
                        mask_.add_keys(i, n, h, keys);
                    for (const std::int64_t m : keys.positions)
                        if (m < shard.keys.start || m >= shard.keys.end())
                            rows.insert(m);
                }
            EXPECT_EQ(plan.branches()[i].remote_rows(kv_head, shard), static_cast<double>(rows.size()))
                << "branch " << i << ", key/value head " << kv_head;
            all_rows += rows.size();
        }
        const auto row_bytes = static_cast<double>(problem_.dim * annulus_dtype_bytes(problem_.dtype));
        EXPECT_DOUBLE_EQ(plan.remote_bytes(static_cast<std::int32_t>(i)),
                         2 * static_cast<double>(all_rows) * row_bytes * static_cast<double>(problem_.batch));
    }
}

INSTANTIATE_TEST_SUITE_P(Plan, RandomPlan, testing::Range(0, 150));

TEST(Progression, ClippedToARange) {
    for (std::int64_t first = 0; first < 4; ++first)
        for (std::int64_t stride = 1; stride < 4; ++stride)
            for (std::int64_t count = 0; count < 5; ++count)
                for (std::int64_t begin = 0; begin < 14; ++begin)
                    for (std::int64_t end = begin; end < 16; ++end) {
                        const Progression all = {first, stride, count};
                        const Progression part = clip(all, begin, end);
                        std::vector<std::int64_t> wanted, got;
                        for (std::int64_t j = 0; j < all.count; ++j)
                            if (all[j] >= begin && all[j] < end)
                                wanted.push_back(all[j]);
                        for (std::int64_t j = 0; j < part.count; ++j)
                            got.push_back(part[j]);
                        ASSERT_EQ(got, wanted);
                    }
}

// A billion positions: the plan is small and counts what arithmetic says.
TEST(LargePlan, OfABillionPositions) {
    constexpr std::int64_t length = std::int64_t{1} << 30;
    constexpr std::int32_t heads = 32;
    annulus::Problem problem;
    problem.batch = 1;
    problem.sequence_length = length;
    problem.heads = problem.kv_heads = heads;
    problem.head_dim = 128;
    problem.queries = problem.keys = {0, length};
    Pattern pattern;
    double pairs = 0;
    for (std::int64_t w = 2048, r = 1; r <= 32; w *= 4, r *= 2) {
        Branch branch;
        branch.segment_length = w;
        branch.dilation = r;
        pattern.branches.push_back(branch);
        const auto keys = static_cast<double>(w / r);
        pairs += heads * static_cast<double>(length / w) * keys * keys;
    }
    const Plan plan(pattern, problem);
    EXPECT_EQ(plan.branches().size(), 6U);
    EXPECT_LT(plan.bytes(), 1U << 20);
    EXPECT_EQ(plan.pairs(ANNULUS_ALL_BRANCHES), pairs);
}

// Sizes at the end of 64 bits do not overflow.
TEST(LargePlan, OfTheLargestSegmentsAndDilations) {
    constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
    annulus::Problem problem;
    problem.batch = 1;
    problem.sequence_length = 1000;
    problem.heads = problem.kv_heads = 1;
    problem.head_dim = 8;
    problem.queries = problem.keys = {0, 1000};
    for (const auto rule : {ANNULUS_QUERY_DILATED, ANNULUS_QUERY_RESIDUE, ANNULUS_QUERY_EVERY})
        for (const bool causal : {false, true}) {
            Pattern pattern;
            pattern.causal = causal;
            Branch branch;
            branch.segment_length = branch.dilation = most;
            branch.query_rule = rule;
            pattern.branches = {branch};
            // The only key of residue 0 is position 0; with rule `residue` every position is alone.
            EXPECT_EQ(Plan(pattern, problem).pairs(0), rule == ANNULUS_QUERY_DILATED ? 1 : 1000);
        }
}

annulus_status status_of(const Branch &branch) {
    annulus::Problem problem;
    problem.batch = 1;
    problem.sequence_length = 60;
    problem.heads = 4;
    problem.kv_heads = 2;
    problem.head_dim = 8;
    problem.queries = problem.keys = {0, 60};
    Pattern pattern;
    pattern.branches = {branch};
    try {
        const Plan plan(pattern, problem);
        return ANNULUS_OK;
    } catch (const Error &error) {
        return error.status();
    }
}

TEST(Plan, RefusesWhatDoesNotFit) {
    Branch branch;
    branch.first_head = 2;
    branch.head_count = 2;
    EXPECT_EQ(status_of(branch), ANNULUS_OK);
    branch.head_count = 3;
    EXPECT_EQ(status_of(branch), ANNULUS_ERROR_ARGUMENT);
    branch.first_head = branch.head_count = std::numeric_limits<std::int32_t>::max();
    EXPECT_EQ(status_of(branch), ANNULUS_ERROR_ARGUMENT);

    Branch image;
    image.dilation = 2;
    image.order = ANNULUS_ORDER_HILBERT;
    image.grid_width = 12;
    EXPECT_EQ(status_of(image), ANNULUS_OK);
    image.grid_width = 11;
    EXPECT_EQ(status_of(image), ANNULUS_ERROR_ARGUMENT);
    image.segment_length = 22;
    EXPECT_EQ(status_of(image), ANNULUS_OK); // the last segment of 16 takes the automatic width
}

} // namespace
} // namespace annulus::test
