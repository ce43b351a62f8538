// SPDX-License-Identifier: Apache-2.0
// The plan's closed forms against a count position by position.
#include "core/plan.hpp"

#include "core/error.hpp"
#include "support/mask.hpp"
#include "support/plan.hpp"
#include "support/random_problem.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <limits>
#include <random>
#include <set>
#include <vector>

namespace annulus::test {
namespace {

// One problem of many. It is printed if it fails.
class RandomPlan : public testing::TestWithParam<int> {
  protected:
    // Problems from number 150 on have windows and global positions.
    RandomPlan()
        : problem_(GetParam() < 150 ? random_problem(static_cast<std::uint64_t>(GetParam()))
                                    : random_sliding_problem(static_cast<std::uint64_t>(GetParam()))) {}

    const Problem problem_;
    testing::ScopedTrace trace_{__FILE__, __LINE__, testing::Message() << problem_};
};

TEST_P(RandomPlan, SegmentsPlacesAndPhasesAreThoseOfTheDefinition) {
    const Mask mask(problem_);
    const Plan plan(pattern_of(problem_), plan_problem_of(problem_));
    for (const BranchPlan &branch : plan.branches()) {
        const auto i = static_cast<std::size_t>(branch.index());
        for (std::int64_t n = 0; n < problem_.length; ++n) {
            const Segment segment = branch.segment_at(n);
            const Mask::Segment wanted_segment = mask.segment_of(i, n);
            ASSERT_EQ(segment.range.start, wanted_segment.start);
            ASSERT_EQ(segment.range.length, wanted_segment.length);
            // Only the classes depend on places; with dilation 1 there is one class, whatever the order.
            if (branch.dilation() > 1) {
                ASSERT_EQ(segment.place(n), mask.place(i, n));
                ASSERT_EQ(segment.position(mask.place(i, n)), n);
            }
        }
        for (std::int32_t h = 0; h < problem_.heads; ++h) {
            ASSERT_EQ(branch.serves(h), mask.serves(i, h));
            if (branch.serves(h)) {
                ASSERT_EQ(branch.phase(h), mask.phase(i, h));
            }
        }
    }
}

void expect_pairs(const Problem &problem) {
    const Mask mask(problem);
    const Plan plan(pattern_of(problem), plan_problem_of(problem));
    double all = 0;
    for (std::size_t i = 0; i < problem.branches.size(); ++i) {
        const BranchSpec &spec = problem.branches[i];
        const double estimate = plan.pairs(static_cast<std::int32_t>(i));
        all += estimate;
        const bool hilbert = spec.order == ANNULUS_ORDER_HILBERT && spec.dilation > 1;
        if (hilbert && (problem.window || (problem.causal && spec.query == ANNULUS_QUERY_EVERY)))
            continue; // the closed form assumes evenly spread positions
        std::size_t counted = 0;
        for (std::int64_t j = 0; j < problem.query_length(); ++j)
            for (std::int32_t h = 0; h < problem.heads; ++h) {
                Mask::Keys keys;
                mask.add_keys(i, problem.query_start() + j, h, keys);
                counted += keys.positions.size();
            }
        EXPECT_EQ(estimate, static_cast<double>(counted) * static_cast<double>(problem.batch)) << "branch " << i;
    }
    EXPECT_DOUBLE_EQ(plan.pairs(ANNULUS_ALL_BRANCHES), all);
}

TEST_P(RandomPlan, PairsAreCounted) {
    expect_pairs(problem_);
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

INSTANTIATE_TEST_SUITE_P(Plan, RandomPlan, testing::Range(0, 250));

// Many heads in groups of any size, which branches may serve in part, and dilations around the number of heads.
class RandomHeads : public testing::TestWithParam<int> {
  protected:
    RandomHeads() {
        std::mt19937_64 generator(static_cast<std::uint64_t>(GetParam()));
        const auto number = [&](std::int64_t least, std::int64_t greatest) {
            return std::uniform_int_distribution<std::int64_t>(least, greatest)(generator);
        };
        problem_.length = number(1, 60);
        problem_.kv_heads = static_cast<std::int32_t>(number(1, 6));
        problem_.heads = problem_.kv_heads * static_cast<std::int32_t>(number(1, 16));
        problem_.causal = number(0, 1) == 1;
        if (number(0, 1) == 1) {
            const std::int64_t start = number(0, problem_.length - 1);
            problem_.window = QueryWindow{start, number(1, problem_.length - start)};
        }
        problem_.branches.clear();
        for (int i = 0; i < 4; ++i) {
            BranchSpec branch;
            branch.segment = number(0, problem_.length + 5);
            branch.dilation = number(0, 9) == 0 ? std::numeric_limits<std::int64_t>::max() - number(0, 1)
                                                : number(1, number(0, 1) ? 8 : problem_.heads + 3);
            branch.phase = static_cast<annulus_phase_rule>(number(0, 2));
            branch.residue = branch.phase == ANNULUS_PHASE_FIXED ? number(0, 70) : 0;
            branch.query = static_cast<annulus_query_rule>(number(0, 2));
            if (number(0, 1)) {
                branch.first_head = static_cast<std::int32_t>(number(0, problem_.heads - 1));
                branch.head_count = static_cast<std::int32_t>(number(1, problem_.heads - branch.first_head));
            }
            problem_.branches.push_back(branch);
        }
    }

    Problem problem_;
};

TEST_P(RandomHeads, PairsAreCounted) {
    SCOPED_TRACE(testing::Message() << problem_);
    expect_pairs(problem_);
}

TEST_P(RandomHeads, UsersOfResiduesAreThoseOfTheDefinition) {
    SCOPED_TRACE(testing::Message() << problem_);
    const Mask mask(problem_);
    const Plan plan(pattern_of(problem_), plan_problem_of(problem_));
    for (std::size_t i = 0; i < problem_.branches.size(); ++i) {
        const BranchPlan &branch = plan.branches()[i];
        const bool has_all = problem_.branches[i].query == ANNULUS_QUERY_RESIDUE;
        for (std::int32_t first = 0; first < problem_.heads; ++first)
            for (std::int32_t last = first; last <= problem_.heads; ++last) {
                std::set<std::int64_t> phases;
                for (std::int32_t h = first; h < last; ++h)
                    if (mask.serves(i, h))
                        phases.insert(mask.phase(i, h));
                const ResidueRange range = branch.residues(first, last);
                std::set<std::int64_t> residues;
                for (std::int64_t j = 0; j < range.count && !has_all; ++j)
                    residues.insert(j < branch.dilation() - range.first ? range.first + j
                                                                        : j - (branch.dilation() - range.first));
                if (has_all)
                    ASSERT_EQ(range.count, phases.empty() ? 0 : branch.dilation());
                else
                    ASSERT_EQ(residues, phases);
                phases.insert({0, branch.dilation() / 2, branch.dilation() - 1});
                for (const std::int64_t residue : phases) {
                    std::vector<std::int64_t> wanted, got;
                    for (std::int32_t h = first; h < last; ++h)
                        if (mask.serves(i, h) && (has_all || mask.phase(i, h) == residue))
                            wanted.push_back(h);
                    const Progression users = branch.users(residue, first, last);
                    for (std::int64_t j = 0; j < users.count; ++j)
                        got.push_back(users[j]);
                    ASSERT_EQ(got, wanted) << "branch " << i << ", residue " << residue;
                }
            }
    }
}

INSTANTIATE_TEST_SUITE_P(Plan, RandomHeads, testing::Range(0, 200));

// A billion positions: the plan is small, and its counts are right.
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

// 65,536 heads share one key head, and each has a residue of its own, in 64 branches. Every residue has 2^4 keys in a
// sequence of 2^20 positions.
TEST(LargePlan, OfManyHeads) {
    annulus::Problem problem;
    problem.batch = 1;
    problem.sequence_length = 1 << 20;
    problem.heads = 1 << 16;
    problem.kv_heads = 1;
    problem.head_dim = 8;
    problem.queries = problem.keys = {0, 1 << 20};
    for (const auto rule : {ANNULUS_PHASE_BLOCK, ANNULUS_PHASE_INTERLEAVE}) {
        Pattern pattern;
        Branch branch;
        branch.dilation = 1 << 16;
        branch.phase_rule = rule;
        pattern.branches.assign(64, branch);
        const std::clock_t start = std::clock();
        const Plan plan(pattern, problem);
        EXPECT_EQ(plan.pairs(ANNULUS_ALL_BRANCHES), 64. * (1 << 16) * 16 * 16);
        EXPECT_LT(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, 5); // ten minutes head by head
    }
}

// Sizes at the limit of 64 bits do not overflow.
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

TEST(LargePlan, OfTheLargestWindowsAndGlobalPositions) {
    constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
    constexpr std::int64_t length = std::int64_t{1} << 30;
    annulus::Problem problem;
    problem.batch = 1;
    problem.sequence_length = length;
    problem.heads = problem.kv_heads = 1;
    problem.head_dim = 8;
    problem.queries = problem.keys = {0, length};
    const auto pairs = [&](const BranchSpec &spec) { return Plan(pattern_of({.branches = {spec}}), problem).pairs(0); };
    const double n = length;
    EXPECT_EQ(pairs(window_spec(most, most)), n * n);
    EXPECT_EQ(pairs(window_spec(most, 0)), n * (n + 1) / 2);
    EXPECT_EQ(pairs(window_spec(most, most, most)), n); // each query and itself
    EXPECT_EQ(pairs(window_spec(1, 0, 3)), n + n - 3);
    EXPECT_EQ(pairs(global_spec(most - 1, 1, true)), 0);
    EXPECT_EQ(pairs(global_spec(length - 2, most - length)), 2 * n);
    EXPECT_EQ(pairs(global_spec(5, 2, true)), 2 * n + 2 * (n - 2));
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

TEST(Plan, KnowsItsKindsOfBranches) {
    const auto kinds = [](const BranchSpec &second) {
        const Problem problem{.length = 40, .branches = {{.segment = 16}, second}};
        const Plan plan(pattern_of(problem), plan_problem_of(problem));
        return std::pair(plan.has_windows(), plan.has_global_positions());
    };
    EXPECT_EQ(kinds({.dilation = 4}), std::pair(false, false));
    EXPECT_EQ(kinds(window_spec(3, 0)), std::pair(true, false));
    EXPECT_EQ(kinds(global_spec(0, 1, false)), std::pair(false, true));
}

TEST(Plan, HidesKeysByCausalityOrWindows) {
    const auto hides = [](const Problem &problem) {
        return Plan(pattern_of(problem), plan_problem_of(problem)).hides_keys();
    };
    Problem problem{.length = 40, .branches = {{.segment = 16}, {.dilation = 4}}};
    EXPECT_FALSE(hides(problem));
    problem.causal = true;
    EXPECT_TRUE(hides(problem));
    problem.causal = false;
    problem.branches[1] = window_spec(3, -1);
    EXPECT_TRUE(hides(problem));
}

} // namespace
} // namespace annulus::test
