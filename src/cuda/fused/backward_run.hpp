// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/workspace.hpp"
#include "cuda/device/cuda_call.hpp"
#include "cuda/fused/fused_call.hpp"

#include <cstddef>
#include <optional>
#include <vector>

namespace annulus {

struct BackwardGrids {
    std::vector<PlannedGrid> queries, keys;
    std::optional<SumParts> query_parts, key_parts; // if they were cut
};
// Of a call, whose passes may be cut, or of a step of one.
BackwardGrids make_backward_passes(const Plan &plan, const Resources &resources, bool is_step);

// Bytes of workspace of a call, or of a step of one.
std::size_t backward_bytes(const Plan &plan, const Resources &resources, bool is_step);

// Runs all passes; with `call.sums` into these, but for rows that the first step finishes, else into the call's
// tensors, by way of sums of its own where it needs any.
void run_backward(const CudaCall &call, Workspace &workspace);

// From the sums of all steps to the rows of the call's gradients that the first one has not written. `call` is as that
// step's.
void write_summed_gradients(const CudaCall &call);

} // namespace annulus
