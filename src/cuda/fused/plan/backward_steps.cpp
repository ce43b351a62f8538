// SPDX-License-Identifier: Apache-2.0
#include "cuda/fused/plan/backward_steps.hpp"

#include "cuda/fused/plan/range_parts.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace annulus {

namespace {

// Writes the list of steps of a plan.
class StepWriter {
  public:
    StepWriter(const Plan &plan, KeyScope scope, const BackwardShapes &shapes, BackwardPlan &result)
        : plan_(plan), problem_(plan.problem()), scope_(scope), shapes_(shapes), result_(result) {}

    void write() {
        if (!has_other_keys(scope_))
            add({BackwardAction::find_lse_delta});
        if (result_.stores_ds()) {
            find_orders(Side::keys);
            if (result_.branches_store_ds())
                write_stored_branches();
            else
                write_stored_ds();
            write_end({Side::queries, Side::keys});
            // run_rest() has the last launch, which multiplies dS.
            result_.first_of_rest = result_.steps.size() - (has_other_keys(scope_) ? 1 : 0);
            return;
        }
        std::vector<Side> sides{Side::queries, Side::keys};
        if (problem_.gradients.only_v)
            sides = {Side::keys};
        else if (has_other_keys(scope_)) // other ranks wait for the gradients of their keys; no rank waits for the
                                         // gradients of the own queries
            sides = {Side::keys, Side::queries};
        if (scope_ == KeyScope::all_keys || sides.size() == 1) {
            find_orders(Side::keys);
            for (const Side side : sides)
                write_gradients(side);
            write_end(sides);
            result_.first_of_rest = result_.steps.size();
            return;
        }
        for (const Side side : sides) {
            if (side == sides.back())
                result_.first_of_rest = result_.steps.size();
            find_orders(side); // again, since other executables may have used the memory in between
            write_gradients(side);
            write_end({side});
        }
    }

  private:
    void add(BackwardStep step) {
        std::vector<BackwardStep> &steps = result_.steps;
        const bool is_first = steps.size() == result_.first_of_rest; // the first step of run() or of run_rest()
        step.launch.begins_early = !is_first && may_begin_early(step, steps.back());
        steps.push_back(step);
    }

    // All launches share the memory of stored dS, which a launch writes and reads before it writes results. So with
    // stored dS none may begin early. After find_lse_delta only the kernel of dQ may begin early: it alone waits for
    // LSE and delta.
    bool may_begin_early(const BackwardStep &step, const BackwardStep &before) const {
        if (result_.stores_ds() || step.action != BackwardAction::find_gradients)
            return false;
        return before.action == BackwardAction::find_gradients ||
               (before.action == BackwardAction::find_lse_delta && step.what == Gradients::d_q);
    }

    void launch(Side side, Gradients what, const Launch &launch, int pass = 0) {
        add({BackwardAction::find_gradients, side, launch, what, {}, {}, pass});
    }
    // Adds this launch of each kernel of a side.
    void launch_kernels(Side side, const Launch &shared) {
        if (side == Side::queries)
            return launch(side, Gradients::d_q, shared);
        if (problem_.gradients.only_v)
            return launch(side, Gradients::d_v, shared);
        for (const Gradients what : gradients_of_keys(problem_.head_dim))
            launch(side, what, shared);
    }

    bool has_partial(const SideGrids &side) const { return scope_ != KeyScope::all_keys || side.has_own_partial; }

    // True if rows reach the caller's tensors only by way of partial results.
    bool is_all_partial(const SideGrids &side) const {
        return has_partial(side) && !side.finishes && side.destinations.empty();
    }

    // Adds a step that writes zeros to a side's rows that the launches leave out, unless the launches clear these rows.
    // Returns whether the first launch sets its rows.
    bool add_clearing(Side which, bool launches_clear) {
        const SideGrids &side = result_.side_grids(which);
        // Each executable over keys of other ranks sets the gradients of its keys.
        const bool sets = !has_other_keys(scope_) || which == Side::keys;
        if (!sets || launches_clear || !must_clear(side.grids, is_all_partial(side)))
            return sets;
        add({is_all_partial(side) ? BackwardAction::clear_partial : BackwardAction::clear_gradients, which});
        return side.finishes;
    }

    // True if the launches of a side clear the rows that they leave out.
    bool launches_clear(Side which) const {
        const SideGrids &side = result_.side_grids(which);
        return scope_ == KeyScope::all_keys && !side.has_own_partial &&
               clears_beside(problem_, side.grids, shape_of(shapes_, which), window_of(problem_, which).length) &&
               !side.grids.front().is_complete;
    }

