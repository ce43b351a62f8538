// SPDX-License-Identifier: Apache-2.0
// A backward call of the fused engine as a list of steps in order, and its workspace. Pure data.
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

// The side of the gradients: queries (dQ), or keys (dK, dV).
enum class Side { queries, keys };

inline const Window &window_of(const Problem &problem, Side side) {
    return side == Side::queries ? problem.queries : problem.keys;
}

inline const KernelShape &shape_of(const BackwardShapes &shapes, Side side) {
    return side == Side::queries ? shapes.queries : shapes.keys;
}

enum class BackwardAction {
    find_lse_delta,
    clear_gradients,     // writes zeros to a side's rows of the caller's tensors
    clear_partial,       // writes zeros to a side's partial results
    find_order,          // finds the permutation of the curve of the launch's grid, for both sides
    pack_ranges,         // copies range rows of the launch's grid into that permutation
    find_gradients,      // runs the launch
    add_range_parts,     // adds up the range parts of a side's launch before
    write_gradients,     // writes the caller's tensors from the call's own partial results
    write_rows_outside,  // the same for the rows of a side that the last grid leaves out
    recompute_gradients, // recomputes rows that met NaN or infinity, in a side's rows of the caller's tensors
    recompute_partial,   // the same in a side's partial results
};

struct BackwardStep {
    BackwardAction action;
    Side side = Side::queries;
    Launch launch{}; // for find_gradients and add_range_parts; find_order and pack_ranges use only its grid
    Gradients what = Gradients::d_q;
    // For Gradients::all_storing_d_s, whose launch is of keys.
    Destination query_destination{};
    TurnRange turns{};
    int pass = 0; // of two kernels that store and multiply dS: the queries' part (StoredDs)
};

// The grids over the rows of one side.
struct SideGrids {
    std::vector<PlannedGrid> grids;
    // The parts in which partial results are made. Set if several grids share the branches of a whole call, or if
    // several passes or several branches store dS (StoredDs).
    std::optional<SplitParts> parts;
    bool is_split =
        false; // the branches are split over two grids of a call's own keys, which use the call's partial results
    bool has_own_partial = false; // the workspace holds partial results of all rows, or of `summed`; the call has none
    bool finishes = false;        // writes the rows that meet only the call's own keys or queries
    // The destinations of the launches, if the last one adds the call's own partial results and finishes its rows.
    std::vector<Destination> destinations{};
    // The rows that then have partial results, or that have them if several branches store dS; none: all rows.
    std::optional<SummedRows> summed{};

    // True if the caller's tensors get all rows from the call's own partial results.
    bool writes_partial() const { return has_own_partial && destinations.empty(); }
};

struct BackwardPlan {
    SideGrids queries, keys;
    bool has_own_statistics = true;    // LSE and delta are in the workspace; else in the call's softmax state
    std::vector<StoredDsParts> stored; // how each grid stores dS; empty: no grid does
    std::vector<RowSequence> rows;     // of several sequences, if rows may be recomputed
    std::vector<BackwardStep> steps;
    std::size_t first_of_rest = 0; // Executable::run_rest() runs the steps from this one on

    // Returns the number of counters of a launch: one for tiles taken. A launch that stores and multiplies dS also
    // counts what is done (StoredDs::done).
    std::int64_t counters_of(const BackwardStep &step) const {
        return step.what == Gradients::all_storing_d_s
                   ? 1 + 2 * stored[step.launch.grid].layout.turns.groups_in_memory.value
                   : 1;
    }
    bool stores_ds() const { return !stored.empty(); }
    // True if several branches store dS. Then each has launches of its own, for both sides.
    bool branches_store_ds() const { return stored.size() > 1; }

    const SideGrids &side_grids(Side side) const { return side == Side::queries ? queries : keys; }
    SideGrids &side_grids(Side side) { return side == Side::queries ? queries : keys; }
};

// The grids of both sides by make_grids(), for kernels of these shapes.
struct BackwardGrids {
    std::vector<PlannedGrid> queries, keys;
};
BackwardGrids make_backward_grids(const Plan &plan, const BackwardShapes &shapes);
BackwardGrids make_backward_grids(const SequencePlans &plans, const BackwardShapes &shapes);

// Plans a whole call, or another key scope, in one of the ways that launch.hpp lists. A whole call can be split if all
// gradients are plain. Kernels of these shapes may not be able to store dS. The workspace limit is in bytes (0: none).
BackwardPlan plan_backward(const Plan &plan, KeyScope scope, BackwardGrids grids, const BackwardShapes &shapes,
                           int multiprocessors, std::uint64_t limit);

struct BackwardMemory {
    float *lse_log2, *delta; // [B, H, queries]; null unless BackwardPlan::has_own_statistics
    BranchPlan *branches;    // null unless keys are hidden or count once
    // Start at 0: whether a result is NaN or infinite, then the counters of each launch, then StoredDs::sum_counters,
    // which all launches share and which run_rest() does not clear.
    unsigned *flag_and_counters;
    std::size_t launch_counter_count, counter_count; // without the flag
    int *has_nonfinite;                              // the flag; null unless keys are hidden
    PartialGradients partial;                        // the call's own
    CurveMemory curves;
    std::uint8_t *stored_ds;
    float *sums; // StoredDs::sums
    SequenceMemory sequences;
    float *range_parts; // of range parts, [parts, B, heads, rows, D]: dQ, or dK and then dV
    // Partial results of SideGrids::parts, a part of the rows at a time: dQ, or dK and then dV. If several branches
    // store dS, it is dQ, dK and then dV.
    float *split_partial;
};
BackwardMemory book_backward(Workspace &workspace, const Plan &plan, const BackwardPlan &backward);
std::size_t backward_bytes(const Plan &plan, const BackwardPlan &backward);

} // namespace annulus
