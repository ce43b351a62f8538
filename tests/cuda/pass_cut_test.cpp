// SPDX-License-Identifier: Apache-2.0
// When the fused engine takes two passes for what one could do, as pure data and without a GPU.
#include "cuda/fused/fused_launch.hpp"
#include "cuda/fused/pass_cut.hpp"

#include "support/plan.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace annulus::test {
namespace {

constexpr int multiprocessors = 132; // of an H200

struct Kernel {
    PassOf what;
    PassShape shape;
};

std::vector<Kernel> kernels(std::int32_t dim) {
    return {{PassOf::outputs, forward_shape(dim)},
            {PassOf::query_gradients, backward_shape(ANNULUS_BFLOAT16, dim, Gradients::d_q)},
            {PassOf::key_gradients, backward_shape(ANNULUS_BFLOAT16, dim, Gradients::d_k_and_d_v)}};
}

// As a device finds them that has been asked before.
std::vector<PlannedPass> passes_of(const Problem &problem, const Kernel &kernel) {
    const Plan plan(pattern_of(problem), plan_problem_of(problem));
    static PassCuts cuts;
    std::vector<PlannedPass> passes;
    std::size_t first_count = 0;
    for (int i = 0; i < 2; ++i) {
        passes = make_passes(plan, kernel.what, kernel.shape);
        cuts.cut(passes, plan, kernel.what, kernel.shape, multiprocessors);
        first_count = i == 0 ? passes.size() : first_count;
    }
    EXPECT_EQ(passes.size(), first_count) << problem;
    return passes;
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

// A short segment around each query and a few keys from everywhere.
Problem local_and_global(std::int64_t length, annulus_query_rule rule = ANNULUS_QUERY_DILATED) {
    return problem_of(length, 8, 64, {{.segment = 256}, {.dilation = 64, .query = rule}});
}

// Segments that nest keep their keys' single visit; there is nothing to gain for few tiles.
TEST(Cut, LeavesWhatFillsItsTiles) {
    for (const Problem &problem : {longnet(262144), longnet(1 << 20), longnet(8192), gigapath(10001),
                                   local_and_global(2048), problem_of(1 << 20, 8, 64, {{.segment = 4096}})})
        for (const Kernel &kernel : kernels(problem.dim))
            EXPECT_EQ(passes_of(problem, kernel).size(), 1U) << problem;
}

TEST(Cut, KeepsAllBranchesInTheirOrder) {
    for (const Problem &problem : {gigapath(200001), local_and_global(1 << 18)})
        for (const Kernel &kernel : {kernels(problem.dim)[0], kernels(problem.dim)[1]}) {
            const Plan plan(pattern_of(problem), plan_problem_of(problem));
            const TilePass whole = make_passes(plan, kernel.what, kernel.shape).front().tiles;
            const std::vector<PlannedPass> passes = passes_of(problem, kernel);
            ASSERT_EQ(passes.size(), 2U) << problem;
            EXPECT_TRUE(passes[0].is_complete);
            EXPECT_FALSE(passes[0].adds_to_rows);
            EXPECT_TRUE(passes[1].adds_to_rows);
            int index = 0;
            for (const PlannedPass &planned : passes) {
                EXPECT_GT(planned.tiles.tiles, 0U);
                EXPECT_LE(planned.tiles.tiles, whole.tiles);
                for (int i = 0; i < planned.tiles.branch_count; ++i, ++index) {
                    EXPECT_EQ(planned.tiles.branches[i].length.value, whole.branches[index].length.value);
                    EXPECT_EQ(planned.tiles.branches[i].dilation.value, whole.branches[index].dilation.value);
                }
            }
            EXPECT_EQ(index, whole.branch_count);
        }
}

// Passes that follow one another anyway, or whose first part leaves rows out.
TEST(Cut, LeavesWhatItCannotCut) {
    const std::vector<Problem> problems = {
        problem_of(1 << 18, 8, 64, {{.segment = 256}, {.segment = 1000, .dilation = 2}, {.dilation = 63}}),
        problem_of(1 << 18, 8, 64, {{.segment = 256, .dilation = 2}, {.dilation = 64}}),
        local_and_global(1 << 18, ANNULUS_QUERY_RESIDUE)};
    for (const Problem &problem : problems)
        for (const Kernel &kernel : kernels(problem.dim))
            for (const PlannedPass &planned : passes_of(problem, kernel))
                EXPECT_FALSE(planned.adds_to_rows) << problem;
}

TEST(Cut, TakesOneWithoutQueries) {
    Problem problem = local_and_global(1 << 18);
    problem.window = QueryWindow{0, 0};
    for (const Kernel &kernel : kernels(problem.dim))
        EXPECT_LE(passes_of(problem, kernel).size(), 1U);
}

} // namespace
} // namespace annulus::test
