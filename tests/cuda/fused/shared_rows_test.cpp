// SPDX-License-Identifier: Apache-2.0
// `fused` on rows that stand for several positions, as ranks receive them.
#include "cuda/fused/calls.hpp"

#include "support/compare.hpp"
#include "support/ranks.hpp"

#include <gtest/gtest.h>

namespace annulus::test {
namespace {

// Of the first branch rank 1 has a single key to ask for, of the second every fourth: the rows that it gets stand for
// four positions each, and of the first branch's other segment no row is wanted.
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
