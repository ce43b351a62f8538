// SPDX-License-Identifier: Apache-2.0
// A forward call of the fused engine as a list of steps in order, and its workspace. Pure data.
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
    clear_outputs,                // writes rows without keys: O is 0, LSE -infinity
    clear_partial,                // sets all partial results to the state of a row without keys
    mark_finished,                // marks all rows as finished, until a launch sets their partial results
    find_order,                   // finds the permutation of the curve of the launch's grid
    pack_ranges,                  // copies range rows of the launch's grid into that permutation
    attend,                       // runs the launch
    merge_range_parts,            // merges the range parts of the launch before
    write_outputs,                // writes the caller's tensors from the partial results
    write_unfinished,             // the same, except for the rows that a launch has finished
    recompute_outputs_of_partial, // recomputes rows of the caller's tensors whose partial results have a NaN
    recompute_outputs,            // recomputes rows of the caller's tensors that have a NaN there
    recompute_partial_outputs,    // recomputes partial results that have a NaN
};

struct ForwardStep {
    ForwardAction action;
    Launch launch{}; // for attend and merge_range_parts; find_order and pack_ranges use only its grid
};

struct ForwardPlan {
    std::vector<PlannedGrid> grids;
    std::optional<SplitParts>
        parts; // parts in which partial results are made, if the branches are split over several grids
    bool has_own_partial = false; // the workspace holds partial results of all rows, or of `summed`; the call has none
    std::optional<SummedRows> summed; // the rows that have partial results if the last launch finishes all rows
    std::vector<RowSequence> rows;    // of several sequences, if rows may be recomputed
    std::vector<ForwardStep> steps;
};

// Plans a whole call, or another key scope, in one of the ways that launch.hpp lists. The workspace limit is in bytes
// (0: none). `grids` must come from make_grids() for kernels of this shape, or from lay_out_sequences().
ForwardPlan plan_forward(const Plan &plan, KeyScope scope, std::vector<PlannedGrid> grids, const KernelShape &shape,
                         int multiprocessors, std::uint64_t limit);

struct ForwardMemory {
    BranchPlan *branches;      // null unless keys are hidden or count once
    unsigned *counters;        // start at 0: tiles taken, for each launch, then whether a result is NaN or infinite
    std::size_t counter_count; // number of all counters
    int *has_nonfinite;        // the last counter; null unless keys are hidden
    float2 *state;             // [B, H, queries], of partial results; only the rows of one part, or ForwardPlan::summed
    float *o;                  // [B, H, queries, D]
    float2 *part_state;        // [parts, B, H, rows], of range parts
    float *part_o;             // [parts, B, H, rows, D]
    CurveMemory curves;
    SequenceMemory sequences;
};
ForwardMemory book_forward(Workspace &workspace, const Plan &plan, const ForwardPlan &forward);
std::size_t forward_bytes(const Plan &plan, const ForwardPlan &forward);

} // namespace annulus