    // Finds the permutations of the curves of a side's grids. The grids of the other side have the same curves.
    void find_orders(Side which) {
        const std::vector<PlannedGrid> &grids = result_.side_grids(which).grids;
        for (std::size_t i = 0; i < grids.size(); ++i)
            if (grids[i].curve)
                add({BackwardAction::find_order, which, {i, {}, {}}});
    }

    void pack(Side which, std::size_t grid) {
        if (result_.side_grids(which).grids[grid].is_packed)
            add({BackwardAction::pack_ranges, which, {grid, {}, {}}});
    }

    Destination destination(const SideGrids &side, bool sets) const {
        return next_destination(has_partial(side), side.finishes, sets);
    }

    // Heads of Q that share a head of K add their gradients of it, one launch after the other.
    void write_gradients(Side which) {
        const SideGrids &side = result_.side_grids(which);
        if (side.parts) // each head of K has one head of Q
            return for_split(
                side.grids.size(), *side.parts, problem_.batch, problem_.heads, window_of(problem_, which),
                [&] {
                    add({BackwardAction::clear_partial, which});
                },
                [&](const Launch &part) { launch_kernels(which, part); });
        if (side.is_split) {
            for (const Launch &part : own_keys_split_launches)
                launch_kernels(which, part);
            return;
        }
        const bool clears = launches_clear(which);
        const bool finishes_last = !side.destinations.empty();
        bool sets = finishes_last || add_clearing(which, clears);
        for (std::size_t i = 0; i < side.grids.size(); ++i) {
            pack(which, i);
            for (int member = 0; member < (which == Side::keys ? group() : 1); ++member) {
                std::optional<GridPart> part;
                if (which == Side::keys)
                    part = GridPart{0, batches(), member, problem_.kv_heads};
                const PlannedGrid &planned = side.grids[i];
                const Destination target = finishes_last ? side.destinations[i] : destination(side, sets);
                if (planned.range_parts > 1) {
                    const std::int64_t first = first_row_of_range_parts(planned);
                    launch_kernels(which, {i, part, Destination::set_partial, first});
                    add({BackwardAction::add_range_parts, which, {i, part, target, first}});
                } else {
                    launch_kernels(which, {i, part, target, 0, {0, clears ? 1 : 0}});
                }
                sets = false;
            }
        }
    }

    // Returns the launches over a part of a grid that store dS, in order. Each head of Q that shares a head of K has
    // launches of its own.
    std::vector<GridPart> storing_launches(std::size_t grid, const GridPart &all) const {
        const StoredDsParts &parts = result_.stored[grid];
        const int first_segment = result_.keys.grids[grid].tiles.sequence.first_segment;
        std::vector<GridPart> launches;
        for_parts(all.batches, parts.batches, [&](int first_batch, int part_batches) {
            for_parts(all.heads, parts.heads, [&](int first_head, int heads) {
                for_parts(parts.all_segments, parts.segments, [&](int segment, int segments) {
                    for (int member = 0; member < group(); ++member)
                        launches.push_back({all.first_batch + first_batch, part_batches,
                                            all.first_head + first_head * group() + member, heads,
                                            first_segment + segment, segments});
                });
            });
        });
        return launches;
    }

    // One kernel, or a pair of kernels, stores and multiplies dS. Each launch of one kernel clears rows of all
    // gradients, so dQ, dK and dV must have the same rows.
    void write_stored_ds() {
        const bool is_one_kernel = shapes_.storing == StoringKernels::one;
        bool queries_clear = launches_clear(Side::queries), keys_clear = launches_clear(Side::keys);
        if (is_one_kernel)
            queries_clear = keys_clear = queries_clear && keys_clear && problem_.queries == problem_.keys;
        const bool sets_queries = add_clearing(Side::queries, queries_clear),
                   sets_keys = add_clearing(Side::keys, keys_clear);
        const Destination query_destination = destination(result_.queries, sets_queries);
        const std::vector<GridPart> launches = storing_launches(0, {0, batches(), 0, problem_.kv_heads});
        const auto count = static_cast<int>(launches.size());
        for (int i = 0; i < count; ++i) {
            const GridPart &own = launches[static_cast<std::size_t>(i)];
            const bool is_first_member = own.first_head % group() == 0;
            Launch key_launch{
                0, own, destination(result_.keys, sets_keys && is_first_member), 0, {i, keys_clear ? count : 0}};
            if (result_.keys.parts) { // of several passes, of which the last one writes the rows
                key_launch.destination = Destination::set_partial;
                key_launch.first_partial_row = first_key_row(own);
            }
            const Launch query_launch{0, own, query_destination, 0, {i, queries_clear ? count : 0}};
            if (is_one_kernel)
                launch_all_storing_ds(key_launch, query_destination, i == count - 1);
            else
                launch_pairs(key_launch, query_launch);
        }
    }

