// SPDX-License-Identifier: Apache-2.0
#include "cuda/fused/plan/forward_plan.hpp"

#include "cuda/fused/plan/branch_split.hpp"
#include "cuda/fused/plan/range_parts.hpp"
#include "cuda/results/cuda_call.hpp"

#include <algorithm>
#include <utility>

namespace annulus {

namespace {

// Adds a step that recomputes rows, if queries do not attend to all keys of their class. Kernels compute with hidden
// rows, too, so their NaN or infinity must be removed from the results.
void add_recomputing(std::vector<ForwardStep> &steps, const Plan &plan, ForwardAction action) {
    if (plan.hides_keys())
        steps.push_back({action});
}

// Lets each launch that follows another launch begin early.
void let_launches_begin_early(std::vector<ForwardStep> &steps) {
    for (std::size_t i = 1; i < steps.size(); ++i)
        steps[i].launch.begins_early =
            steps[i].action == ForwardAction::attend && steps[i - 1].action == ForwardAction::attend;
}

ForwardPlan plan_grids(const Plan &plan, KeyScope scope, std::vector<PlannedGrid> grids, const KernelShape &shape) {
    ForwardPlan result;
    result.grids = std::move(grids);
    result.has_own_partial = scope == KeyScope::all_keys && share_partial_results(result.grids);
    const bool has_partial = scope != KeyScope::all_keys || result.has_own_partial;
    const bool finishes = finishes_rows(plan, scope, result.grids);
    // The last launch finishes its rows: every row that meets other keys has been left as a partial result.
    const bool finishes_last = scope == KeyScope::last_keys && !result.grids.empty() && !result.grids.back().curve &&
                               result.grids.back().range_parts == 1;
    if (finishes)
        set_rows_left_partial(GridResult::outputs, result.grids);
    std::optional<FinishingLaunches> finishing;
    if (result.has_own_partial)
        finishing = finish_with_last(plan.problem(), plan.problem().queries, result.grids);
    if (finishing)
        result.summed = finishing->summed;
    bool sets = !has_other_keys(scope); // whether the next launch sets its rows
    std::vector<ForwardStep> &steps = result.steps;
    ClearedPart clears;
    if (sets && !finishing && must_clear(result.grids, has_partial && !finishes)) {
        if (!has_partial && clears_beside(plan.problem(), result.grids, shape, plan.problem().queries.length))
            clears = {0, 1};
        else if (!has_partial || finishes)
            steps.push_back({ForwardAction::clear_outputs});
        if (has_partial)
            steps.push_back({finishes ? ForwardAction::mark_finished : ForwardAction::clear_partial});
        sets = finishes;
    }
    for (std::size_t i = 0; i < result.grids.size(); ++i) {
        if (result.grids[i].curve)
            steps.push_back({ForwardAction::find_order, {i, {}, {}}});
        if (result.grids[i].is_packed)
            steps.push_back({ForwardAction::pack_ranges, {i, {}, {}}});
        const bool is_last = finishes_last && i + 1 == result.grids.size();
        const Destination destination = finishing ? finishing->destinations[i]
                                        : is_last ? Destination::finish_partial
                                                  : next_destination(has_partial, finishes, sets);
        sets = false;
        if (result.grids[i].range_parts > 1) {
            const std::int64_t first = first_row_of_range_parts(result.grids[i]);
            steps.push_back({ForwardAction::attend, {i, {}, Destination::set_partial, first}});
            steps.push_back({ForwardAction::merge_range_parts, {i, {}, destination, first}});
        } else {
            steps.push_back({ForwardAction::attend, {i, {}, destination, 0, clears}});
        }
    }
    if (finishing) {
        if (!finishing->summed) // a row that meets no key in the last launch is unfinished, too
            steps.push_back({ForwardAction::write_unfinished});
        add_recomputing(steps, plan, ForwardAction::recompute_outputs);
    } else if (result.has_own_partial) {
        steps.push_back({ForwardAction::write_outputs});
        add_recomputing(steps, plan, ForwardAction::recompute_outputs_of_partial);
    } else if (!has_partial || finishes) {
        add_recomputing(steps, plan, ForwardAction::recompute_outputs);
    }
    if (scope == KeyScope::own_keys)
        add_recomputing(steps, plan, ForwardAction::recompute_partial_outputs);
    let_launches_begin_early(steps);
    return result;
}

// Plans split branches. A whole call makes its partial results in `parts` of the rows. The executable for the own keys
// has no `parts`: its launches use the partial results that all key scopes share.
ForwardPlan plan_split(const Plan &plan, std::vector<PlannedGrid> grids, const std::optional<SplitParts> &parts) {
    const Problem &problem = plan.problem();
    ForwardPlan result;
    result.grids = std::move(grids);
    result.parts = parts;
    const auto attend = [&](const Launch &launch) { result.steps.push_back({ForwardAction::attend, launch}); };
    if (parts)
        for_split(
            result.grids.size(), *parts, problem.batch, problem.heads, problem.queries,
            [&] { result.steps.push_back({ForwardAction::clear_partial}); }, attend);
    else
        std::ranges::for_each(own_keys_split_launches, attend);
    add_recomputing(result.steps, plan, ForwardAction::recompute_outputs);
    if (!parts)
        add_recomputing(result.steps, plan, ForwardAction::recompute_partial_outputs);
    let_launches_begin_early(result.steps);
    return result;
}

// Plans a whole call with split branches. `whole` is its plan without a split. Returns none if `whole` is better.
std::optional<ForwardPlan> plan_in_parts(const Plan &plan, const BranchSplit &split, std::uint64_t limit,
                                         ForwardPlan whole) {
    const Problem &problem = plan.problem();
    const SplitRows rows{static_cast<int>(problem.batch), problem.heads, static_cast<int>(problem.queries.length),
                         split.partial_stride(problem.heads),
                         sizeof(float2) + static_cast<std::size_t>(problem.head_dim) * sizeof(float)};
    whole.has_own_partial = false;
    const auto plan_parts = [&](const std::optional<std::size_t> &room) -> std::optional<Candidate<ForwardPlan>> {
        const std::optional<SplitParts> parts = split.parts(rows, room);
        if (!parts)
            return std::nullopt;
        ForwardPlan result = plan_split(plan, split.grids, parts);
        const std::size_t bytes = forward_bytes(plan, result);
        return {{std::move(result), bytes, static_cast<std::size_t>(parts->all_rows()) * rows.row_bytes}};
    };
    return plan_within<ForwardPlan>(limit, forward_bytes(plan, whole), plan_parts);
}

// Plans the grids one after the other, and divides their ranges (range_parts.hpp). If that exceeds the workspace limit,
// there are fewer parts, or none.
ForwardPlan plan_one_by_one(const Plan &plan, KeyScope scope, const std::vector<PlannedGrid> &grids,
                            const KernelShape &shape, int multiprocessors, std::uint64_t limit) {
    for (int ctas = multiprocessors * shape.ctas;; ctas /= 2) {
        std::vector<PlannedGrid> divided = grids;
        const bool has_parts = !finishes_rows(plan, scope, grids) && // else the only launch must find whole rows
                               divide_ranges(plan.problem(), GridResult::outputs, shape, ctas, divided);
        ForwardPlan result = plan_grids(plan, scope, std::move(divided), shape);
        if (!has_parts || is_within_limit(limit, forward_bytes(plan, result)))
            return result;
    }
}

} // namespace

ForwardPlan plan_forward(const Plan &plan, KeyScope scope, std::vector<PlannedGrid> grids, const KernelShape &shape,
                         int multiprocessors, std::uint64_t limit) {
    std::optional<BranchSplit> split;
    if (has_other_keys(scope))
        split_ranges_elsewhere(grids, plan, GridResult::outputs, shape, multiprocessors);
    else if (!are_over_sequences(grids) && (scope == KeyScope::all_keys || may_finish_rows(plan, scope)))
        split = split_branches(grids, plan, GridResult::outputs, shape, multiprocessors, max_grids(scope));
    if (split && scope == KeyScope::own_keys)
        return plan_split(plan, std::move(split->grids), std::nullopt);
    if (split)
        if (std::optional<ForwardPlan> in_parts =
                plan_in_parts(plan, *split, limit, plan_grids(plan, scope, grids, shape)))
            return *std::move(in_parts);
    return plan_one_by_one(plan, scope, grids, shape, multiprocessors, limit);
}

ForwardMemory book_forward(Workspace &workspace, const Plan &plan, const ForwardPlan &forward) {
    ForwardMemory memory{};
    const Problem &problem = plan.problem();
    memory.branches = book_branches(workspace, plan);
    const std::int64_t launches = std::ranges::count(forward.steps, ForwardAction::attend, &ForwardStep::action);
    memory.counters = workspace.take<unsigned>(launches + 1);
    memory.counter_count = static_cast<std::size_t>(launches + 1);
    if (plan.hides_keys())
        memory.has_nonfinite = reinterpret_cast<int *>(memory.counters + launches);
    if (forward.parts || forward.has_own_partial) {
        const std::int64_t rows_of_head = forward.summed ? forward.summed->count() : problem.queries.length;
        const std::int64_t rows =
            forward.parts ? forward.parts->all_rows() : problem.batch * problem.heads * rows_of_head;
        memory.state = workspace.take<float2>(rows);
        memory.o = workspace.take<float>(rows, problem.head_dim);
    }
    if (const std::int64_t rows = rows_of_range_parts(forward.grids); rows > 0) {
        memory.part_state = workspace.take<float2>(rows);
        memory.part_o = workspace.take<float>(rows, problem.head_dim);
    }
    memory.curves = book_curves(workspace, problem, forward.grids, {});
    memory.sequences = book_sequences(workspace, {&forward.grids}, forward.rows);
    return memory;
}

std::size_t forward_bytes(const Plan &plan, const ForwardPlan &forward) {
    Workspace ledger;
    book_forward(ledger, plan, forward);
    return ledger.used();
}

} // namespace annulus
