// SPDX-License-Identifier: Apache-2.0
#include "cuda/fused/plan/backward_plan.hpp"

#include "cuda/fused/plan/backward_steps.hpp"
#include "cuda/fused/plan/branch_split.hpp"
#include "cuda/fused/plan/grid_time.hpp"
#include "cuda/fused/plan/range_parts.hpp"
#include "cuda/fused/plan/shard_sums.hpp"
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

// Plans the call without split branches and without stored dS. With `may_finish`, the last launch of a side may finish
// rows of a whole call.
BackwardPlan plan_grids(const Plan &plan, KeyScope scope, BackwardGrids grids, const BackwardShapes &shapes,
                        bool may_finish) {
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
        side.finishes = may_write && finishes_rows(plan, scope, side.grids);
        if (side.finishes)
            set_rows_left_partial(grids_of(which), side.grids);
        if (may_finish && side.has_own_partial && may_write)
            if (std::optional<FinishingLaunches> finishing =
                    finish_with_last(problem, window_of(problem, which), side.grids)) {
                side.destinations = std::move(finishing->destinations);
                side.summed = std::move(finishing->summed);
            }
    }
    write_steps(plan, scope, shapes, result);
    return result;
}

// True if the branches of this key scope may be split over several launches.
bool may_split(const Plan &plan, KeyScope scope) {
    return scope == KeyScope::all_keys ? plan.problem().gradients.are_plain() : may_finish_rows(plan, scope);
}

// How branches are split, for each side whose branches are.
using SideSplits = std::map<Side, BranchSplit>;

// Returns the rows of a split side, which have partial results of one tensor (dQ) or of two (dK and dV).
SplitRows rows_of(const Problem &problem, Side side, const BranchSplit &split) {
    const std::size_t tensors = side == Side::queries ? 1 : 2;
    return {static_cast<int>(problem.batch), problem.heads, static_cast<int>(window_of(problem, side).length),
            problem.key_stride == 1 ? split.partial_stride(problem.heads) : 1,
            tensors * problem.head_dim * sizeof(float)};
}

// Plans a whole call with split branches of some sides. `whole` is its plan without splits. Returns none if `whole` is
// better.
std::optional<BackwardPlan> plan_in_parts(const Plan &plan, const SideSplits &splits, const BackwardShapes &shapes,
                                          std::uint64_t limit, const BackwardPlan &whole) {
    BackwardPlan without_partial = whole;
    for (const auto &[which, split] : splits)
        without_partial.side_grids(which).has_own_partial = false;
    const auto plan_parts = [&](const std::optional<std::size_t> &room) -> std::optional<Candidate<BackwardPlan>> {
        Candidate<BackwardPlan> result{whole, 0, 0};
        for (const auto &[which, split] : splits) {
            SideGrids &side = result.plan.side_grids(which);
            const SplitRows rows = rows_of(plan.problem(), which, split);
            side.parts = split.parts(rows, room);
            if (!side.parts && !split.has_alternative())
                return std::nullopt;
            if (!side.parts) // one grid is better for this side
                continue;
            side.grids = split.grids;
            side.has_own_partial = false;
            result.partial_bytes =
                std::max(result.partial_bytes, static_cast<std::size_t>(side.parts->all_rows()) * rows.row_bytes);
        }
        if (!result.plan.queries.parts && !result.plan.keys.parts)
            return std::nullopt;
        write_steps(plan, KeyScope::all_keys, shapes, result.plan);
        result.bytes = backward_bytes(plan, result.plan);
        return result;
    };
    return plan_within<BackwardPlan>(limit, backward_bytes(plan, without_partial), plan_parts);
}

// Splits the branches of each side of `whole`, the plan without splits, if that saves time.
SideSplits split_sides(const Plan &plan, KeyScope scope, const BackwardShapes &shapes, int multiprocessors,
                       const BackwardPlan &whole) {
    SideSplits splits;
    if (!may_split(plan, scope))
        return splits;
    for (const Side which : {Side::queries, Side::keys})
        if (may_write_rows(plan.problem(), which))
            if (std::optional<BranchSplit> split =
                    split_branches(whole.side_grids(which).grids, plan, grids_of(which), shape_of(shapes, which),
                                   multiprocessors, max_grids(scope)))
                splits.emplace(which, *std::move(split));
    return splits;
}

