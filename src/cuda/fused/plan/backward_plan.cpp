// SPDX-License-Identifier: Apache-2.0
#include "cuda/fused/plan/backward_plan.hpp"

#include "cuda/fused/plan/branch_split.hpp"
#include "cuda/results/cuda_call.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

namespace annulus {

namespace {

GridOf grids_of(Side side) {
    return side == Side::queries ? GridOf::query_gradients : GridOf::key_gradients;
}

const KernelShape &shape_of(const BackwardShapes &shapes, Side side) {
    return side == Side::queries ? shapes.of_queries : shapes.of_keys;
}

// The kernels write nothing but the problem's dtype, and add to no rows of the caller's; and the heads that share one
// of K would still add to its rows.
bool may_write_rows(const Problem &problem, Side side) {
    if (side == Side::queries)
        return problem.gradients.of_queries_are_plain() && !problem.gradients.only_v;
    return problem.heads == problem.kv_heads && problem.gradients.of_keys_are_plain();
}

// Lists the steps of a plan.
class StepWriter {
  public:
    StepWriter(const Plan &plan, CallPart part, const BackwardShapes &shapes, BackwardPlan &result)
        : plan_(plan), problem_(plan.problem()), part_(part), shapes_(shapes), result_(result) {}

    void write() {
        if (!is_of_other_keys(part_))
            add({BackwardAction::find_lse_delta});
        if (result_.stored) {
            find_orders(Side::keys);
            write_stored_ds();
            write_end({Side::queries, Side::keys});
            // What is left out last multiplies dS.
            result_.first_of_rest = result_.steps.size() - (is_of_other_keys(part_) ? 1 : 0);
            return;
        }
        std::vector<Side> sides{Side::queries, Side::keys};
        if (problem_.gradients.only_v)
            sides = {Side::keys};
        else if (is_of_other_keys(part_)) // other ranks wait for gradients of keys of theirs, and for none of the own
            sides = {Side::keys, Side::queries};
        if (part_ == CallPart::whole || sides.size() == 1) {
            find_orders(Side::keys);
            for (const Side side : sides)
                write_gradients(side);
            write_end(sides);
            result_.first_of_rest = result_.steps.size();
            return;
        }
        for (const Side side : sides) {
            result_.first_of_rest = result_.steps.size();
            find_orders(side); // other parts of the call may have used their place meanwhile
            write_gradients(side);
            write_end({side});
        }
    }

  private:
    void add(const BackwardStep &step) { result_.steps.push_back(step); }

    void launch(Side side, Gradients what, const Launch &launch) {
        add({BackwardAction::find_gradients, side, launch, what});
    }
    void launch_of_keys(const Launch &of_keys) {
        if (problem_.gradients.only_v)
            return launch(Side::keys, Gradients::d_v, of_keys);
        for (const Gradients what : gradients_of_keys(problem_.head_dim))
            launch(Side::keys, what, of_keys);
    }

    bool has_partial(const SideGrids &side) const { return part_ != CallPart::whole || side.has_own_partial; }

    // No row is written to the caller's tensors but from partial results.
    bool is_all_partial(const SideGrids &side) const { return has_partial(side) && !side.finishes; }

    // Where a side's launches leave rows out: zeros for these, unless the launches clear them. Whether the first launch
    // sets its rows.
    bool prepare(Side which, bool launches_clear) {
        const SideGrids &side = result_.of(which);
        // Gradients of other keys than the own are set by each part.
        const bool sets = !is_of_other_keys(part_) || which == Side::keys;
        if (!sets || launches_clear || (!side.grids.empty() && (side.grids.front().is_complete || side.parts)))
            return sets;
        add({is_all_partial(side) ? BackwardAction::clear_partial : BackwardAction::clear_gradients, which});
        return side.finishes;
    }

    // Whether the launches of a side clear the rows that they leave out.
    bool launches_clear(Side which) const {
        const SideGrids &side = result_.of(which);
        return part_ == CallPart::whole && !side.has_own_partial &&
               clears_beside(problem_, side.grids, shape_of(shapes_, which), window_of(problem_, which).length) &&
               !side.grids.front().is_complete;
    }

