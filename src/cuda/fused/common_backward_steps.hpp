// SPDX-License-Identifier: Apache-2.0
// The steps of a backward pass that no architecture has kernels of its own for: LSE and delta, and what is cleared,
// written or computed again.
#pragma once

#include "cuda/fused/plan/backward_plan.hpp"
#include "cuda/results/cuda_call.hpp"

namespace annulus {

// Returns the rows of a side that have partial results, of the call's own or of its ranks'. Null: all rows.
const SummedRows *summed_rows(Side side, const BackwardPlan &backward, const CudaCall &call);

// Returns the partial results of a side: the call's, or in the workspace results of all rows, of summed_rows(), or of a
// part of the rows at a time.
PartialGradients partial_gradients(Side side, const BackwardPlan &backward, KeyScope scope, const CudaCall &call,
                                   const BackwardMemory &memory);

// Runs any step but find_gradients, add_range_parts and pack_ranges, which read the parameters of an architecture's
// kernels.
void run_common_step(const BackwardStep &step, const BackwardPlan &backward, KeyScope scope, const CudaCall &call,
                     const BackwardMemory &memory);

} // namespace annulus