// Plans a whole call, or the executable for the own keys, with split branches of one or both sides. `whole` is its plan
// without splits. Returns none if there is no split, or if `whole` is better.
std::optional<BackwardPlan> plan_split(const Plan &plan, KeyScope scope, const SideSplits &splits,
                                       const BackwardShapes &shapes, std::uint64_t limit, const BackwardPlan &whole) {
    if (splits.empty())
        return std::nullopt;
    if (scope == KeyScope::all_keys)
        return plan_in_parts(plan, splits, shapes, limit, whole);
    BackwardPlan result = whole;
    for (const auto &[which, split] : splits) {
        SideGrids &side = result.side_grids(which);
        side.is_split = side.finishes = true;
        side.grids = split.grids;
    }
    write_steps(plan, scope, shapes, result);
    return result;
}

// Plans a call that stores dS. `whole` is its plan without stored dS. Returns none if dS cannot be stored, if it
// does not fit, or if `whole` is faster.
std::optional<BackwardPlan> plan_storing_ds(const Plan &plan, KeyScope scope, const BackwardShapes &shapes,
                                            int multiprocessors, std::uint64_t limit, const BackwardPlan &whole) {
    if (shapes.storing == StoringKernels::none || plan.problem().gradients.only_v || plan.has_global_positions())
        return std::nullopt;
    const std::size_t room = limit == 0 && shapes.storing == StoringKernels::one
                                 ? tuning::usual_room_for_ds
                                 : room_within(limit, backward_bytes(plan, whole));
    BackwardPlan result = whole;
    SideGrids &keys = result.keys;
    const bool sums_keys = scope != KeyScope::all_keys || keys.has_own_partial;
    std::optional<StoredDsParts> stored = plan_stored_ds(plan.problem(), scope, result.queries.grids, keys.grids,
                                                         sums_keys, shapes, multiprocessors, room);
    if (!stored)
        return std::nullopt;
    const bool clears_beside =
        std::ranges::any_of(whole.steps, [](const BackwardStep &step) { return step.launch.clears.parts > 0; });
    if (clears_beside && zeros_outweigh_ds(plan.problem(), keys.grids.front().tiles, *stored))
        return std::nullopt;
    if (stored->layout.turns.passes > 1) {
        keys.finishes = false;
        if (!sums_keys)
            keys.parts = SplitParts{stored->batches, stored->heads, static_cast<int>(stored->key_rows)};
    }
    result.stored = {*std::move(stored)};
    write_steps(plan, scope, shapes, result);
    if (!is_within_limit(limit, backward_bytes(plan, result))) // the counters may need too much memory
        return std::nullopt;
    return result;
}

// Returns a split whose grids have one branch each; the last one has the first branch. Returns none if the branches
// cannot be such a split.
std::optional<std::vector<PlannedGrid>> grids_of_branches(const Plan &plan, const std::vector<PlannedGrid> &whole,
                                                          Side side, const KernelShape &shape) {
    std::vector<PlannedGrid> grids;
    for (const PlannedGrid &planned : whole) {
        if (planned.curve || planned.is_confined)
            return std::nullopt;
        for (const GridBranch &branch : branches_of(planned.tiles)) {
            std::optional<PlannedGrid> own = grid_over({&branch, 1}, GridRows::all, plan, grids_of(side), shape);
            if (!own)
                return std::nullopt;
            grids.push_back(*std::move(own));
        }
    }
    return as_split(grids, grids_of(side));
}

// Returns the time of the launches of both sides in range rows, if no dS is stored.
double time_without_ds(const BackwardPlan &whole, const SideSplits &splits, const BackwardShapes &shapes,
                       int multiprocessors) {
    double time = 0;
    for (const Side which : {Side::queries, Side::keys}) {
        const auto split = splits.find(which);
        time += time_of_launches(split == splits.end() ? whole.side_grids(which).grids : split->second.grids,
                                 shape_of(shapes, which), multiprocessors);
    }
    return time;
}

// Returns the time of a whole call in range rows, if each branch stores dS and there are `parts` parts of the heads.
double time_of_storing_branches(const BackwardPlan &storing, const BackwardShapes &shapes, int multiprocessors,
                                std::int64_t parts) {
    double time = 0;
    for (std::size_t i = 0; i < storing.keys.grids.size(); ++i) {
        const TileGrid &keys = storing.keys.grids[i].tiles;
        const double computing_twice =
            time_of_tiles(storing.queries.grids[i].tiles, shapes.queries) + time_of_tiles(keys, shapes.keys);
        // Each round of tiles takes as long as a tile of keys.
        const std::int64_t tiles = std::max<std::int64_t>(keys.tiles, 1);
        const std::int64_t rounds = parts * divide_up(divide_up(tiles, parts), multiprocessors);
        time += tuning::storing_time * computing_twice / static_cast<double>(tiles) * static_cast<double>(rounds) +
                tuning::storing_launch_rows * static_cast<double>(parts);
        if (i + 1 < storing.keys.grids.size())
            time += tuning::partial_row_rows * keys.sequence.row_count / keys.branches[0].dilation.value *
                    keys.heads.value * keys.batches / multiprocessors;
    }
    return time;
}