    // Along the curves of a side's grids, which are those of the other's.
    void find_orders(Side which) {
        const std::vector<PlannedGrid> &grids = result_.of(which).grids;
        for (std::size_t i = 0; i < grids.size(); ++i)
            if (grids[i].curve)
                add({BackwardAction::find_order, which, {i, {}, {}}});
    }

    void pack(Side which, std::size_t grid) {
        if (result_.of(which).grids[grid].is_packed)
            add({BackwardAction::pack_ranges, which, {grid, {}, {}}});
    }

    void write_gradients(Side side) {
        if (side == Side::queries)
            write_query_gradients();
        else
            write_key_gradients();
    }

    Destination destination(const SideGrids &side, bool sets) const {
        return next_destination(has_partial(side), side.finishes, sets);
    }

    template <class Use> void write_split(Side which, const Use &use) {
        const SideGrids &side = result_.of(which);
        for_split(
            side.grids.size(), *side.parts, problem_.batch, problem_.heads, window_of(problem_, which),
            [&] {
                add({BackwardAction::clear_partial, which});
            },
            use);
    }

    void write_query_gradients() {
        const SideGrids &side = result_.queries;
        if (side.parts)
            return write_split(Side::queries, [&](const Launch &part) { launch(Side::queries, Gradients::d_q, part); });
        if (side.is_split) {
            for (const Launch &part : split_part_launches)
                launch(Side::queries, Gradients::d_q, part);
            return;
        }
        const bool clears = launches_clear(Side::queries);
        bool sets = prepare(Side::queries, clears);
        for (std::size_t i = 0; i < side.grids.size(); ++i) {
            pack(Side::queries, i);
            launch(Side::queries, Gradients::d_q, {i, {}, destination(side, sets), 0, {0, clears ? 1 : 0}});
            sets = false;
        }
    }

    // The heads of Q that share one of K add up their gradients of it, one after the other.
    void write_key_gradients() {
        const SideGrids &side = result_.keys;
        if (side.parts) // no heads share those of K
            return write_split(Side::keys, [&](const Launch &part) { launch_of_keys(part); });
        if (side.is_split) {
            for (const Launch &part : split_part_launches)
                launch_of_keys(part);
            return;
        }
        const bool clears = launches_clear(Side::keys);
        bool sets = prepare(Side::keys, clears);
        for (std::size_t i = 0; i < side.grids.size(); ++i) {
            pack(Side::keys, i);
            for (int member = 0; member < group(); ++member) {
                launch_of_keys({i,
                                GridPart{0, batches(), member, problem_.kv_heads},
                                destination(side, sets),
                                0,
                                {0, clears ? 1 : 0}});
                sets = false;
            }
        }
    }

    void write_stored_ds() {
        const StoredDsParts &parts = *result_.stored;
        const bool queries_clear = launches_clear(Side::queries), keys_clear = launches_clear(Side::keys);
        const bool sets_queries = prepare(Side::queries, queries_clear), sets_keys = prepare(Side::keys, keys_clear);
        const int first_segment = result_.keys.grids.front().tiles.sequence.first_segment;
        std::vector<GridPart> launches; // of each kernel
        for_parts(batches(), parts.batches, [&](int first_batch, int part_batches) {
            for_parts(problem_.kv_heads, parts.heads, [&](int first_head, int heads) {
                for_parts(parts.all_segments, parts.segments, [&](int segment, int segments) {
                    for (int member = 0; member < group(); ++member)
                        launches.push_back({first_batch, part_batches, first_head * group() + member, heads,
                                            first_segment + segment, segments});
                });
            });
        });
        const auto count = static_cast<int>(launches.size());
        for (int i = 0; i < count; ++i) {
            const GridPart &own = launches[static_cast<std::size_t>(i)];
            const bool is_first_member = own.first_head % group() == 0;
            launch(Side::keys, Gradients::d_k_and_d_v_storing_d_s,
                   {0, own, destination(result_.keys, sets_keys && is_first_member), 0, {i, keys_clear ? count : 0}});
            launch(Side::queries, Gradients::d_q_of_stored_d_s,
                   {0, own, destination(result_.queries, sets_queries), 0, {i, queries_clear ? count : 0}});
        }
    }

