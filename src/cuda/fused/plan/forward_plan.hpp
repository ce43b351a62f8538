// SPDX-License-Identifier: Apache-2.0
// A forward call of the fused engine as a list of what is to be done, in order; and its workspace. Pure data.
#pragma once

#include "core/workspace.hpp"
#include "cuda/fused/plan/curve_memory.hpp"
#include "cuda/fused/plan/launch.hpp"
#include "cuda/fused/plan/sequence_grids.hpp"
#include "engine/engine.hpp"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace annulus {

enum class ForwardAction {
    clear_outputs,                // rows without keys: O is 0, LSE -infinity
    clear_partial,                // all partial results: no key was met
    mark_finished,                // all rows, until a launch sets their partial results
    find_order,                   // along the curve of the launch's grid
    pack_ranges,                  // of the launch's grid, in this order
    attend,                       // the launch
    write_outputs,                // from the partial results
    recompute_outputs_of_partial, // rows that met NaN or infinity, from the partial results
    recompute_outputs,            // the same in the caller's tensors
    recompute_partial_outputs,    // the same in the partial results
};

struct ForwardStep {
    ForwardAction action;
    Launch launch{}; // of attend; of find_order and pack_ranges the grid alone
};

struct ForwardPlan {
    std::vector<PlannedGrid> grids;
    std::optional<SplitParts> parts; // of partial results, where the branches are split between several grids
    bool has_own_partial = false;    // partial results of all rows in the workspace, not the call's
    std::vector<RowSequence> rows;   // of several sequences, if rows may be computed again
    std::vector<ForwardStep> steps;
};

// Of a whole call, whose branches may be split where the limit in bytes (0: none) leaves room for it, or of a part.
// `grids` are those of make_grids() for kernels of this shape, or of several sequences.
ForwardPlan plan_forward(const Plan &plan, KeyScope scope, std::vector<PlannedGrid> grids, const KernelShape &shape,
                         int multiprocessors, std::uint64_t limit);

struct ForwardMemory {
    BranchPlan *branches;      // causal, else null
    unsigned *counters;        // of tiles taken, for each launch, and whether a result is NaN or infinite; 0 at first
    std::size_t counter_count; // of all of these
    int *has_nonfinite;        // the last of them under causality, else null
    float2 *state; // [B, H, queries], of partial results; those of a split grid, a part of the rows at a time
    float *o;      // [B, H, queries, D]
    CurveMemory curves;
    SequenceMemory sequences;
};
ForwardMemory book_forward(Workspace &workspace, const Plan &plan, const ForwardPlan &forward);
std::size_t forward_bytes(const Plan &plan, const ForwardPlan &forward);

} // namespace annulus
