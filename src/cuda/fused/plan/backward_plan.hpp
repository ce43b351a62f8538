// SPDX-License-Identifier: Apache-2.0
// A backward call of the fused engine as a list of what is to be done, in order; and its workspace. Pure data.
#pragma once

#include "core/workspace.hpp"
#include "cuda/fused/math/backward_work.hpp"
#include "cuda/fused/plan/curve_memory.hpp"
#include "cuda/fused/plan/launch.hpp"
#include "cuda/fused/plan/sequence_grids.hpp"
#include "cuda/fused/plan/stored_ds_plan.hpp"
#include "cuda/results/results.hpp"
#include "engine/engine.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace annulus {

// What belongs to the gradients of queries, and what to those of keys.
enum class Side { queries, keys };

inline const Window &window_of(const Problem &problem, Side side) {
    return side == Side::queries ? problem.queries : problem.keys;
}

inline const KernelShape &shape_of(const BackwardShapes &shapes, Side side) {
    return side == Side::queries ? shapes.of_queries : shapes.of_keys;
}

enum class BackwardAction {
    find_lse_delta,
    clear_gradients,     // of a side: zeros in the caller's tensors
    clear_partial,       // of a side: zeros in its partial results
    find_order,          // along the curve of the launch's grid, for both sides
    pack_ranges,         // of the launch's grid, in this order
    find_gradients,      // the launch
    write_gradients,     // from the call's own partial results
    recompute_gradients, // of a side: rows that met NaN or infinity, in the caller's tensors
    recompute_partial,   // the same in its partial results
};

struct BackwardStep {
    BackwardAction action;
    Side side = Side::queries;
    Launch launch{}; // of find_gradients; of find_order and pack_ranges the grid alone
    Gradients what = Gradients::d_q;
    // Of Gradients::all_storing_d_s, whose launch is of keys.
    Destination destination_of_queries{};
    TurnRange turns{};
};

// The grids over the rows of one side.
struct SideGrids {
    std::vector<PlannedGrid> grids;
    // Of partial results, where several grids share a whole call's branches, or several passes store dS (StoredTurns).
    std::optional<SplitParts> parts;
    bool is_split = false;        // between two grids of a call's own keys: partial results are the call's
    bool has_own_partial = false; // partial results of all rows in the workspace, not the call's
    bool finishes = false;        // rows that meet nothing but the call's own keys or queries
};

struct BackwardPlan {
    SideGrids queries, keys;
    std::optional<StoredDsParts> stored;
    std::vector<RowSequence> rows; // of several sequences, if rows may be computed again
    std::vector<BackwardStep> steps;
    std::size_t first_of_rest = 0; // the steps from it on are those of Executable::run_rest()

    // What a launch counts: tiles taken, and where it stores dS and multiplies it what is done (StoredDs::done).
    std::int64_t counters_of(Gradients what) const {
        return what == Gradients::all_storing_d_s ? 1 + 2 * stored->of_segment.turns.groups_in_memory.value : 1;
    }

    const SideGrids &of(Side side) const { return side == Side::queries ? queries : keys; }
    SideGrids &of(Side side) { return side == Side::queries ? queries : keys; }
};

// What make_grids() says of both sides, for kernels of these shapes.
struct BackwardGrids {
    std::vector<PlannedGrid> queries, keys;
};
BackwardGrids make_backward_grids(const Plan &plan, const BackwardShapes &shapes);
BackwardGrids make_backward_grids(const SequencePlans &plans, const BackwardShapes &shapes);

// Of a whole call or a part. Branches may be split, of a whole call if all gradients are plain, else of the own keys;
// dS may be stored where they are not, kernels do it and the limit in bytes (0: none) leaves room for it.
BackwardPlan plan_backward(const Plan &plan, KeyScope scope, BackwardGrids grids, const BackwardShapes &shapes,
                           int multiprocessors, std::uint64_t limit);

struct BackwardMemory {
    float *lse_log2, *delta;     // [B, H, queries]
    BranchPlan *branches;        // causal, else null
    unsigned *flag_and_counters; // 0 at first: whether a result is NaN or infinite, and those of each launch
    std::size_t counter_count;
    int *has_nonfinite;       // the flag, under causality, else null
    PartialGradients partial; // of the call's own
    CurveMemory curves;
    std::uint8_t *stored_ds;
    SequenceMemory sequences;
    float *split_partial; // SideGrids::parts, a part of the rows at a time: dQ; or dK, and dV
};
BackwardMemory book_backward(Workspace &workspace, const Plan &plan, const BackwardPlan &backward);
std::size_t backward_bytes(const Plan &plan, const BackwardPlan &backward);

} // namespace annulus