    // Of sides that have results: from partial results of its own to the caller's tensors, and rows that a hidden NaN
    // or infinity has reached.
    void write_end(const std::vector<Side> &sides) {
        const bool recomputes = plan_.causal() && !is_of_other_keys(part_);
        // What is added to cannot be repaired there. Rows that are not where they are looked for are unset there, and
        // stay unused.
        const bool in_partial = part_ == CallPart::own_keys || !problem_.gradients.are_plain();
        for (const Side side : sides)
            if (recomputes && in_partial)
                add({BackwardAction::recompute_partial, side});
        if (result_.queries.has_own_partial || result_.keys.has_own_partial)
            add({BackwardAction::write_gradients});
        for (const Side side : sides)
            if (recomputes && !(in_partial && is_all_partial(result_.of(side))))
                add({BackwardAction::recompute_gradients, side});
    }

    int batches() const { return static_cast<int>(problem_.batch); }
    int group() const { return problem_.heads / problem_.kv_heads; }

    const Plan &plan_;
    const Problem &problem_;
    const CallPart part_;
    const BackwardShapes &shapes_;
    BackwardPlan &result_;
};

void write_steps(const Plan &plan, CallPart part, const BackwardShapes &shapes, BackwardPlan &result) {
    result.steps.clear();
    StepWriter(plan, part, shapes, result).write();
}

// Without split branches and stored dS.
BackwardPlan plan_grids(const Plan &plan, CallPart part, BackwardGrids grids, const BackwardShapes &shapes) {
    const Problem &problem = plan.problem();
    const bool is_whole = part == CallPart::whole;
    BackwardPlan result;
    result.queries.grids = std::move(grids.queries);
    result.keys.grids = std::move(grids.keys);
    for (const Side which : {Side::queries, Side::keys}) {
        SideGrids &side = result.of(which);
        const bool may_write = may_write_rows(problem, which);
        const bool has_results = which == Side::keys || !problem.gradients.only_v;
        side.has_own_partial = is_whole && has_results && (!may_write || share_partial_results(side.grids));
        side.finishes = may_write && finishes_rows(part, side.grids);
        if (side.finishes)
            set_rows_left_partial(grids_of(which), side.grids);
    }
    write_steps(plan, part, shapes, result);
    return result;
}

// With dS stored, if there is room for it.
void try_storing_ds(const Plan &plan, CallPart part, const BackwardShapes &shapes, std::uint64_t limit,
                    BackwardPlan &result) {
    const std::size_t used = backward_bytes(plan, result);
    BackwardPlan storing = result;
    storing.stored = plan_stored_ds(plan.problem(), result.queries.grids, result.keys.grids, room_within(limit, used));
    if (!storing.stored)
        return;
    write_steps(plan, part, shapes, storing);
    if (limit == 0 || backward_bytes(plan, storing) <= limit) // counters may be what is too much
        result = std::move(storing);
}

// Of a call's own keys: with the branches of one or both sides split. False where neither is.
bool split_part(const Plan &plan, const BackwardShapes &shapes, int multiprocessors, BackwardPlan &result) {
    for (const Side which : {Side::queries, Side::keys}) {
        SideGrids &side = result.of(which);
        if (!may_write_rows(plan.problem(), which))
            continue;
        std::optional<BranchSplit> split =
            split_branches(side.grids, plan, grids_of(which), shape_of(shapes, which), multiprocessors);
        if (!split || split->grids.size() > 2)
            continue;
        side.is_split = side.finishes = true;
        side.grids = std::move(split->grids);
    }
    if (!result.queries.is_split && !result.keys.is_split)
        return false;
    write_steps(plan, CallPart::own_keys, shapes, result);
    return true;
}

// With the branches of one or both sides split, if there is room for partial results or branches have to be.
bool try_splitting(const Plan &plan, const BackwardShapes &shapes, int multiprocessors, std::uint64_t limit,
                   BackwardPlan &result) {
    const Problem &problem = plan.problem();
    BackwardPlan without_partial = result;
    std::map<Side, BranchSplit> splits;
    for (const Side which : {Side::queries, Side::keys})
        if (may_write_rows(problem, which))
            if (std::optional<BranchSplit> split = split_branches(result.of(which).grids, plan, grids_of(which),
                                                                  shape_of(shapes, which), multiprocessors)) {
                splits.emplace(which, *std::move(split));
                without_partial.of(which).has_own_partial = false;
            }
    std::size_t room = room_within(limit, backward_bytes(plan, without_partial));
    for (bool takes_least = false;;) {
        BackwardPlan splitting = result;
        bool has_room = true;
        std::size_t sums = 0; // bytes of partial results
        for (const auto &[which, split] : splits) {
            SideGrids &side = splitting.of(which);
            const std::size_t tensors = which == Side::queries ? 1 : 2;
            const SplitRows rows{static_cast<int>(problem.batch), problem.heads,
                                 static_cast<int>(window_of(problem, which).length),
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
        write_steps(plan, CallPart::whole, shapes, splitting);
        const std::size_t bytes = backward_bytes(plan, splitting);
        if (limit == 0 || bytes <= limit || takes_least) {
            result = std::move(splitting);
            return true;
        }
        room = sums - std::min(sums, bytes - limit); // with the counters of so many launches they are too large
    }
}

} // namespace

BackwardGrids make_backward_grids(const Plan &plan, const BackwardShapes &shapes) {
    return {make_grids(plan, GridOf::query_gradients, shapes.of_queries),
            make_grids(plan, GridOf::key_gradients, shapes.of_keys)};
}

BackwardGrids make_backward_grids(const SequencePlans &plans, const BackwardShapes &shapes) {
    BackwardGrids grids = make_backward_grids(plan_of_longest(plans), shapes);
    lay_out_sequences(plans, GridOf::query_gradients, shapes.of_queries, grids.queries);
    lay_out_sequences(plans, GridOf::key_gradients, shapes.of_keys, grids.keys);
    return grids;
}

BackwardPlan plan_backward(const Plan &plan, CallPart part, BackwardGrids grids, const BackwardShapes &shapes,
                           int multiprocessors, std::uint64_t limit) {
    if (is_of_other_keys(part)) {
        const auto split = [&](Side which, std::vector<PlannedGrid> &of_side) {
            split_ranges_elsewhere(of_side, plan, grids_of(which), shape_of(shapes, which), multiprocessors);
        };
        split(Side::queries, grids.queries);
        split(Side::keys, grids.keys);
    }
    if (plan.problem().gradients.only_v)
        grids.queries.clear();
    BackwardPlan result = plan_grids(plan, part, std::move(grids), shapes);
    if (are_over_sequences(result.keys.grids))
        return result;
    bool is_split = false;
    if (part == CallPart::whole)
        is_split = plan.problem().gradients.are_plain() && try_splitting(plan, shapes, multiprocessors, limit, result);
    else if (part == CallPart::own_keys)
        is_split = split_part(plan, shapes, multiprocessors, result);
    if (!is_split && shapes.store_d_s && !plan.problem().gradients.only_v)
        try_storing_ds(plan, part, shapes, limit, result);
    return result;
}

BackwardMemory book_backward(Workspace &workspace, const Plan &plan, const BackwardPlan &backward) {
    BackwardMemory memory{};
    const Problem &problem = plan.problem();
    const std::int64_t rows = problem.batch * problem.heads * problem.queries.length, d = problem.head_dim;
    // First, where all parts of a call have what the one with the own keys finds; also the flag, which no other resets.
    memory.lse_log2 = workspace.take<float>(rows);
    memory.delta = workspace.take<float>(rows);
    memory.branches = book_branches(workspace, plan);
    const std::int64_t launches =
        std::ranges::count(backward.steps, BackwardAction::find_gradients, &BackwardStep::action);
    memory.flag_and_counters = workspace.take<unsigned>(launches + 1);
    memory.counter_count = static_cast<std::size_t>(launches);
    if (plan.causal())
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
    const std::int64_t of_queries = backward.queries.parts ? backward.queries.parts->all_rows() : 0;
    const std::int64_t of_keys = backward.keys.parts ? 2 * backward.keys.parts->all_rows() : 0;
    memory.split_partial = workspace.take<float>(std::max(of_queries, of_keys), d);
    return memory;
}

std::size_t backward_bytes(const Plan &plan, const BackwardPlan &backward) {
    Workspace ledger;
    book_backward(ledger, plan, backward);
    return ledger.used();
}

} // namespace annulus
