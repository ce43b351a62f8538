// SPDX-License-Identifier: Apache-2.0
// Tests `fused` on rows that stand for several positions, as ranks receive them.
#include "cuda/fused/calls.hpp"

#include "support/compare.hpp"
#include "support/ranks.hpp"

#include <gtest/gtest.h>

namespace annulus::test {
namespace {

// In the first branch rank 1 needs a single key of the other rank, in the second branch every fourth key. So each
// received row stands for four positions. No row of the first branch's other segment is needed.
TEST(Ranks, ShareRowsOfSeveralPositions) {
    for (const bool causal : {false, true}) {
        const Problem problem = {
            .length = 2049,
            .heads = 2,
            .dim = 64,
            .branches = {{.segment = 1024}, {.dilation = 4, .phase = ANNULUS_PHASE_FIXED, .residue = 0}},
            .causal = causal,
            .dtype = ANNULUS_BFLOAT16};
        SCOPED_TRACE(testing::Message() << problem);
        const Inputs inputs = random_inputs(problem, 1);
        static CudaMemory memories[2] = {CudaMemory(CudaMemory::Order::own_stream),
                                         CudaMemory(CudaMemory::Order::own_stream)};
        const RankOptions options = {
            .lengths = {1025, 1024}, .run = subject(), .memories = {&memories[0], &memories[1]}};
        expect_agreement(problem, inputs, run_ranks(problem, inputs, options), run_exact(problem, inputs));
    }
}

} // namespace
} // namespace annulus::test