// Plans a whole call, or the executable for the own keys, of several branches in which each branch stores dS. All
// branches but the last leave partial results, which the last one adds to its own results. A key and a query that
// several branches share are visited once for each. `whole` is the plan without stored dS. Returns none if a branch
// cannot store dS, or if storing dS would not be faster than `whole` with `splits`.
//
// If dS and the partial results do not fit, a whole call has no such plan. If the workspace limit has no room for dS,
// the executable for the own keys computes dS twice over the same grids: which rows have partial results must not
// depend on the limit (summed_rows of engine.hpp).
std::optional<BackwardPlan> plan_storing_branches(const Plan &plan, KeyScope scope, const SideSplits &splits,
                                                  const BackwardShapes &shapes, int multiprocessors,
                                                  std::uint64_t limit, const BackwardPlan &whole) {
    const Problem &problem = plan.problem();
    const bool is_whole = scope == KeyScope::all_keys;
    if (shapes.storing != StoringKernels::one || !may_split(plan, scope) || plan.has_global_positions() ||
        plan.keys_count_once() || !may_write_rows(problem, Side::queries) || !may_write_rows(problem, Side::keys) ||
        problem.queries != problem.keys)
        return std::nullopt;
    BackwardPlan result = whole;
    for (const Side which : {Side::queries, Side::keys}) {
        SideGrids &side = result.side_grids(which);
        std::optional<std::vector<PlannedGrid>> grids =
            grids_of_branches(plan, side.grids, which, shape_of(shapes, which));
        if (!grids || grids->size() > max_grids(scope))
            return std::nullopt;
        side.grids = *std::move(grids);
        side.has_own_partial = false;
        if (is_whole)
            side.summed = summed_rows_of_grids(side.grids, problem.queries);
        else
            side.is_split = side.finishes = true;
    }
    const auto rows_with_partial = [&](const SideGrids &side) {
        return side.summed ? side.summed->count() : problem.queries.length;
    };
    if (rows_with_partial(result.queries) != rows_with_partial(result.keys))
        return std::nullopt;
    std::size_t room = limit == 0 ? tuning::usual_room_for_ds : room_within(limit, backward_bytes(plan, result));
    Problem part = problem; // the batch entries and heads that have partial results at a time
    std::int64_t part_count = 1;
    if (is_whole) {
        const SplitRows rows{static_cast<int>(problem.batch), problem.heads,
                             static_cast<int>(rows_with_partial(result.queries)), 1,
                             3 * problem.head_dim * sizeof(float)}; // dQ, dK and dV
        const std::optional<SplitParts> parts = heads_within(rows, room / tuning::partial_share);
        if (!parts)
            return std::nullopt;
        result.queries.parts = result.keys.parts = parts;
        part.batch = parts->batches;
        part.heads = part.kv_heads = parts->heads;
        part_count = count_parts(*parts, rows);
        room -= static_cast<std::size_t>(parts->all_rows()) * rows.row_bytes;
    }
    if (time_of_storing_branches(result, shapes, multiprocessors, part_count) >
        (1 - tuning::min_gain) * time_without_ds(whole, splits, shapes, multiprocessors))
        return std::nullopt;
    // Returns how each grid stores dS in `bytes` bytes, or nothing if dS of some grid does not fit.
    const auto plan_stored = [&](std::size_t bytes) {
        std::vector<StoredDsParts> all;
        for (std::size_t i = 0; i < result.keys.grids.size(); ++i) {
            std::optional<StoredDsParts> own = plan_stored_ds(
                part, scope, {result.queries.grids[i]}, {result.keys.grids[i]}, true, shapes, multiprocessors, bytes);
            if (!own || own->layout.turns.passes > 1)
                return std::vector<StoredDsParts>{};
            all.push_back(*std::move(own));
        }
        return all;
    };
    if (!is_whole && plan_stored(tuning::usual_room_for_ds).empty())
        return std::nullopt;
    result.stored = plan_stored(room);
    if (result.stores_ds()) {
        write_steps(plan, scope, shapes, result);
        if (is_within_limit(limit, backward_bytes(plan, result)))
            return result;
    }
    if (is_whole)
        return std::nullopt;
    result.stored.clear();
    write_steps(plan, scope, shapes, result);
    return result;
}

