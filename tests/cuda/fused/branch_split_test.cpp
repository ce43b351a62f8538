// SPDX-License-Identifier: Apache-2.0
// Tests when the fused engine splits one grid in two. The plans are pure data, so no GPU is needed.
#include "cuda/fused/plan/branch_split.hpp"
#include "cuda/fused/plan/grid_time.hpp"
#include "cuda/fused/sm90/kernels.hpp"

#include "support/plan.hpp"
#include "support/random_problem.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

namespace annulus::test {
namespace {

constexpr int multiprocessors = 132; // of an H200

struct Kernel {
    GridResult what;
    KernelShape shape;
};

std::vector<Kernel> kernels(std::int32_t dim) {
    const BackwardShapes shapes = backward_shapes(dim);
    return {{GridResult::outputs, forward_shape(dim)},
            {GridResult::query_gradients, shapes.queries},
            {GridResult::key_gradients, shapes.keys}};
}

// Returns one grid, or two if that is faster.
std::vector<PlannedGrid> grids_of(const Problem &problem, const Kernel &kernel) {
    const Plan plan(pattern_of(problem), plan_problem_of(problem));
    const std::vector<PlannedGrid> grids = make_grids(plan, kernel.what, kernel.shape);
    const auto split = split_branches(grids, plan, kernel.what, kernel.shape, multiprocessors);
    return split ? split->grids : grids;
}

Problem problem_of(std::int64_t length, std::int32_t heads, std::int32_t dim, const std::vector<BranchSpec> &branches) {
    return {.length = length, .heads = heads, .dim = dim, .branches = branches, .dtype = ANNULUS_BFLOAT16};
}

Problem longnet(std::int64_t length) {
    std::vector<BranchSpec> branches;
    for (int i = 0; i < 6; ++i)
        branches.push_back({.segment = 2048 << i, .dilation = 1 << i});
    return problem_of(length, 16, 128, branches);
}

Problem gigapath(std::int64_t length) {
    return problem_of(length, 16, 48,
                      {{.segment = 1024},
                       {.segment = 5792, .dilation = 2},
                       {.segment = 32768, .dilation = 4},
                       {.segment = 185363, .dilation = 8},
                       {.segment = 1048576, .dilation = 16}});
}

// Returns a problem in which each query has a short segment around it and a few keys from everywhere.
Problem local_and_global(std::int64_t length, annulus_query_rule rule = ANNULUS_QUERY_DILATED) {
    return problem_of(length, 8, 64, {{.segment = 256}, {.dilation = 64, .query = rule}});
}

// Nested segments keep the single visit of their keys. With few tiles a split gains nothing.
TEST(Split, LeavesWhatFillsItsTiles) {
    for (const Problem &problem : {longnet(262144), longnet(1 << 20), longnet(8192), gigapath(10001),
                                   local_and_global(2048), problem_of(1 << 20, 8, 64, {{.segment = 4096}})})
        for (const Kernel &kernel : kernels(problem.dim))
            EXPECT_EQ(grids_of(problem, kernel).size(), 1U) << problem;
}

// The problems that split_test.cpp computes on GPUs, and some that are larger.
TEST(Split, LongerSegmentsComeFirst) {
    const Problem two = problem_of(20001, 8, 128, {{.segment = 200}, {.dilation = 8}, {.dilation = 16}});
    const Problem four = problem_of(
        20001, 8, 48,
        {{.segment = 100}, {.segment = 400, .dilation = 2}, {.segment = 2000, .dilation = 8}, {.dilation = 32}});
    for (const Problem &problem : {two, four, gigapath(200001), local_and_global(1 << 18)})
        for (const Kernel &kernel : kernels(problem.dim)) {
            const Plan plan(pattern_of(problem), plan_problem_of(problem));
            const TileGrid whole = make_grids(plan, kernel.what, kernel.shape).front().tiles;
            const std::vector<PlannedGrid> grids = grids_of(problem, kernel);
            ASSERT_EQ(grids.size(), 2U) << problem;
            const TileGrid &others = grids[0].tiles, &last = grids[1].tiles;
            EXPECT_TRUE(grids[1].is_complete);
            EXPECT_GT(others.tiles, 0U);
            EXPECT_GT(last.tiles, 0U);
            ASSERT_EQ(last.branch_count + others.branch_count, whole.branch_count);
            for (int i = 0; i < whole.branch_count; ++i) {
                const bool is_last = i < last.branch_count;
                EXPECT_EQ(is_last ? last.branches[i] : others.branches[i - last.branch_count], whole.branches[i]);
            }
            ASSERT_EQ(last.rows_with_partial.branch_count, others.branch_count);
            for (int i = 0; i < others.branch_count; ++i)
                EXPECT_EQ(last.rows_with_partial.branches[i], others.branches[i]);
            EXPECT_EQ(others.rows_with_partial.branch_count, 0);
        }
}

// A window is worth a grid of its own beside much more dilated branches, whose row blocks span many windows.
TEST(Split, LeavesAWindowToTheLastGrid) {
    for (const bool causal : {false, true}) {
        Problem problem = problem_of(262144, 16, 64, {window_spec(255, 255), {.segment = 262144, .dilation = 64}});
        problem.causal = causal;
        for (const Kernel &kernel : kernels(problem.dim)) {
            const std::vector<PlannedGrid> grids = grids_of(problem, kernel);
            ASSERT_EQ(grids.size(), 2U) << problem;
            EXPECT_FALSE(grids[0].tiles.has_windows);
            EXPECT_TRUE(grids[1].tiles.has_windows);
        }
    }
}

// The time of a window grows with its band, and not with the sequence.
TEST(Time, OfAWindowIsThatOfItsBand) {
    for (const bool causal : {false, true})
        for (const Kernel &kernel : kernels(64)) {
            const auto rows = [&](const BranchSpec &branch) {
                Problem problem = problem_of(131072, 16, 64, {branch});
                problem.causal = causal;
                return time_of_tiles(grids_of(problem, kernel).front().tiles, kernel.shape);
            };
            const double band = rows(window_spec(2047, causal ? 0 : 2048));
            EXPECT_LT(band, rows({}) / 8);
            EXPECT_GT(band, rows({.segment = 1024}) / 2);
            EXPECT_LT(rows(window_spec(1023, causal ? 0 : 1024)), band);
        }
}

// Checks the numbers in doc/performance.md below the table of `fused`.
TEST(Split, TakesAsManyAsThePageSays) {
    const Problem slide = gigapath(70001);
    for (const Kernel &kernel : kernels(slide.dim))
        EXPECT_EQ(grids_of(slide, kernel).size(), 2U);
    Problem sparse = problem_of(262144, 16, 64, {{.segment = 1024}, {.segment = 262144, .dilation = 64}});
    for (const bool causal : {false, true}) {
        sparse.causal = causal;
        for (const Kernel &kernel : kernels(sparse.dim))
            EXPECT_EQ(grids_of(sparse, kernel).size(), 2U) << sparse;
        for (const auto &[heads, dim] : {std::pair(16, 128), {32, 64}}) {
            Problem nested = longnet(262144);
            nested.heads = heads;
            nested.dim = dim;
            nested.causal = causal;
            for (const Kernel &kernel : kernels(nested.dim))
                EXPECT_EQ(grids_of(nested, kernel).size(), 1U) << nested;
        }
    }
}

// A subset of the branches may have more classes than all of them, since other prime factors come first.
TEST(Split, LosesNoBranch) {
    for (const std::int64_t dilation : {34, 51})
        for (const std::int64_t length : {1000, 32768, 65536}) {
            const Problem problem = problem_of(1 << 18, 8, 64,
                                               {{.segment = 1024},
                                                {.segment = 1024, .dilation = 17},
                                                {.segment = length, .dilation = dilation},
                                                {.dilation = dilation}});
            for (const Kernel &kernel : kernels(problem.dim)) {
                std::set<std::pair<int, int>> found;
                for (const PlannedGrid &planned : grids_of(problem, kernel))
                    for (int i = 0; i < planned.tiles.branch_count; ++i)
                        found.insert(
                            {planned.tiles.branches[i].length.value, planned.tiles.branches[i].dilation.value});
                EXPECT_EQ(found.size(), 4U) << problem;
            }
        }
}

// The rows whose partial results the last grid adds are the rows of the other grid's row blocks.
TEST(Split, SumsAreOfTheRowsOfOthers) {
    const Problem problem = gigapath(200001);
    const std::vector<PlannedGrid> grids = grids_of(problem, kernels(problem.dim)[0]);
    ASSERT_EQ(grids.size(), 2U);
    const Plan plan(pattern_of(problem), plan_problem_of(problem));
    const auto first = plan.branches().size() - static_cast<std::size_t>(grids[0].tiles.branch_count);
    for (const std::int64_t position : {0, 1, 4, 5, 32767, 32768, 185362, 185363, 185364, 185379, 200000})
        for (int head = 0; head < problem.heads; ++head) {
            bool takes_part = false;
            for (std::size_t i = first; i < plan.branches().size(); ++i) {
                const std::int64_t length = problem.branches[i].segment, dilation = problem.branches[i].dilation;
                const std::int64_t start = position / length * length;
                const std::int64_t phase = head / ((problem.heads + dilation - 1) / dilation);
                takes_part |= (position - start) % dilation == phase % dilation;
            }
            EXPECT_EQ(grids[1].tiles.rows_with_partial.has(head, static_cast<int>(position)), takes_part)
                << position << " " << head;
        }
}

// Expects that among `stride` consecutive rows at most one takes part in the branches that leave partial results.
void expect_one_of_neighbours(const Problem &problem, const Kernel &kernel, const BranchSplit &split) {
    const int stride = split.partial_stride(problem.heads);
    ASSERT_GE(stride, 1);
    const PartialRows &rows = split.grids.back().tiles.rows_with_partial;
    const auto length = static_cast<int>(problem.length);
    for (int head = 0; head < problem.heads; ++head)
        for (int first = 0; first < length; first += stride) {
            int found = 0;
            for (int position = first; position < std::min(first + stride, length); ++position)
                found += rows.has(head, position);
            ASSERT_LE(found, 1) << problem << " kernel " << static_cast<int>(kernel.what) << " head " << head
                                << " position " << first << " stride " << stride;
        }
}

TEST(Split, NeighboursShareAPartialResult) {
    Problem two = local_and_global(250001), cut = local_and_global(250001);
    two.branches.push_back({.dilation = 96});     // gcd(96, 64) = 32
    cut.branches.back().segment = 64 * 1001 + 16; // segments begin at multiples of 16
    const Problem phases = gigapath(200001);      // a head has different phases
    const Problem segments = problem_of(
        5001, 3, 64, {{.segment = 200}, {.dilation = 8}, {.dilation = 12}, {.segment = 999, .dilation = 20}});
    for (const auto &[problem, stride] : {std::pair(local_and_global(1 << 18), 64),
                                          {local_and_global(250001), 64},
                                          {two, 32},
                                          {cut, 16},
                                          {phases, 1},
                                          {segments, 1}})
        for (const Kernel &kernel : kernels(problem.dim)) {
            const Plan plan(pattern_of(problem), plan_problem_of(problem));
            const auto split = split_branches(make_grids(plan, kernel.what, kernel.shape), plan, kernel.what,
                                              kernel.shape, multiprocessors);
            ASSERT_TRUE(split) << problem;
            EXPECT_EQ(split->partial_stride(problem.heads), stride) << problem;
            expect_one_of_neighbours(problem, kernel, *split);
        }
}

// Random branches, split even if that takes longer.
TEST(Split, NeighboursOfRandomBranchesShareAPartialResult) {
    int strides = 0;
    for (std::uint64_t seed = 0; seed < 300; ++seed) {
        Problem problem = random_problem(seed);
        problem.dtype = ANNULUS_BFLOAT16;
        problem.window.reset();
        const Plan plan(pattern_of(problem), plan_problem_of(problem));
        const Kernel kernel = kernels(problem.dim)[0];
        const std::vector<PlannedGrid> grids = make_grids(plan, kernel.what, kernel.shape);
        if (grids.size() != 1 || grids.front().curve || grids.front().tiles.has_residue_classes)
            continue;
        for (int count = 1; count < grids.front().tiles.branch_count; ++count)
            if (const auto cut = split_after(count, grids.front(), plan, kernel.what, kernel.shape)) {
                const BranchSplit split{*cut, 0, {}, multiprocessors};
                expect_one_of_neighbours(problem, kernel, split);
                strides += split.partial_stride(problem.heads) > 1;
            }
    }
    EXPECT_GT(strides, 5);
}

// If dilations do not divide one another, there are two grids anyway.
TEST(Split, TakesTwoGridsAsTheyAre) {
    const Problem problem =
        problem_of(20001, 8, 64, {{.segment = 256}, {.segment = 1000, .dilation = 2}, {.dilation = 63}});
    const Plan plan(pattern_of(problem), plan_problem_of(problem));
    for (const Kernel &kernel : kernels(problem.dim)) {
        const std::vector<PlannedGrid> found = make_grids(plan, kernel.what, kernel.shape);
        const auto split = split_branches(found, plan, kernel.what, kernel.shape, multiprocessors);
        ASSERT_TRUE(found.size() == 2 && split);
        const TileGrid &first = split->grids.front().tiles, &last = split->grids.back().tiles;
        EXPECT_EQ(first, found.back().tiles);
        EXPECT_EQ(last.branch_count, 2);
        EXPECT_EQ(last.rows_with_partial.branch_count, 1);
        EXPECT_EQ(last.rows_with_partial.branches[0], found.back().tiles.branches[0]);
    }
}

// If one grid cannot take all branches, they are divided into the grids that take the least time. That may be more
// grids than needed. Each branch is in one of them.
TEST(Split, CutsBranchesOfSeveralGridsWhereItTakesLess) {
    for (const auto &[count, length] : {std::pair(7U, 1 << 24), {7U, 16000001}, {8U, 16000001}, {9U, 67000001}}) {
        Problem problem = problem_of(length, 1, 64, {});
        for (std::size_t i = 0; i < count; ++i)
            problem.branches.push_back({.segment = 2048LL << 2 * i, .dilation = 1LL << 2 * i});
        for (const Kernel &kernel : kernels(problem.dim)) {
            const Plan plan(pattern_of(problem), plan_problem_of(problem));
            const std::vector<PlannedGrid> found = make_grids(plan, kernel.what, kernel.shape);
            const auto split = split_branches(found, plan, kernel.what, kernel.shape, multiprocessors);
            ASSERT_TRUE(found.size() > 1 && split);
            const auto rows = [&](const std::vector<PlannedGrid> &grids) {
                double sum = 0;
                for (const PlannedGrid &planned : grids)
                    sum += time_of_tiles(planned.tiles, kernel.shape);
                return sum;
            };
            EXPECT_LT(rows(split->grids), 0.75 * rows(found));
            std::multiset<int> dilations, wanted;
            for (const BranchSpec &branch : problem.branches)
                wanted.insert(static_cast<int>(branch.dilation));
            for (const PlannedGrid &planned : split->grids)
                for (const GridBranch &branch : branches_of(planned.tiles))
                    dilations.insert(branch.dilation.value);
            EXPECT_EQ(dilations, wanted);
            EXPECT_EQ(branches_of(split->grids.back().tiles).front().dilation.value, 1);
            expect_one_of_neighbours(problem_of(1000001, 1, 64, problem.branches), kernel, *split);
        }
    }
}

// Several grids that cannot be a split, for instance if the first one leaves rows out.
TEST(Split, LeavesWhatItCannotCut) {
    const std::vector<Problem> problems = {
        problem_of(1 << 18, 8, 64, {{.segment = 256, .dilation = 2}, {.dilation = 63}}),
        problem_of(1 << 18, 8, 64, {{.segment = 256, .dilation = 2}, {.dilation = 64}}),
        local_and_global(1 << 18, ANNULUS_QUERY_RESIDUE)};
    for (const Problem &problem : problems)
        for (const Kernel &kernel : kernels(problem.dim)) {
            const Plan plan(pattern_of(problem), plan_problem_of(problem));
            const std::vector<PlannedGrid> grids = make_grids(plan, kernel.what, kernel.shape);
            EXPECT_FALSE(split_branches(grids, plan, kernel.what, kernel.shape, multiprocessors)) << problem;
        }
}

TEST(Split, TakesOneWithoutQueries) {
    Problem problem = local_and_global(1 << 18);
    problem.window = QueryWindow{0, 0};
    for (const Kernel &kernel : kernels(problem.dim))
        EXPECT_LE(grids_of(problem, kernel).size(), 1U);
}

} // namespace
} // namespace annulus::test