    // Each branch has launches of its own, which store dS.
    void write_stored_branches() {
        const auto store = [&](const Launch &whole) {
            for (const GridPart &part : storing_launches(whole.grid, *whole.part))
                add({BackwardAction::find_gradients,
                     Side::keys,
                     {whole.grid, part, whole.destination, whole.first_partial_row},
                     Gradients::all_storing_d_s,
                     whole.destination,
                     result_.stored[whole.grid].layout.turns.all()});
        };
        if (!result_.keys.parts) {
            for (Launch whole : own_keys_split_launches) {
                whole.part = GridPart{0, batches(), 0, problem_.heads};
                store(whole);
            }
            return;
        }
        const SplitParts &parts = *result_.keys.parts;
        const Window rows_with_partial{0, parts.rows}; // parts are of whole heads
        for_split(
            result_.keys.grids.size(), parts, problem_.batch, problem_.heads, rows_with_partial,
            [&] {
                for (const Side side : {Side::queries, Side::keys})
                    add({BackwardAction::clear_partial, side});
            },
            store);
    }

    // Returns the first row of keys of a launch that stores dS, counted over all heads.
    std::int64_t first_key_row(const GridPart &part) const {
        const std::int64_t head = std::int64_t{part.first_batch} * problem_.kv_heads + part.first_head / group(),
                           segment_length = result_.keys.grids.front().tiles.branches[0].length.value;
        return head * problem_.key_rows() +
               std::max<std::int64_t>(part.first_segment * segment_length - problem_.keys.start, 0);
    }

    // Adds pairs of launches, of which the first stores dS and the second multiplies it: one pair for each pass.
    void launch_pairs(Launch key_launch, Launch query_launch) {
        const StoredDs &stored = result_.stored.front().layout;
        const Destination first = key_launch.destination;
        for (int pass = 0; pass < stored.turns.passes; ++pass) {
            key_launch.destination = stored.destination(first, pass);
            launch(Side::keys, Gradients::d_k_and_d_v_storing_d_s, key_launch, pass);
            launch(Side::queries, Gradients::d_q_of_stored_d_s, query_launch, pass);
            key_launch.clears = query_launch.clears = {}; // the first pass has cleared the rows
        }
    }

    // Adds a launch of the one kernel that stores and multiplies dS. Other ranks wait for the gradients of their keys.
    // So the last launch over their keys leaves the rest of dQ to a further launch.
    void launch_all_storing_ds(const Launch &key_launch, Destination query_destination, bool is_last) {
        const StoredTurns &turns = result_.stored.front().layout.turns;
        BackwardStep step{BackwardAction::find_gradients, Side::keys,        key_launch,
                          Gradients::all_storing_d_s,     query_destination, turns.all()};
        if (has_other_keys(scope_) && is_last) {
            step.turns = turns.until_keys_end();
            add(step);
            step.turns = turns.after_keys();
        }
        add(step);
    }

    // Ends the work on these sides: writes the call's own partial results to the caller's tensors, and recomputes the
    // rows that a hidden NaN or infinity has reached.
    void write_end(const std::vector<Side> &sides) {
        const bool recomputes = plan_.hides_keys() && !has_other_keys(scope_);
        // Rows to which other results are added later cannot be repaired in the caller's tensors. So they are repaired
        // in the partial results. A side whose last launch finishes its rows is repaired in the caller's tensors.
        const bool in_partial = scope_ == KeyScope::own_keys || !problem_.gradients.are_plain();
        for (const Side side : sides)
            if (recomputes && in_partial && result_.side_grids(side).destinations.empty())
                add({BackwardAction::recompute_partial, side});
        if (result_.queries.writes_partial() || result_.keys.writes_partial())
            add({BackwardAction::write_gradients});
        for (const Side side : sides)
            if (const SideGrids &own = result_.side_grids(side);
                !own.destinations.empty() && !own.summed && !own.grids.back().is_complete)
                add({BackwardAction::write_rows_outside, side});
        for (const Side side : sides)
            if (recomputes && !(in_partial && is_all_partial(result_.side_grids(side))))
                add({BackwardAction::recompute_gradients, side});
    }

    int batches() const { return static_cast<int>(problem_.batch); }
    int group() const { return problem_.heads / problem_.kv_heads; }

    const Plan &plan_;
    const Problem &problem_;
    const KeyScope scope_;
    const BackwardShapes &shapes_;
    BackwardPlan &result_;
};

} // namespace

void write_steps(const Plan &plan, KeyScope scope, const BackwardShapes &shapes, BackwardPlan &result) {
    result.steps.clear();
    result.first_of_rest = 0;
    StepWriter(plan, scope, shapes, result).write();
}

} // namespace annulus