// Plans the grids of `whole` one after the other, and divides their ranges (range_parts.hpp). If that exceeds the
// workspace limit, there are fewer parts, or none.
BackwardPlan plan_one_by_one(const Plan &plan, KeyScope scope, const BackwardShapes &shapes, int multiprocessors,
                             std::uint64_t limit, const BackwardPlan &whole) {
    for (int share = 1;; share *= 2) {
        BackwardGrids grids{whole.queries.grids, whole.keys.grids};
        bool has_any = false;
        for (const Side which : {Side::queries, Side::keys}) {
            const KernelShape &shape = shape_of(shapes, which);
            if (!whole.side_grids(which).finishes) // then the only launch must find whole rows
                has_any |= divide_ranges(plan.problem(), grids_of(which), shape, multiprocessors * shape.ctas / share,
                                         which == Side::queries ? grids.queries : grids.keys);
        }
        BackwardPlan result = plan_grids(plan, scope, std::move(grids), shapes, true);
        if (!has_any || is_within_limit(limit, backward_bytes(plan, result)))
            return result;
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
        split_ranges_elsewhere(grids.queries, plan, GridResult::query_gradients, shapes.queries, multiprocessors);
        split_ranges_elsewhere(grids.keys, plan, GridResult::key_gradients, shapes.keys, multiprocessors);
    }
    if (plan.problem().gradients.only_v)
        grids.queries.clear();
    BackwardPlan whole = plan_grids(plan, scope, std::move(grids), shapes, false);
    if (are_over_sequences(whole.keys.grids))
        return whole;
    const SideSplits splits = split_sides(plan, scope, shapes, multiprocessors, whole);
    std::optional<BackwardPlan> better =
        plan_storing_branches(plan, scope, splits, shapes, multiprocessors, limit, whole);
    if (!better)
        better = plan_split(plan, scope, splits, shapes, limit, whole);
    if (!better)
        better = plan_storing_ds(plan, scope, shapes, multiprocessors, limit, whole);
    return better ? *std::move(better) : plan_one_by_one(plan, scope, shapes, multiprocessors, limit, whole);
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
            counters += backward.counters_of(step);
    memory.launch_counter_count = static_cast<std::size_t>(counters);
    std::int64_t sum_counters = 0, sums = 0;
    std::size_t stored_bytes = 0;
    for (const StoredDsParts &stored : backward.stored) {
        sum_counters = std::max(sum_counters, stored.sum_counter_count());
        sums = std::max(sums, stored.sum_count());
        stored_bytes = std::max(stored_bytes, stored.bytes());
    }
    counters += sum_counters;
    memory.counter_count = static_cast<std::size_t>(counters);
    memory.flag_and_counters = workspace.take<unsigned>(counters + 1);
    if (plan.hides_keys())
        memory.has_nonfinite = reinterpret_cast<int *>(memory.flag_and_counters);
    const auto partial_rows = [](const SideGrids &side, std::int64_t all) {
        return side.summed ? side.summed->count() : all;
    };
    if (backward.queries.has_own_partial)
        memory.partial.d_q = workspace.take<float>(problem.batch, problem.heads,
                                                   partial_rows(backward.queries, problem.queries.length), d);
    if (backward.keys.has_own_partial) {
        const std::int64_t key_rows = partial_rows(backward.keys, problem.key_rows());
        if (!problem.gradients.only_v)
            memory.partial.d_k = workspace.take<float>(problem.batch, problem.kv_heads, key_rows, d);
        memory.partial.d_v = workspace.take<float>(problem.batch, problem.kv_heads, key_rows, d);
    }
    memory.curves = book_curves(workspace, problem, backward.queries.grids, backward.keys.grids);
    memory.sequences = book_sequences(workspace, {&backward.queries.grids, &backward.keys.grids}, backward.rows);
    if (backward.stores_ds()) {
        memory.stored_ds = workspace.take<std::uint8_t>(static_cast<std::int64_t>(stored_bytes));
        memory.sums = workspace.take<float>(sums, StoredDs::sum_floats(problem.head_dim));
    }
    const std::int64_t rows_of_key_parts =
        (problem.gradients.only_v ? 1 : 2) * rows_of_range_parts(backward.keys.grids);
    memory.range_parts =
        workspace.take<float>(std::max(rows_of_range_parts(backward.queries.grids), rows_of_key_parts), d);
    const std::int64_t split_query_rows = backward.queries.parts ? backward.queries.parts->all_rows() : 0;
    const std::int64_t split_key_rows = backward.keys.parts ? 2 * backward.keys.parts->all_rows() : 0;
    memory.split_partial = workspace.take<float>(
        backward.branches_store_ds() ? split_query_rows + split_key_rows : std::max(split_query_rows, split_key_rows),
        d);
    return memory;
}

std::size_t backward_bytes(const Plan &plan, const BackwardPlan &backward) {
    Workspace ledger;
    book_backward(ledger, plan, backward);
    return ledger.used();
}

} // namespace annulus
