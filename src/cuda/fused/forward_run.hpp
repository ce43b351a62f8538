// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/workspace.hpp"
#include "cuda/device/cuda_call.hpp"
#include "cuda/fused/fused_call.hpp"

#include <cstddef>
#include <optional>
#include <vector>

namespace annulus {

struct ForwardGrids {
    std::vector<PlannedGrid> passes;
    std::optional<SumParts> parts; // if the pass was cut
};
// Of a call, whose pass may be cut, or of a step of one.
ForwardGrids make_forward_passes(const Plan &plan, const Resources &resources, bool is_step);

// Bytes of workspace of a call, or of a step of one.
std::size_t forward_bytes(const Plan &plan, const Resources &resources, bool is_step);

// Runs all passes; with `call.sums` into these, but for rows that the first step finishes, else into the call's
// tensors, by way of sums of its own where it needs any.
void run_forward(const CudaCall &call, Workspace &workspace);

} // namespace annulus
