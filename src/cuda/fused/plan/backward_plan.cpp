// SPDX-License-Identifier: Apache-2.0
#include "cuda/fused/plan/backward_plan.hpp"

#include "cuda/fused/plan/backward_steps.hpp"
#include "cuda/fused/plan/branch_split.hpp"
#include "cuda/fused/plan/tuning.hpp"
#include "cuda/results/cuda_call.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

namespace annulus {

namespace {

GridResult grids_of(Side side) {
    return side == Side::queries ? GridResult::query_gradients : GridResult::key_gradients;
}

// True if the kernels can write the final rows of this side. Kernels write only the problem's dtype and cannot add to
// the caller's rows. And heads of Q that share a head of K still have to add up its rows.
bool may_write_rows(const Problem &problem, Side side) {
    if (side == Side::queries)
        return problem.gradients.query_gradients_are_plain() && !problem.gradients.only_v;
    return problem.heads == problem.kv_heads && problem.gradients.key_gradients_are_plain();
}

// Plans the call without split branches and without stored dS.
BackwardPlan plan_grids(const Plan &plan, KeyScope scope, BackwardGrids grids, const BackwardShapes &shapes) {
    const Problem &problem = plan.problem();
    const bool is_whole = scope == KeyScope::all_keys;
    BackwardPlan result;
    result.has_own_statistics = is_whole;
    result.queries.grids = std::move(grids.queries);
    result.keys.grids = std::move(grids.keys);
    for (const Side which : {Side::queries, Side::keys}) {
        SideGrids &side = result.side_grids(which);
        const bool may_write = may_write_rows(problem, which);
        const bool has_results = which == Side::keys || !problem.gradients.only_v;
        side.has_own_partial = is_whole && has_results && (!may_write || share_partial_results(side.grids));
        side.finishes = may_write && finishes_rows(scope, side.grids);
        if (side.finishes)
            set_rows_left_partial(grids_of(which), side.grids);
    }
    write_steps(plan, scope, shapes, result);
    return result;
}

// Changes `result` to store dS, if there is room for it.
void try_storing_ds(const Plan &plan, KeyScope scope, const BackwardShapes &shapes, int multiprocessors,
                    std::uint64_t limit, BackwardPlan &result) {
    const std::size_t used = backward_bytes(plan, result);
    BackwardPlan storing = result;
    SideGrids &keys = storing.keys;
    const bool sums_keys = scope != KeyScope::all_keys || keys.has_own_partial;
    storing.stored = plan_stored_ds(
        plan.problem(), scope, result.queries.grids, keys.grids, sums_keys, shapes, multiprocessors,
        limit == 0 && shapes.storing == StoringKernels::one ? tuning::usual_room_for_ds : room_within(limit, used));
    if (!storing.stored)
        return;
    if (storing.stored->layout.turns.passes > 1) {
        keys.finishes = false;
        if (!sums_keys)
            keys.parts =
                SplitParts{storing.stored->batches, storing.stored->heads, static_cast<int>(plan.problem().key_rows())};
    }
    const bool clears_beside =
        std::ranges::any_of(result.steps, [](const BackwardStep &step) { return step.launch.clears.parts > 0; });
    if (clears_beside && zeros_outweigh_ds(plan.problem(), result.keys.grids.front().tiles, *storing.stored))
        return;
    write_steps(plan, scope, shapes, storing);
    if (limit == 0 || backward_bytes(plan, storing) <= limit) // the counters may need too much memory
        result = std::move(storing);
}

// Splits the branches of one or both sides, for the part of a call with its own keys. Returns false if neither side is
// split.
bool split_own_keys(const Plan &plan, const BackwardShapes &shapes, int multiprocessors, BackwardPlan &result) {
    for (const Side which : {Side::queries, Side::keys}) {
        SideGrids &side = result.side_grids(which);
        if (!may_write_rows(plan.problem(), which))
            continue;
        std::optional<BranchSplit> split = split_branches(side.grids, plan, grids_of(which), shape_of(shapes, which),
                                                          multiprocessors, max_grids(KeyScope::own_keys));
        if (!split)
            continue;
        side.is_split = side.finishes = true;
        side.grids = std::move(split->grids);
    }
    if (!result.queries.is_split && !result.keys.is_split)
        return false;
    write_steps(plan, KeyScope::own_keys, shapes, result);
    return true;
}

// Splits the branches of one or both sides of a whole call. Does so if there is room for partial results, or if one
// grid cannot take the branches. Returns false if neither side is split.
bool try_splitting(const Plan &plan, const BackwardShapes &shapes, int multiprocessors, std::uint64_t limit,
                   BackwardPlan &result) {
    const Problem &problem = plan.problem();
    BackwardPlan without_partial = result;
    std::map<Side, BranchSplit> splits;
    for (const Side which : {Side::queries, Side::keys})
        if (may_write_rows(problem, which))
            if (std::optional<BranchSplit> split = split_branches(result.side_grids(which).grids, plan, grids_of(which),
                                                                  shape_of(shapes, which), multiprocessors)) {
                splits.emplace(which, *std::move(split));
                without_partial.side_grids(which).has_own_partial = false;
            }
    std::size_t room = room_within(limit, backward_bytes(plan, without_partial));
    for (bool takes_least = false;;) {
        BackwardPlan splitting = result;
        bool has_room = true;
        std::size_t sums = 0; // of partial results
        for (const auto &[which, split] : splits) {
            SideGrids &side = splitting.side_grids(which);
            const std::size_t tensors = which == Side::queries ? 1 : 2;
            const SplitRows rows{static_cast<int>(problem.batch), problem.heads,
                                 static_cast<int>(window_of(problem, which).length),
                                 problem.key_stride == 1 ? split.partial_stride(problem.heads) : 1,
                                 tensors * problem.head_dim * sizeof(float)};
            side.parts = takes_least ? split.least_parts(rows) : split.parts_within(rows, room);
            if (!side.parts) {
                has_room &= split.has_alternative();
                continue;
            }
            side.grids = split.grids;
            side.has_own_partial = false;
            sums = std::max(sums, static_cast<std::size_t>(side.parts->all_rows()) * rows.row_bytes);
        }
        if (!has_room) {
            takes_least = true;
            continue;
        }
        if (!splitting.queries.parts && !splitting.keys.parts)
            return false;
        write_steps(plan, KeyScope::all_keys, shapes, splitting);
        const std::size_t bytes = backward_bytes(plan, splitting);
        if (limit == 0 || bytes <= limit || takes_least) {
            result = std::move(splitting);
            return true;
        }
        room = sums - std::min(sums, bytes - limit); // the counters of this number of launches exceed the limit
    }
}

} // namespace

BackwardGrids make_backward_grids(const Plan &plan, const BackwardShapes &shapes) {
    return {make_grids(plan, GridResult::query_gradients, shapes.queries),
            make_grids(plan, GridResult::key_gradients, shapes.keys)};
}

BackwardGrids make_backward_grids(const SequencePlans &plans, const BackwardShapes &shapes) {
    BackwardGrids grids = make_backward_grids(plan_of_longest(plans), shapes);
    lay_out_sequences(plans, GridResult::query_gradients, shapes.queries, grids.queries);
    lay_out_sequences(plans, GridResult::key_gradients, shapes.keys, grids.keys);
    return grids;
}

BackwardPlan plan_backward(const Plan &plan, KeyScope scope, BackwardGrids grids, const BackwardShapes &shapes,
                           int multiprocessors, std::uint64_t limit) {
    if (has_other_keys(scope)) {
        const auto split = [&](Side which, std::vector<PlannedGrid> &side_grids) {
            split_ranges_elsewhere(side_grids, plan, grids_of(which), shape_of(shapes, which), multiprocessors);
        };
        split(Side::queries, grids.queries);
        split(Side::keys, grids.keys);
    }
    if (plan.problem().gradients.only_v)
        grids.queries.clear();
    BackwardPlan result = plan_grids(plan, scope, std::move(grids), shapes);
    if (are_over_sequences(result.keys.grids))
        return result;
    bool is_split = false;
    if (scope == KeyScope::all_keys)
        is_split = plan.problem().gradients.are_plain() && try_splitting(plan, shapes, multiprocessors, limit, result);
    else if (scope == KeyScope::own_keys)
        is_split = split_own_keys(plan, shapes, multiprocessors, result);
    if (!is_split && shapes.storing != StoringKernels::none && !plan.problem().gradients.only_v &&
        !plan.has_global_positions())
        try_storing_ds(plan, scope, shapes, multiprocessors, limit, result);
    return result;
}

BackwardMemory book_backward(Workspace &workspace, const Plan &plan, const BackwardPlan &backward) {
    BackwardMemory memory{};
    const Problem &problem = plan.problem();
    const std::int64_t rows = problem.batch * problem.heads * problem.queries.length, d = problem.head_dim;
    if (backward.has_own_statistics) {
        memory.lse_log2 = workspace.take<float>(rows);
        memory.delta = workspace.take<float>(rows);
    }
    memory.branches = book_branches(workspace, plan);
    std::int64_t counters = 0;
    for (const BackwardStep &step : backward.steps)
        if (step.action == BackwardAction::find_gradients)
            counters += backward.counters_of(step.what);
    memory.flag_and_counters = workspace.take<unsigned>(counters + 1);
    memory.counter_count = static_cast<std::size_t>(counters);
    if (plan.hides_keys())
        memory.has_nonfinite = reinterpret_cast<int *>(memory.flag_and_counters);
    if (backward.queries.has_own_partial)
        memory.partial.d_q = workspace.take<float>(rows, d);
    if (backward.keys.has_own_partial) {
        if (!problem.gradients.only_v)
            memory.partial.d_k = workspace.take<float>(problem.batch, problem.kv_heads, problem.key_rows(), d);
        memory.partial.d_v = workspace.take<float>(problem.batch, problem.kv_heads, problem.key_rows(), d);
    }
    memory.curves = book_curves(workspace, problem, backward.queries.grids, backward.keys.grids);
    memory.sequences = book_sequences(workspace, {&backward.queries.grids, &backward.keys.grids}, backward.rows);
    if (backward.stored)
        memory.stored_ds = workspace.take<std::uint8_t>(static_cast<std::int64_t>(backward.stored->bytes()));
    const std::int64_t query_rows = backward.queries.parts ? backward.queries.parts->all_rows() : 0;
    const std::int64_t key_rows = backward.keys.parts ? 2 * backward.keys.parts->all_rows() : 0;
    memory.split_partial = workspace.take<float>(std::max(query_rows, key_rows), d);
    return memory;
}

std::size_t backward_bytes(const Plan &plan, const BackwardPlan &backward) {
    Workspace ledger;
    book_backward(ledger, plan, backward);
    return ledger.used();
}

} // namespace annulus
