// SPDX-License-Identifier: Apache-2.0
// Tests the lists of steps that the fused engine's calls run. The lists are pure data, so no GPU is needed. Every row
// of a grid is computed once, nothing is added to partial results that are not set yet, and a workspace limit is kept.
#include "cuda/fused/mma/traits.hpp"
#include "cuda/fused/plan/backward_plan.hpp"
#include "cuda/fused/plan/forward_plan.hpp"
#include "cuda/fused/plan/sequence_grids.hpp"
#include "cuda/fused/sm90/kernels.hpp"
#include "cuda/fused/storing_branches.hpp"

#include "support/plan.hpp"
#include "support/random_problem.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

namespace annulus::test {
namespace {

constexpr int multiprocessors = 132; // of an H200

// Checks the launches over the rows of one side, in their order.
class LaunchChecker {
  public:
    // `has_partial`: there are partial results of all rows, or of `summed`, of the call or of its parts. `passes`: how
    // many launches compute the same rows, each with other rows of the other side. `divides_parts`: several launches
    // may compute a part of `split`.
    LaunchChecker(const Plan &plan, KeyScope scope, const std::vector<PlannedGrid> &grids, bool has_partial,
                  const std::optional<SummedRows> &summed, const std::optional<SplitParts> &split, const Window &rows,
                  int head_step, int passes, bool divides_parts = false)
        : problem_(plan.problem()), scope_(scope), grids_(grids), has_partial_(has_partial), summed_(summed),
          split_(split), rows_(rows), head_step_(head_step), passes_(passes), divides_parts_(divides_parts) {}

    // Marks the partial results as set before the launches.
    void set_partial() { all_are_set_ = true; }
    bool are_set() const { return all_are_set_; }
    // True if the last launch has added the partial results to its rows.
    bool has_finished() const { return before_ && before_->destination == Destination::finish_partial; }

    void find_order(const BranchPlan *curve) {
        EXPECT_TRUE(curve);
        ordered_.insert(curve);
    }
    void pack(std::size_t grid) {
        ASSERT_LT(grid, grids_.size());
        EXPECT_TRUE(grids_[grid].is_packed && ordered_.count(grids_[grid].curve) > 0);
        packed_ = grid;
    }
    // The other side's packed rows have taken the place of this side's.
    void unpack() { packed_.reset(); }
    // Other parts of the call have used the workspace.
    void forget_rows() {
        ordered_.clear();
        unpack();
    }

    // Checks a launch of `kernel`, one of the kernels that together compute the launch's results.
    void launch(const Launch &own, int kernel, bool is_first_kernel) {
        const Launch launch = divides_parts_ ? with_whole_part(own) : own;
        ASSERT_LT(launch.grid, grids_.size());
        EXPECT_TRUE(!grids_[launch.grid].curve || ordered_.count(grids_[launch.grid].curve) > 0);
        EXPECT_TRUE(!grids_[launch.grid].is_packed || packed_ == launch.grid);
        switch (launch.destination) {
        case Destination::outputs:
            EXPECT_FALSE(has_partial_ || split_);
            break;
        case Destination::set_partial:
            EXPECT_TRUE(split_ || has_partial_);
            EXPECT_FALSE(is_first_kernel && !split_ && meets_set(launch));
            set(launch);
            break;
        case Destination::add_to_partial:
            EXPECT_TRUE((has_partial_ || split_) && is_set(launch));
            break;
        case Destination::outputs_with_partial:
            ASSERT_TRUE(split_ && before_ && before_->part && launch.part);
            EXPECT_EQ(before_->first_partial_row, launch.first_partial_row);
            if (divides_parts_ && before_->grid == launch.grid) // a further launch for the same part
                break;
            EXPECT_EQ(before_->destination, !is_first_kernel     ? launch.destination
                                            : grids_.size() == 2 ? Destination::set_partial
                                                                 : Destination::add_to_partial);
            all_are_set_ = false; // the next part clears its own partial results
            set_windows_.clear();
            EXPECT_TRUE(before_->part == launch.part);
            break;
        case Destination::finish_partial:
            if (passes_ > 1) { // nothing has used the memory of this part's partial results meanwhile
                ASSERT_TRUE(split_ && before_ && before_->part == launch.part);
                EXPECT_EQ(before_->first_partial_row, launch.first_partial_row);
            } else {
                EXPECT_TRUE(scope_ == KeyScope::last_keys || scope_ == KeyScope::all_keys);
                EXPECT_TRUE(has_partial_);
            }
            if (summed_)
                expect_summed_rows_set(launch);
            else
                EXPECT_TRUE(is_set(launch));
            EXPECT_EQ(launch.grid + 1, grids_.size());
            EXPECT_EQ(grids_[launch.grid].range_parts, 1);
            break;
        case Destination::outputs_or_partial:
            EXPECT_EQ(scope_, KeyScope::own_keys);
            if (grids_.size() == 1)
                break;
            EXPECT_EQ(grids_.size(), 2U);
            ASSERT_TRUE(before_);
            if (divides_parts_ && before_->grid == launch.grid)
                break;
            EXPECT_EQ(before_->destination, is_first_kernel ? Destination::set_partial : launch.destination);
            break;
        }
        if (split_) {
            const GridPart &part = *launch.part;
            std::int64_t first = part.rows.length ? part.rows.start - rows_.start : 0;
            if (part.segments > 0) {
                const std::int64_t segment_length = grids_[launch.grid].tiles.sequence.segment_length;
                first = std::max<std::int64_t>(part.first_segment * segment_length - rows_.start, 0);
                EXPECT_LE(std::min(first + part.segments * segment_length, rows_.length) - first, split_->rows);
            }
            EXPECT_TRUE((split_->stride == 1 && !summed_) || first == 0);
            const std::int64_t rows_of_head =
                summed_ ? summed_->count() : (rows_.length + split_->stride - 1) / split_->stride;
            EXPECT_EQ(launch.first_partial_row,
                      (std::int64_t{part.first_batch} * problem_.heads + part.first_head) * rows_of_head + first);
        }
        cover(own, kernel);
        before_ = launch;
    }

    // Expects that each kernel has computed each grid once for each batch entry and head, over all segments or rows.
    void expect_all_once(std::size_t kernels) const {
        std::size_t expected = 0;
        for (const PlannedGrid &planned : grids_)
            if (planned.tiles.sequence.row_count > 0)
                expected += kernels * static_cast<std::size_t>(problem_.batch * problem_.heads);
        std::size_t found = 0;
        for (const auto &[key, times] : times_) {
            EXPECT_NEAR(times, 1, 1e-9);
            found += grids_[std::get<0>(key)].tiles.sequence.row_count > 0;
        }
        EXPECT_EQ(found, expected);
    }

  private:
    // Returns a launch with the whole part of `split_` in which the launch is, or with all heads.
    Launch with_whole_part(Launch launch) const {
        GridPart &part = *launch.part;
        if (!split_) {
            part = {0, static_cast<int>(problem_.batch), 0, problem_.heads};
            return launch;
        }
        const int first_batch = part.first_batch - part.first_batch % split_->batches,
                  first_head = part.first_head - part.first_head % split_->heads;
        part = {first_batch, std::min(split_->batches, static_cast<int>(problem_.batch) - first_batch), first_head,
                std::min(split_->heads, problem_.heads - first_head)};
        return launch;
    }
    // The batch entries, heads and segments of a launch, if dS is stored. Otherwise all of them.
    using Rows = std::tuple<int, int, int>;
    Rows rows_of(const Launch &launch) const {
        const GridPart &part = *launch.part;
        return {part.first_batch, part.first_head / head_step_, part.first_segment};
    }
    // Expects every row that has partial results to be set, and the launch to have all rows.
    void expect_summed_rows_set(const Launch &launch) const {
        std::int64_t count = 0;
        for (const SummedInterval &interval : summed_->intervals()) {
            EXPECT_TRUE(std::ranges::find(set_windows_, interval.rows) != set_windows_.end());
            EXPECT_TRUE(interval.stride == 1 && interval.first_head == 0 && interval.head_count == problem_.heads);
            count += interval.rows.length;
        }
        EXPECT_EQ(summed_->count(), count);
        EXPECT_LT(count, rows_.length);
        EXPECT_TRUE(rows_of_grid(launch) == rows_ && grids_[launch.grid].fills_rows);
    }
    bool is_set(const Launch &launch) const {
        return all_are_set_ ||
               std::ranges::any_of(
                   set_windows_,
                   [&](const Window &set) { return intersect(set, rows_of_grid(launch)) == rows_of_grid(launch); }) ||
               (launch.part && launch.part->segments > 0 && set_.count(rows_of(launch)) > 0);
    }
    // True if some row of the launch has a partial result.
    bool meets_set(const Launch &launch) const {
        const Window own = rows_of_grid(launch);
        const auto meets = [&](const Window &set) { return intersect(set, own).length > 0; };
        return set_windows_.empty() ? all_are_set_ : std::ranges::any_of(set_windows_, meets);
    }
    Window rows_of_grid(const Launch &launch) const {
        const SequenceGrid &sequence = grids_[launch.grid].tiles.sequence;
        return {sequence.row_start, sequence.row_count};
    }
    void set(const Launch &launch) {
        if (launch.part && launch.part->segments > 0) {
            set_.insert(rows_of(launch));
            return;
        }
        const Window own = rows_of_grid(launch);
        set_windows_.push_back(own);
        std::int64_t all = 0;
        for (const Window &window : set_windows_)
            all += window.length;
        all_are_set_ |= split_ || !grids_[launch.grid].sequences.empty() || all >= rows_.length;
    }

    void cover(const Launch &launch, int kernel) {
        const TileGrid &tiles = grids_[launch.grid].tiles;
        const int heads = problem_.heads / head_step_;
        const GridPart part = launch.part.value_or(GridPart{0, static_cast<int>(problem_.batch), 0, heads});
        double share = 1.0 / passes_;
        if (part.segments)
            share *= static_cast<double>(part.segments) / tiles.sequence.segments;
        else if (part.rows.length)
            share *= static_cast<double>(part.rows.length) / static_cast<double>(rows_.length);
        for (int b = 0; b < part.batches; ++b)
            for (int h = 0; h < part.heads; ++h)
                times_[{launch.grid, kernel, part.first_batch + b, part.first_head + h * head_step_}] += share;
    }

    const annulus::Problem &problem_;
    const KeyScope scope_;
    const std::vector<PlannedGrid> &grids_;
    const bool has_partial_;
    const std::optional<SummedRows> summed_;
    const std::optional<SplitParts> split_;
    const Window rows_;
    const int head_step_, passes_;
    const bool divides_parts_;
    bool all_are_set_ = false;
    std::set<Rows> set_;
    std::vector<Window> set_windows_;
    std::set<const BranchPlan *> ordered_; // curves whose permutation is found
    std::optional<std::size_t> packed_;    // the grid whose rows are packed in its order
    std::optional<Launch> before_;
    std::map<std::tuple<std::size_t, int, int, int>, double>
        times_; // how often computed, by grid, kernel, batch entry and head
};

// Checks that launches clear each part once, in order.
class ClearedChecker {
  public:
    void launch(const ClearedPart &clears) {
        if (clears.parts == 0)
            return;
        EXPECT_EQ(clears.index, next_++);
        EXPECT_TRUE(parts_ == 0 || clears.parts == parts_);
        parts_ = clears.parts;
    }
    // Returns whether anything is cleared. Expects that then everything is.
    bool clears() const {
        EXPECT_EQ(next_, parts_);
        return parts_ > 0;
    }

  private:
    int next_ = 0, parts_ = 0;
};

// Checks that the parts of a grid whose ranges are divided are merged before the next launch needs their memory.
class RangePartsChecker {
  public:
    void launch(const Launch &launch, const PlannedGrid &planned) {
        EXPECT_TRUE(launches_.empty() || (launches_.back().grid == launch.grid && launches_.back().part == launch.part))
            << "parts were not merged";
        if (planned.range_parts == 1)
            return;
        EXPECT_EQ(launch.destination, Destination::set_partial);
        EXPECT_EQ(launch.first_partial_row, planned.tiles.sequence.row_start - planned.tiles.first_row);
        EXPECT_EQ(launch.clears.parts, 0);
        launches_.push_back(launch);
    }
    bool is_pending() const { return !launches_.empty(); }

    void merge(const Launch &launch, int kernels) {
        ASSERT_EQ(launches_.size(), static_cast<std::size_t>(kernels));
        EXPECT_EQ(launches_.back().grid, launch.grid);
        EXPECT_TRUE(launches_.back().part == launch.part);
        EXPECT_TRUE(launch.destination == Destination::set_partial ||
                    launch.destination == Destination::add_to_partial);
        launches_.clear();
    }

  private:
    std::vector<Launch> launches_; // of the kernels that find results of the same parts
};

bool leaves_rows_out(const std::vector<PlannedGrid> &grids) {
    return grids.empty() || !grids.front().is_complete;
}

bool is_split_part(const ForwardPlan &forward) {
    return forward.grids.size() > 1 && std::ranges::any_of(forward.steps, [](const ForwardStep &step) {
               return step.launch.destination == Destination::outputs_or_partial;
           });
}

void expect_sound(const Plan &plan, KeyScope scope, const ForwardPlan &forward) {
    const bool has_partial = scope != KeyScope::all_keys || forward.has_own_partial;
    LaunchChecker launches(plan, scope, forward.grids, has_partial, forward.summed, forward.parts,
                           plan.problem().queries, 1, 1);
    if (has_other_keys(scope))
        launches.set_partial();
    bool clears = false, recomputes = false, writes = false;
    ClearedChecker cleared;
    RangePartsChecker parts;
    bool follows_launch = false;
    for (const ForwardStep &step : forward.steps) {
        const bool is_launch = step.action == ForwardAction::attend;
        EXPECT_EQ(step.launch.begins_early, is_launch && follows_launch);
        follows_launch = is_launch;
        cleared.launch(step.launch.clears);
        switch (step.action) {
        case ForwardAction::clear_outputs:
            clears = true;
            break;
        case ForwardAction::clear_partial:
            clears = true;
            launches.set_partial();
            break;
        case ForwardAction::mark_finished:
            EXPECT_EQ(scope, KeyScope::own_keys);
            break;
        case ForwardAction::find_order:
            launches.find_order(forward.grids.at(step.launch.grid).curve);
            break;
        case ForwardAction::pack_ranges:
            launches.pack(step.launch.grid);
            break;
        case ForwardAction::attend:
            parts.launch(step.launch, forward.grids.at(step.launch.grid));
            if (!parts.is_pending())
                launches.launch(step.launch, 0, true);
            break;
        case ForwardAction::merge_range_parts:
            parts.merge(step.launch, 1);
            launches.launch(step.launch, 0, true);
            break;
        case ForwardAction::write_outputs:
            EXPECT_TRUE(forward.has_own_partial && launches.are_set());
            writes = true;
            break;
        case ForwardAction::write_unfinished:
            EXPECT_TRUE(forward.has_own_partial && launches.are_set() && launches.has_finished());
            writes = true;
            break;
        case ForwardAction::recompute_outputs_of_partial:
            EXPECT_TRUE(writes && !launches.has_finished());
            recomputes = true;
            break;
        case ForwardAction::recompute_outputs:
        case ForwardAction::recompute_partial_outputs:
            recomputes = true;
            break;
        }
    }
    launches.expect_all_once(1);
    EXPECT_EQ(writes, forward.has_own_partial && !forward.summed);
    EXPECT_EQ(recomputes, plan.hides_keys() && !has_other_keys(scope));
    EXPECT_FALSE(cleared.clears() && (has_partial || clears));
    if (!has_other_keys(scope) && !forward.parts) {
        const bool has_finished = scope == KeyScope::all_keys && launches.has_finished();
        EXPECT_EQ(clears || cleared.clears(),
                  !has_finished && !is_split_part(forward) && leaves_rows_out(forward.grids));
    }
}

// True if a launch finds the gradients of both sides.
bool finds_all(const BackwardStep &step) {
    return step.action == BackwardAction::find_gradients && step.what == Gradients::all_storing_d_s;
}

// Checks the steps that a call leaves for run_rest(). Other ranks must not wait for their results, and the steps must
// be of one side. With the own keys they are all steps of the key side, since other parts add to the query side in the
// meantime. If a launch computes both sides, only tiles of queries may be left.
void expect_sound_rest(KeyScope scope, const BackwardPlan &backward, bool only_v) {
    ASSERT_LE(backward.first_of_rest, backward.steps.size());
    const bool has_rest = backward.first_of_rest < backward.steps.size();
    const bool has_work = scope == KeyScope::own_keys || !backward.queries.grids.empty(); // else no query has a key
    EXPECT_EQ(has_rest, !only_v && scope != KeyScope::all_keys && has_work &&
                            !(backward.stores_ds() && scope == KeyScope::own_keys));
    if (!has_rest)
        return;
    if (std::ranges::any_of(backward.steps, finds_all)) {
        const StoredTurns &turns = backward.stored.front().layout.turns;
        ASSERT_EQ(backward.first_of_rest + 1, backward.steps.size());
        for (int number = backward.steps.back().turns.first; number < turns.count(); ++number) {
            const StoredTurn turn = turns.turn(number);
            ASSERT_TRUE(turn.multiplies || !turns.has_group(turn));
        }
        return;
    }
    const Side rest_side = scope == KeyScope::own_keys ? Side::keys : Side::queries;
    for (std::size_t i = 0; i < backward.steps.size(); ++i) {
        const BackwardStep &step = backward.steps[i];
        if (i >= backward.first_of_rest) {
            EXPECT_TRUE(step.side == rest_side && step.action != BackwardAction::find_lse_delta);
        } else if (step.action != BackwardAction::find_lse_delta && !backward.stores_ds()) {
            EXPECT_NE(step.side, rest_side);
        }
    }
}

// Checks whether step i begins early. It does if the step before is also a launch and no dS is stored. The first step
// of run_rest() does not, since other parts of the call run before it. After find_lse_delta only the launch for dQ
// begins early, since only its kernel waits before it reads LSE and delta.
void expect_sound_beginning(const BackwardPlan &backward, std::size_t i) {
    const BackwardStep &step = backward.steps[i];
    bool may_begin_early = i > 0 && i != backward.first_of_rest && !backward.stores_ds();
    if (may_begin_early) {
        const BackwardAction before = backward.steps[i - 1].action;
        may_begin_early = before == BackwardAction::find_gradients ||
                          (before == BackwardAction::find_lse_delta && step.what == Gradients::d_q);
    }
    EXPECT_EQ(step.launch.begins_early, may_begin_early);
}

// Checks the launches of two kernels that store dS and multiply it. They alternate, and each pair is of the same cells
// and the same queries. The passes over the queries of cells follow one another. If they have partial results of keys
// that only they use, the last one writes the rows.
void expect_sound_pairs(const BackwardPlan &backward) {
    const int passes = backward.stored.front().layout.turns.passes;
    int pass = 0;
    for (std::size_t i = 0; i < backward.steps.size(); ++i) {
        const BackwardStep &step = backward.steps[i];
        if (step.what != Gradients::d_q_of_stored_d_s)
            continue;
        ASSERT_GT(i, 0U);
        const BackwardStep &before = backward.steps[i - 1];
        EXPECT_EQ(before.what, Gradients::d_k_and_d_v_storing_d_s);
        EXPECT_TRUE(before.launch.part == step.launch.part);
        EXPECT_EQ(before.pass, pass);
        EXPECT_EQ(step.pass, pass);
        pass = (pass + 1) % passes;
        EXPECT_EQ(before.launch.destination == Destination::finish_partial, backward.keys.parts && pass == 0);
    }
    EXPECT_EQ(pass, 0);
}

void expect_sound(const Plan &plan, KeyScope scope, const BackwardPlan &backward) {
    const annulus::Problem &problem = plan.problem();
    const bool are_pairs = backward.stores_ds() && std::ranges::none_of(backward.steps, finds_all);
    if (are_pairs)
        expect_sound_pairs(backward);
    std::map<Side, LaunchChecker> launches;
    std::map<Side, bool> clears, recomputes, recomputes_partial;
    std::map<Side, ClearedChecker> cleared;
    for (const Side side : {Side::queries, Side::keys}) {
        const SideGrids &side_grids = backward.side_grids(side);
        const bool is_query_side = side == Side::queries;
        launches.try_emplace(side, plan, scope, side_grids.grids,
                             scope != KeyScope::all_keys || side_grids.has_own_partial, side_grids.summed,
                             side_grids.parts, window_of(problem, side),
                             is_query_side && !are_pairs ? 1 : problem.heads / problem.kv_heads,
                             are_pairs ? backward.stored.front().layout.turns.passes : 1, backward.branches_store_ds());
    }
    if (has_other_keys(scope))
        launches.at(Side::queries).set_partial(); // each part sets its own keys' gradients
    const bool only_v = problem.gradients.only_v;
    static constexpr Gradients alone[] = {Gradients::d_v};
    const std::span<const Gradients> kernels = only_v ? alone : gradients_of_keys(problem.head_dim);
    bool writes = false;
    std::set<Side> unfinished;
    RangePartsChecker parts;
    std::size_t lse_deltas = 0;
    for (std::size_t i = 0; i < backward.steps.size(); ++i) {
        const BackwardStep &step = backward.steps[i];
        if (i == backward.first_of_rest && scope == KeyScope::own_keys)
            for (auto &[side, either_side] : launches)
                either_side.forget_rows();
        LaunchChecker &checker = launches.at(step.side);
        EXPECT_TRUE(!only_v || step.side == Side::keys || step.action == BackwardAction::find_lse_delta ||
                    step.action == BackwardAction::write_gradients);
        switch (step.action) {
        case BackwardAction::find_lse_delta:
            ++lse_deltas;
            break;
        case BackwardAction::clear_gradients:
            clears[step.side] = true;
            break;
        case BackwardAction::clear_partial:
            clears[step.side] = true;
            checker.set_partial();
            break;
        case BackwardAction::find_order:
            for (auto &[side, either_side] : launches)
                either_side.find_order(backward.side_grids(step.side).grids.at(step.launch.grid).curve);
            break;
        case BackwardAction::pack_ranges:
            for (auto &[side, either_side] : launches)
                either_side.unpack();
            checker.pack(step.launch.grid);
            break;
        case BackwardAction::find_gradients: {
            const bool is_stored = step.what == Gradients::d_q_of_stored_d_s ||
                                   step.what == Gradients::d_k_and_d_v_storing_d_s || finds_all(step);
            EXPECT_EQ(is_stored, backward.stores_ds());
            expect_sound_beginning(backward, i);
            const auto kernel = std::find(kernels.begin(), kernels.end(), step.what);
            const bool is_first = step.side == Side::queries || is_stored || kernel == kernels.begin();
            if (finds_all(step) && step.turns.first > 0) { // continues the launch before
                EXPECT_TRUE(finds_all(backward.steps[i - 1]) && step.launch.part == backward.steps[i - 1].launch.part);
                EXPECT_EQ(step.turns.first, backward.steps[i - 1].turns.end);
                break;
            }
            parts.launch(step.launch, backward.side_grids(step.side).grids.at(step.launch.grid));
            if (parts.is_pending())
                break;
            checker.launch(step.launch, is_first ? 0 : static_cast<int>(kernel - kernels.begin()), is_first);
            cleared[step.side].launch(step.launch.clears);
            if (finds_all(step)) {
                Launch query_launch = step.launch;
                query_launch.destination = step.query_destination;
                launches.at(Side::queries).launch(query_launch, 0, true);
                cleared[Side::queries].launch(query_launch.clears);
            }
            break;
        }
        case BackwardAction::add_range_parts: {
            const int count = step.side == Side::queries ? 1 : static_cast<int>(kernels.size());
            parts.merge(step.launch, count);
            for (int kernel = 0; kernel < count; ++kernel)
                checker.launch(step.launch, kernel, kernel == 0);
            break;
        }
        case BackwardAction::write_gradients:
            writes = true;
            break;
        case BackwardAction::write_rows_outside:
            EXPECT_TRUE(checker.are_set() && checker.has_finished());
            EXPECT_FALSE(backward.side_grids(step.side).grids.back().is_complete);
            EXPECT_TRUE(backward.side_grids(step.side).grids.back().fills_rows);
            unfinished.insert(step.side);
            break;
        case BackwardAction::recompute_gradients:
            recomputes[step.side] = true;
            break;
        case BackwardAction::recompute_partial:
            EXPECT_FALSE(writes); // otherwise the repair would be lost
            recomputes_partial[step.side] = true;
            break;
        }
    }
    expect_sound_rest(scope, backward, only_v);
    EXPECT_EQ(lse_deltas, has_other_keys(scope) ? 0U : 1U);
    EXPECT_EQ(writes, backward.queries.writes_partial() || backward.keys.writes_partial());
    for (const Side side : {Side::queries, Side::keys}) {
        const SideGrids &own = backward.side_grids(side);
        // Passes over stored dS finish rows, too, but of a single grid.
        const bool has_finished =
            launches.at(side).has_finished() && scope == KeyScope::all_keys && !backward.stores_ds();
        EXPECT_EQ(has_finished, !own.destinations.empty());
        EXPECT_EQ(unfinished.contains(side), has_finished && !own.summed && !own.grids.back().is_complete);
    }
    const bool are_plain = problem.gradients.are_plain();
    for (const Side side : {Side::queries, Side::keys}) {
        const SideGrids &side_grids = backward.side_grids(side);
        if (only_v && side == Side::queries) {
            EXPECT_TRUE(side_grids.grids.empty() && !side_grids.has_own_partial && !side_grids.parts);
            continue;
        }
        EXPECT_EQ(recomputes_partial[side],
                  plan.hides_keys() && side_grids.destinations.empty() &&
                      (scope == KeyScope::own_keys || (scope == KeyScope::all_keys && !are_plain)));
        if (side == Side::keys && !backward.stores_ds()) {
            launches.at(side).expect_all_once(kernels.size());
        } else if (!backward.stores_ds() || are_pairs || side == Side::keys || backward.branches_store_ds()) {
            launches.at(side).expect_all_once(1);
        }
        const bool has_all_in_partial = recomputes_partial[side] && !side_grids.finishes &&
                                        side_grids.destinations.empty() &&
                                        (scope == KeyScope::own_keys || side_grids.has_own_partial);
        EXPECT_EQ(recomputes[side], plan.hides_keys() && !has_other_keys(scope) && !has_all_in_partial);
        // The kernels write only plain gradients.
        if (!(side == Side::queries ? problem.gradients.q.is_plain()
                                    : problem.gradients.k.is_plain() && problem.gradients.v.is_plain())) {
            EXPECT_EQ(side_grids.has_own_partial, scope == KeyScope::all_keys);
            EXPECT_FALSE(side_grids.finishes || side_grids.parts);
        }
        const bool launches_clear = cleared[side].clears();
        EXPECT_FALSE(launches_clear && (scope != KeyScope::all_keys || side_grids.has_own_partial || clears[side]));
        if ((!has_other_keys(scope) || side == Side::keys) && !side_grids.parts && !side_grids.is_split) {
            EXPECT_EQ(clears[side] || launches_clear,
                      side_grids.destinations.empty() && leaves_rows_out(side_grids.grids));
        }
    }
}

// Plans for kernels like the ones of sm90/, which read rows along a curve in place and clear rows. With `packs` the
// kernels do neither.
ForwardPlan forward_of(const Plan &plan, KeyScope scope, std::uint64_t limit, bool packs = false) {
    KernelShape shape = forward_shape(plan.problem().head_dim);
    shape.packs_curves = packs;
    shape.clears_rows &= !packs;
    return plan_forward(plan, scope, make_grids(plan, GridResult::outputs, shape), shape, multiprocessors, limit);
}

BackwardPlan backward_of(const Plan &plan, KeyScope scope, std::uint64_t limit, bool packs = false) {
    BackwardShapes shapes = backward_shapes(plan.problem().head_dim);
    for (KernelShape *shape : {&shapes.queries, &shapes.keys}) {
        shape->packs_curves = packs;
        shape->clears_rows &= !packs;
    }
    return plan_backward(plan, scope, make_backward_grids(plan, shapes), shapes, multiprocessors, limit);
}

BackwardPlan backward_of(const Problem &problem, std::uint64_t limit) {
    return backward_of(Plan(pattern_of(problem), plan_problem_of(problem)), KeyScope::all_keys, limit);
}

// Branches store dS if little of each lies in the segments of another one. LongNet's branches share half of their
// pairs, or a quarter.
TEST(StoredDs, OfSeveralBranches) {
    const auto branches_storing = [](const Problem &problem, std::uint64_t limit = 0,
                                     KeyScope scope = KeyScope::all_keys) {
        SCOPED_TRACE(testing::Message() << problem);
        const Plan plan(pattern_of(problem), plan_problem_of(problem));
        const BackwardPlan backward = backward_of(plan, scope, limit);
        expect_sound(plan, scope, backward);
        EXPECT_TRUE(limit == 0 || backward_bytes(plan, backward) <= limit);
        return backward.branches_store_ds() ? backward.stored.size() : 0;
    };
    for (const auto &[name, problem] : problems_of_storing_branches()) {
        EXPECT_EQ(branches_storing(problem), problem.branches.size());
        EXPECT_EQ(branches_storing(problem, 0, KeyScope::own_keys), problem.branches.size() == 2 ? 2U : 0U);
        EXPECT_EQ(branches_storing(problem, 0, KeyScope::other_keys), 0U);
        Problem grouped = problem, few_columns = problem;
        grouped.kv_heads = 2;
        few_columns.dim = 64;
        EXPECT_EQ(branches_storing(grouped), 0U);
        EXPECT_EQ(branches_storing(few_columns), 0U);
        EXPECT_EQ(branches_storing(problem, 8 << 20), 0U);
    }
    Problem large = {.length = 131072,
                     .heads = 16,
                     .dim = 72,
                     .branches = {{.segment = 2048}, {.segment = 16384, .dilation = 8}},
                     .dtype = ANNULUS_BFLOAT16};
    EXPECT_EQ(branches_storing(large), 2U);
    EXPECT_EQ(branches_storing(large, 300 << 20), 2U);
    EXPECT_EQ(backward_of(large, 300 << 20).keys.parts->heads, 8);
    large.length = 1000003;
    large.branches = {{.segment = 4096}, {.dilation = 64}};
    EXPECT_EQ(branches_storing(large), 2U);
    EXPECT_EQ(backward_of(large, 0).stored.front().layout.slices, 4);
    for (const LimitedStoring &limited : problems_of_limited_storing()) {
        EXPECT_EQ(branches_storing(limited.problem, limited.limit), 2U);
        const BackwardPlan backward = backward_of(limited.problem, limited.limit);
        EXPECT_EQ(backward.keys.parts->heads, limited.heads_of_part);
        EXPECT_EQ(backward.stored.front().layout.slices > 1, limited.has_slices);
    }
    for (const int ratio : {2, 4}) {
        large.length = 262144;
        large.branches.clear();
        for (std::int64_t dilation = 1, i = 0; i < 6; ++i, dilation *= ratio)
            large.branches.push_back({.segment = 2048 * dilation, .dilation = dilation});
        EXPECT_EQ(branches_storing(large), 0U);
    }
}

// Returns the plan of two packed sequences, with rows between them and after them.
ForwardPlan forward_of_sequences(OtherRows other_rows) {
    const Problem problem{.length = 700, .heads = 4, .dim = 64, .branches = {{.segment = 128}, {.dilation = 4}}};
    CallProblem call{plan_problem_of(problem), {{0, 1, {0, 300}}, {0, 1, {350, 300}}}};
    const SequencePlans plans(pattern_of(problem), call, other_rows);
    const KernelShape shape = forward_shape(problem.dim);
    std::vector<PlannedGrid> grids = make_grids(plan_of_longest(plans), GridResult::outputs, shape);
    lay_out_sequences(plans, GridResult::outputs, shape, grids);
    return plan_forward(plan_of_rows(plans), KeyScope::all_keys, std::move(grids), shape, multiprocessors, 0);
}

constexpr std::array scopes{KeyScope::all_keys, KeyScope::own_keys, KeyScope::other_keys, KeyScope::last_keys};

// Checks calls whose gradients are added to, or have another dtype. A call needs the most workspace if all gradients
// are like that.
void expect_sound_targets(const Problem &problem) {
    constexpr GradientTarget plain{}, adds{.adds = true}, is_float32{.is_float32 = true};
    std::optional<std::size_t> most;
    for (const GradientTargets &targets : {GradientTargets{is_float32, is_float32, is_float32},
                                           {adds, plain, plain},
                                           {plain, adds, plain},
                                           {plain, plain, is_float32},
                                           {plain, plain, is_float32, true},
                                           {plain, plain, plain, true}}) {
        annulus::Problem sizes = plan_problem_of(problem);
        sizes.gradients = targets;
        const Plan plan(pattern_of(problem), sizes);
        for (const KeyScope scope : scopes)
            expect_sound(plan, scope, backward_of(plan, scope, 0));
        const std::size_t bytes = backward_bytes(plan, backward_of(plan, KeyScope::all_keys, 0));
        EXPECT_LE(bytes, most.value_or(bytes));
        if (!most)
            most = bytes; // of the first target
    }
}

// Checks the plans of all parts of a call. Parts have the whole sequence here: their lists do not depend on where their
// keys lie.
void expect_sound(const Problem &problem) {
    SCOPED_TRACE(testing::Message() << problem);
    const Plan plan(pattern_of(problem), plan_problem_of(problem));
    for (const KeyScope scope : scopes) {
        SCOPED_TRACE(testing::Message() << "key scope " << static_cast<int>(scope));
        for (const std::uint64_t limit :
             {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{16} << 20, std::uint64_t{512} << 20}) {
            for (const bool packs : {false, true}) {
                expect_sound(plan, scope, forward_of(plan, scope, limit, packs));
                expect_sound(plan, scope, backward_of(plan, scope, limit, packs));
            }
        }
    }
    expect_sound_targets(problem);
    // The least workspace is always enough, and larger limits are kept.
    const std::size_t forward_least = forward_bytes(plan, forward_of(plan, KeyScope::all_keys, 1));
    const std::size_t backward_least = backward_bytes(plan, backward_of(plan, KeyScope::all_keys, 1));
    for (int percent = 100; percent < 400; percent += 13) {
        const std::uint64_t forward_limit = forward_least * static_cast<std::size_t>(percent) / 100;
        const std::uint64_t backward_limit = backward_least * static_cast<std::size_t>(percent) / 100;
        EXPECT_LE(forward_bytes(plan, forward_of(plan, KeyScope::all_keys, forward_limit)), forward_limit);
        EXPECT_LE(backward_bytes(plan, backward_of(plan, KeyScope::all_keys, backward_limit)), backward_limit);
    }
}

class RandomPlans : public testing::TestWithParam<int> {};

TEST_P(RandomPlans, AreSound) {
    const auto seed = static_cast<std::uint64_t>(GetParam());
    for (Problem problem : {random_problem(seed), random_window_problem(seed), random_sliding_problem(seed)}) {
        problem.dtype = ANNULUS_BFLOAT16;
        expect_sound(problem);
    }
}

INSTANTIATE_TEST_SUITE_P(Many, RandomPlans, testing::Range(0, 300));

// Other ranks may have global keys or queries for any row of a rank.
TEST(OwnKeys, FinishRowsUnlessPositionsAreGlobal) {
    for (const bool has_global : {false, true})
        for (const std::int64_t length : {64, 512, 70001}) {
            Problem problem = {.length = 200003,
                               .heads = 16,
                               .branches = {{.segment = 64}, {.segment = 2048, .dilation = 64}},
                               .dtype = ANNULUS_BFLOAT16};
            if (has_global)
                problem.branches.push_back(global_spec(3, 2));
            SCOPED_TRACE(testing::Message() << problem << "length " << length);
            annulus::Problem sizes = plan_problem_of(problem);
            sizes.queries = sizes.keys = {2048, length};
            const Plan plan(pattern_of(problem), sizes);
            const ForwardPlan forward = forward_of(plan, KeyScope::own_keys, 0);
            EXPECT_EQ(std::ranges::any_of(forward.steps,
                                          [](const ForwardStep &step) {
                                              return step.launch.destination == Destination::outputs_or_partial;
                                          }),
                      !has_global);
            const BackwardPlan backward = backward_of(plan, KeyScope::own_keys, 0);
            EXPECT_EQ(backward.queries.finishes, !has_global);
            EXPECT_EQ(backward.keys.finishes, !has_global);
        }
}

Problem large_split_problem(bool causal) {
    return {.batch = 2,
            .length = 262147,
            .heads = 7,
            .dim = 56,
            .branches = {{.segment = 253}, {.dilation = 64}},
            .causal = causal,
            .dtype = ANNULUS_BFLOAT16};
}

// If there are many parts, two launches for each take longer than one launch without a split. With a few parts they do
// not.
TEST(LargePlans, AreCutIntoAFewPartsAtMost) {
    Problem problem = {.heads = 16, .dim = 128, .branches = {}, .dtype = ANNULUS_BFLOAT16};
    for (int i = 0; i < 5; ++i)
        problem.branches.push_back({.segment = 2048LL << 2 * i, .dilation = 1LL << 2 * i});
    for (const auto &[length, causal] : {std::pair(65536, false), {65536, true}, {61001, false}, {61001, true}}) {
        problem.length = length;
        problem.causal = causal;
        const Plan plan(pattern_of(problem), plan_problem_of(problem));
        for (const std::uint64_t limit : {std::uint64_t{0}, std::uint64_t{40} << 20}) {
            const ForwardPlan forward = forward_of(plan, KeyScope::all_keys, limit);
            ASSERT_TRUE(forward.parts);
            EXPECT_EQ(forward.parts->all_rows(), problem.heads * ((length + 15) / 16));
        }
        EXPECT_FALSE(forward_of(plan, KeyScope::all_keys, std::uint64_t{16} << 20).parts);
        for (const std::uint64_t limit : {std::uint64_t{0}, std::uint64_t{48} << 20}) {
            const BackwardPlan backward = backward_of(plan, KeyScope::all_keys, limit);
            ASSERT_TRUE(backward.queries.parts && backward.keys.parts);
            EXPECT_EQ(backward.queries.parts->all_rows(), problem.heads * ((length + 15) / 16));
        }
        EXPECT_FALSE(backward_of(plan, KeyScope::all_keys, std::uint64_t{30} << 20).queries.parts);
    }
    const Problem large = large_split_problem(false);
    const Plan plan(pattern_of(large), plan_problem_of(large));
    const std::optional<SplitParts> all = forward_of(plan, KeyScope::all_keys, 0).parts;
    ASSERT_TRUE(all);
    for (const std::uint64_t limit : {std::uint64_t{8} << 20, std::uint64_t{4} << 20}) {
        const ForwardPlan forward = forward_of(plan, KeyScope::all_keys, limit);
        ASSERT_TRUE(forward.parts);
        EXPECT_LT(forward.parts->all_rows(), all->all_rows());
    }
}

// ---- dS that one launch stores and multiplies

// Checks the turns of the launches of one part of a call. In each pass each tile of each cell has one turn. What a turn
// waits for is done by earlier turns of the same launch; a tile of queries may also wait for the launch before. A tile
// of queries waits for all dS of its cell's group. A tile of keys waits until the dS in its place is no longer needed,
// and for the same keys' results of the pass before.
void expect_sound_turns(const BackwardPlan &backward, int row_blocks_of_tile) {
    const StoredDs &stored = backward.stored.front().layout;
    StoredTurns turns = stored.turns;
    std::vector<TurnRange> launches; // of one part of the cells
    for (const BackwardStep &step : backward.steps)
        if (finds_all(step) && (launches.empty() || step.turns.first > 0))
            launches.push_back(step.turns);
    ASSERT_FALSE(launches.empty());
    EXPECT_EQ(launches.front().first, 0);
    EXPECT_EQ(launches.back().end, turns.count());
    std::size_t launch = 0;
    const int key_tiles = (stored.keys + row_blocks_of_tile - 1) / row_blocks_of_tile;
    const int query_tiles = (stored.queries + StoredDs::row_blocks_of_tile - 1) / StoredDs::row_blocks_of_tile;
    EXPECT_EQ(stored.cells, turns.cells_of_group.value * turns.groups_in_memory.value);
    std::set<std::tuple<bool, int, int, int>> found;
    std::map<std::pair<bool, int>, int> done, all; // turns by kind and place in memory, and by kind and group
    for (int number = 0; number < turns.count(); ++number)
        if (const StoredTurn turn = turns.turn(number); turns.has_group(turn))
            ++all[{turn.multiplies, turn.group}];
    // Counts the turns of a kind in the groups that share a place, before group `end`.
    const auto turns_until = [&](bool multiplying, int end) {
        int count = 0;
        for (int group = turns.place(end - 1); group < end; group += turns.groups_in_memory.value)
            count += all[{multiplying, group}];
        return count;
    };
    for (int number = 0; number < turns.count(); ++number) {
        if (number == launches[launch].end)
            ++launch;
        turns.launch_turns = launches[launch];
        const StoredTurn turn = turns.turn(number);
        if (!turns.has_group(turn))
            continue;
        int needed = 0; // turns of the other kind in its place
        for (int group = turns.place(turn.group); group < turn.group + turn.multiplies;
             group += turns.groups_in_memory.value)
            needed += all[{!turn.multiplies, group}];
        ASSERT_EQ(turns.needed(turn), launch == 0 ? needed : 0);
        ASSERT_TRUE(launch == 0 || turn.multiplies);
        ASSERT_GE((done[{!turn.multiplies, turns.place(turn.group)}]), needed);
        ASSERT_EQ(turns.adds(turn), !turn.multiplies && turn.pass > 0 && turns.has_cell(turn));
        if (turns.adds(turn)) {
            const int before = turns.group_before(turn);
            ASSERT_EQ(before, (turn.pass - 1) * turns.cells_of_pass.value + turn.cell);
            ASSERT_EQ(turns.needed_before(turn), turns_until(false, before + 1));
            ASSERT_GE((done[{false, turns.place(before)}]), turns.needed_before(turn));
        }
        ++done[{turn.multiplies, turns.place(turn.group)}];
        if (!turns.has_cell(turn))
            continue;
        ASSERT_EQ((turn.pass * turns.cells_of_pass.value + turn.cell) / turns.cells_of_group.value, turn.group);
        ASSERT_LT(turn.index, turn.multiplies ? query_tiles : key_tiles);
        ASSERT_TRUE(found.insert({turn.multiplies, turn.pass, turn.cell, turn.index}).second);
    }
    EXPECT_EQ(found.size(),
              static_cast<std::size_t>(turns.passes) * turns.cells_of_pass.value * (key_tiles + query_tiles));
}

TEST(StoredDs, TurnsWaitForTurnsBefore) {
    for (const bool causal : {false, true})
        for (const auto &[segment, dilation, length, least] : {std::tuple(2048, 1, 65536, 1100),
                                                               {2048, 1, 63488, 1100},
                                                               {64, 1, 8192, 80},
                                                               {5760, 3, 51840, 1100},
                                                               {16384, 1, 131072, 1100},
                                                               {16411, 1, 65644, 1100},
                                                               {22001, 1, 44002, 1100},
                                                               {30011, 1, 90000, 1536},
                                                               {60001, 2, 130001, 1536},
                                                               {5003, 1, 70001, 1100},
                                                               {331, 1, 50021, 80}}) {
            const Problem problem = {.batch = 2,
                                     .length = length,
                                     .heads = 3,
                                     .dim = 128,
                                     .branches = {{.segment = segment, .dilation = dilation}},
                                     .causal = causal,
                                     .dtype = ANNULUS_BFLOAT16};
            SCOPED_TRACE(testing::Message() << problem);
            const Plan plan(pattern_of(problem), plan_problem_of(problem));
            for (const KeyScope scope : {KeyScope::all_keys, KeyScope::own_keys, KeyScope::last_keys})
                for (const int mib : {0, 3000, 1536, 1100, 500, 80}) {
                    SCOPED_TRACE(testing::Message()
                                 << "key scope " << static_cast<int>(scope) << ", " << mib << " MiB");
                    const std::uint64_t limit = static_cast<std::uint64_t>(mib) << 20;
                    const BackwardPlan backward = backward_of(plan, scope, limit);
                    EXPECT_TRUE(backward.stores_ds() || (limit > 0 && mib < least));
                    EXPECT_TRUE(limit == 0 || backward_bytes(plan, backward) <= limit);
                    if (!backward.stores_ds())
                        continue;
                    expect_sound(plan, scope, backward);
                    expect_sound_turns(backward, backward_shapes(problem.dim).keys.row_blocks);
                }
        }
}

// If dS of a few segments does not fit, there are slices of at most 4096 keys, and then as few passes as fit. There are
// none if a pass had fewer than 4608 queries.
TEST(StoredDs, TakesSlicesAndFewPasses) {
    using SlicesAndPasses = std::pair<int, int>;
    const SlicesAndPasses none{0, 0};
    const auto slices_and_passes_of = [](Problem problem, bool causal, int mib) -> SlicesAndPasses {
        problem.dtype = ANNULUS_BFLOAT16;
        problem.causal = causal;
        const Plan plan(pattern_of(problem), plan_problem_of(problem));
        const BackwardPlan backward = backward_of(plan, KeyScope::all_keys, static_cast<std::uint64_t>(mib) << 20);
        if (!backward.stores_ds())
            return {0, 0};
        return {backward.stored.front().layout.slices, backward.stored.front().layout.turns.passes};
    };
    const Problem whole = {.length = 14003, .heads = 3, .dim = 72, .branches = {{.segment = 0}}};
    Problem dilated = whole, grouped = whole;
    dilated.length = 35007;
    dilated.branches = {{.segment = 28006, .dilation = 2}};
    grouped.heads = 6;
    grouped.kv_heads = 3;
    EXPECT_EQ(slices_and_passes_of(whole, false, 0), SlicesAndPasses(1, 1));
    EXPECT_EQ(slices_and_passes_of(whole, false, 800), SlicesAndPasses(4, 1));
    EXPECT_EQ(slices_and_passes_of(whole, false, 500), SlicesAndPasses(4, 2));
    EXPECT_EQ(slices_and_passes_of(whole, false, 300), SlicesAndPasses(4, 3));
    EXPECT_EQ(slices_and_passes_of(whole, false, 200), none);
    EXPECT_EQ(slices_and_passes_of(whole, true, 600), SlicesAndPasses(1, 1));
    EXPECT_EQ(slices_and_passes_of(whole, true, 300), SlicesAndPasses(4, 3));
    EXPECT_EQ(slices_and_passes_of(dilated, false, 300), SlicesAndPasses(4, 3));
    EXPECT_EQ(slices_and_passes_of(grouped, false, 300), SlicesAndPasses(4, 3));
    EXPECT_EQ(slices_and_passes_of(grouped, false, 800), SlicesAndPasses(4, 1));
    Problem segments = whole;
    segments.heads = 1;
    segments.length = 60013;
    segments.branches = {{.segment = 14003}};
    segments.dtype = ANNULUS_BFLOAT16;
    EXPECT_EQ(slices_and_passes_of(segments, false, 300), SlicesAndPasses(4, 3));
    const Plan plan(pattern_of(segments), plan_problem_of(segments));
    EXPECT_EQ(backward_of(plan, KeyScope::all_keys, std::uint64_t{300} << 20).stored.front().segments, 3);
    Problem one = whole;
    one.heads = 1;
    EXPECT_EQ(slices_and_passes_of(one, false, 400), SlicesAndPasses(1, 1));
    EXPECT_EQ(slices_and_passes_of(one, false, 200), none);
    // Three segments of 14336 in 1.5 GiB have fewer than four tiles for each multiprocessor.
    Problem many = whole;
    many.length = 4 * 14336;
    many.branches = {{.segment = 14336}};
    EXPECT_EQ(slices_and_passes_of(many, false, 0), SlicesAndPasses(1, 1));
    Problem longer = whole;
    longer.length = 39001;
    longer.dim = 128;
    EXPECT_EQ(slices_and_passes_of(longer, false, 0), SlicesAndPasses(10, 2));
    longer.length = 1'000'003;
    for (const bool causal : {false, true})
        EXPECT_GT(slices_and_passes_of(longer, causal, 0), SlicesAndPasses(200, 1));
    // Sums of dK and dV of all segments, or of dQ of all heads, do not fit. So a launch has fewer of them.
    longer.branches = {{.segment = 65536}};
    EXPECT_EQ(slices_and_passes_of(longer, false, 0), SlicesAndPasses(16, 3));
    longer.length = 320'000;
    longer.branches = {{.segment = 22001}};
    longer.heads = 32;
    EXPECT_EQ(slices_and_passes_of(longer, false, 0), SlicesAndPasses(6, 1));
}

// Plans for two kernels that store and multiply dS: the ones of mma/ in 16-bit dtypes for this shared memory.
BackwardPlan pairs_of(const Plan &plan, KeyScope scope, std::uint64_t limit,
                      mma::SharedCapacity capacity = mma::SharedCapacity::kib_227,
                      int multiprocessor_count = multiprocessors, double cycles_per_byte = 0) {
    const int dim = plan.problem().head_dim;
    EXPECT_TRUE(mma::has_storing_kernels(dim, 2, capacity));
    const auto shape_of = [&](bool rows_are_keys) {
        const mma::Shape shape = mma::backward_shape(dim, 2, rows_are_keys, capacity);
        return KernelShape{shape.row_blocks(), shape.range_block_rows, true, shape.ctas};
    };
    const BackwardShapes shapes{shape_of(false), shape_of(true), StoringKernels::two, cycles_per_byte};
    return plan_backward(plan, scope, make_backward_grids(plan, shapes), shapes, multiprocessor_count, limit);
}

// If dS of one segment does not fit, there are passes over its queries, unless these would take longer than computing
// dS twice. With 20,011 rows, one pass has room for one segment of 157 tiles, and two passes for three segments.
TEST(StoredDs, OfTwoKernelsTakesFewPasses) {
    mma::SharedCapacity capacity = mma::SharedCapacity::kib_227;
    const auto passes_of = [&](const Problem &problem, int mib) {
        const Plan plan(pattern_of(problem), plan_problem_of(problem));
        const std::uint64_t limit = static_cast<std::uint64_t>(mib) << 20;
        const BackwardPlan backward = pairs_of(plan, KeyScope::all_keys, limit, capacity);
        EXPECT_TRUE(limit == 0 || backward_bytes(plan, backward) <= limit);
        if (!backward.stores_ds())
            return 0;
        expect_sound(plan, KeyScope::all_keys, backward);
        return backward.stored.front().layout.turns.passes;
    };
    const Problem odd = {.batch = 2,
                         .length = 65542,
                         .heads = 3,
                         .dim = 128,
                         .branches = {{.segment = 32771}},
                         .dtype = ANNULUS_BFLOAT16};
    Problem causal = odd, grouped = odd, dilated = odd, shorter = odd;
    EXPECT_EQ(passes_of(odd, 0), 2);
    EXPECT_EQ(passes_of(odd, 2200), 1);
    EXPECT_EQ(passes_of(odd, 900), 3);
    EXPECT_EQ(passes_of(odd, 200), 0);
    causal.causal = true;
    EXPECT_EQ(passes_of(causal, 0), 1);
    EXPECT_EQ(passes_of(causal, 900), 5);
    EXPECT_EQ(passes_of(causal, 500), 0);
    grouped.heads = 6;
    grouped.kv_heads = 3;
    EXPECT_EQ(passes_of(grouped, 0), 2);
    dilated.length = 68000;
    dilated.branches = {{.segment = 65541, .dilation = 2}};
    EXPECT_EQ(passes_of(dilated, 0), 2);
    Problem uneven = odd;
    uneven.length = 60033;
    uneven.heads = 8;
    uneven.branches = {{.segment = 20011}};
    EXPECT_EQ(passes_of(uneven, 0), 2);
    shorter.length = 16411;
    shorter.branches = {{.segment = 0}};
    EXPECT_EQ(passes_of(shorter, 0), 1);
    EXPECT_EQ(passes_of(shorter, 360), 2);
    EXPECT_EQ(passes_of(shorter, 240), 3);
    EXPECT_EQ(passes_of(shorter, 130), 0);
    // The problems of StoredDsInPasses, which run on GPUs.
    for (const mma::SharedCapacity kernels : {mma::SharedCapacity::kib_227, mma::SharedCapacity::kib_99}) {
        capacity = kernels;
        SCOPED_TRACE(mma::capacity_bytes(capacity));
        Problem batch = {.batch = 2,
                         .length = 16411,
                         .heads = 1,
                         .dim = 72,
                         .branches = {{.segment = 0}},
                         .dtype = ANNULUS_BFLOAT16};
        EXPECT_EQ(passes_of(batch, 360), 2);
        batch.batch = batch.kv_heads = 1;
        batch.heads = 2;
        EXPECT_EQ(passes_of(batch, 360), 2);
        batch.heads = 1;
        batch.length = 24771;
        EXPECT_EQ(passes_of(batch, 480), 3);
        batch.length = 38007;
        batch.branches = {{.segment = 36022, .dilation = 2}};
        EXPECT_EQ(passes_of(batch, 400), 4);
        batch.causal = true;
        batch.length = 24771;
        batch.branches = {{.segment = 0}};
        EXPECT_EQ(passes_of(batch, 500), 2);
        const int three = capacity == mma::SharedCapacity::kib_227 ? 3 : 0;
        batch.length = 16411;
        EXPECT_EQ(passes_of(batch, 160), three);
        batch.length = 14003;
        EXPECT_EQ(passes_of(batch, 130), three);
    }
}

// On GPUs with 99 KiB of shared memory, dS is stored unless memory is too slow. The numbers are of data sheets. On the
// L40S, reading an image of dS takes as long as three products with D = 128, so five products gain nothing.
TEST(StoredDs, OfTwoKernelsWeighsMemory) {
    struct Gpu {
        int multiprocessors;
        double clock_ghz, memory_gb_per_second;
        int least_dim; // of 64, 96 and 128
    };
    constexpr int none = 256;
    for (const Gpu &gpu : {Gpu{82, 1.695, 936, 64}, /* RTX 3090 */ Gpu{84, 1.74, 696, 96}, /* A40 */
                           Gpu{128, 2.52, 1008, 128}, /* RTX 4090 */ Gpu{142, 2.52, 864, none} /* L40S */})
        for (const bool causal : {false, true})
            for (const int dim : {64, 96, 128}) {
                const Problem problem = {.length = 65536,
                                         .heads = 8,
                                         .dim = dim,
                                         .branches = {{.segment = 2048}},
                                         .causal = causal,
                                         .dtype = ANNULUS_BFLOAT16};
                const Plan plan(pattern_of(problem), plan_problem_of(problem));
                const BackwardPlan backward =
                    pairs_of(plan, KeyScope::all_keys, 0, mma::SharedCapacity::kib_99, gpu.multiprocessors,
                             gpu.multiprocessors * gpu.clock_ghz / gpu.memory_gb_per_second);
                EXPECT_EQ(backward.stores_ds(), dim >= gpu.least_dim)
                    << gpu.multiprocessors << " " << causal << " " << dim;
                expect_sound(plan, KeyScope::all_keys, backward);
            }
}

// If the tiles of queries are fewer than multiprocessors, CTAs share the keys of each. If the tiles fill all
// multiprocessors, CTAs do not.
TEST(StoredDs, OfTwoKernelsDividesKeysOfFewTiles) {
    const auto splits_of = [](std::int64_t length, int heads, bool causal, int dim = 128) {
        const Problem problem = {.length = length,
                                 .heads = heads,
                                 .dim = dim,
                                 .branches = {{.segment = 0}},
                                 .causal = causal,
                                 .dtype = ANNULUS_BFLOAT16};
        const BackwardPlan backward =
            pairs_of(Plan(pattern_of(problem), plan_problem_of(problem)), KeyScope::all_keys, 0);
        return backward.stores_ds() ? backward.stored.front().layout.splits : 0;
    };
    EXPECT_EQ(splits_of(32771, 8, false), 2); // 65 tiles in each of two passes
    EXPECT_EQ(splits_of(65537, 8, false), 3);
    EXPECT_EQ(splits_of(32771, 8, true), 2);
    EXPECT_EQ(splits_of(4099, 8, false), 1);
    EXPECT_EQ(splits_of(16411, 8, false), 1); // two cells of 65 tiles
    for (const bool causal : {false, true})
        EXPECT_GT(splits_of(7011, 1, causal, 72), 1); // the problem of StoredDsOfOddLengths, which runs on GPUs
}

// A rank's own rows and the rows of other ranks, whose gradients of keys are partial results anyway.
TEST(StoredDs, OfTwoKernelsOnARank) {
    const Problem problem = {
        .length = 52001, .heads = 2, .dim = 128, .branches = {{.segment = 0}}, .dtype = ANNULUS_BFLOAT16};
    annulus::Problem sizes = plan_problem_of(problem);
    sizes.queries = {0, 27001};
    for (const KeyScope scope : {KeyScope::own_keys, KeyScope::other_keys, KeyScope::last_keys}) {
        sizes.keys = scope == KeyScope::own_keys ? sizes.queries : Window{27001, 25000};
        const Plan plan(pattern_of(problem), sizes);
        const BackwardPlan backward = pairs_of(plan, scope, 0);
        ASSERT_TRUE(backward.stores_ds());
        EXPECT_GT(backward.stored.front().layout.turns.passes, 1);
        EXPECT_FALSE(backward.keys.parts);
        expect_sound(plan, scope, backward);
    }
}

// In each pass there is one image for each pair of row blocks of queries and keys that see one another. Each image has
// a place of its own. Passes take a class's queries from the last to the first.
TEST(StoredDs, PassesShareTheQueries) {
    for (const bool is_triangular : {false, true})
        for (const auto &[all, pass_queries] : {std::pair(12, 12), {12, 4}, {13, 4}, {15, 4}, {9, 8}}) {
            StoredDs stored{};
            stored.batches = stored.heads = stored.head_step = stored.slices = 1;
            stored.segments = 2;
            stored.cells = 3;
            stored.keys = is_triangular ? all : 7;
            stored.queries = pass_queries;
            stored.turns.passes = (all + pass_queries - 1) / pass_queries;
            stored.turns.cells_of_pass = FastDivmod(stored.segments);
            stored.is_triangular = is_triangular;
            std::vector<std::uint8_t> memory(
                static_cast<std::size_t>(stored.cells * stored.images_of_cell() * StoredDs::image_bytes));
            stored.images = memory.data();
            constexpr int dilation = 3, start = 1000, lacking = 5;
            const int queries_of_class = all * row_block_rows - lacking, end = start + queries_of_class * dilation;
            int last = end;
            for (int pass = 0; pass < stored.turns.passes; ++pass) {
                const auto [first, end_of_pass] = stored.queries_of_pass(start, end, dilation, pass);
                EXPECT_EQ(end_of_pass, last);
                EXPECT_EQ(first, start + stored.queries_before(pass) * row_block_rows * dilation);
                last = first;
                const int class_queries = (end_of_pass - first) / dilation;
                const int queries = (class_queries + row_block_rows - 1) / row_block_rows;
                EXPECT_LE(queries, pass_queries);
                for (int segment = 0; segment < stored.segments; ++segment) {
                    const std::int64_t begin = (pass * stored.segments + segment) % stored.cells *
                                               stored.images_of_cell() * StoredDs::image_bytes;
                    std::set<std::int64_t> places;
                    for (int key_block = 0; key_block < stored.keys; ++key_block) {
                        const auto [first_half, distance] = stored.halves(0, 0, segment, key_block, pass);
                        for (int i = 0; i < queries; ++i) {
                            // The block's last query of the class, and the first key.
                            const int query = (first - start) / dilation + class_queries - 1 - (queries - 1 - i) * 64;
                            const bool sees = !is_triangular || query >= key_block * row_block_rows;
                            EXPECT_EQ(sees, i >= stored.hidden(key_block, pass));
                            for (const std::int64_t half : {std::int64_t{0}, sees ? distance : 0}) {
                                const std::int64_t place =
                                    first_half - stored.images + i * StoredDs::half_bytes + half - begin;
                                if (!sees)
                                    continue;
                                EXPECT_TRUE(place >= 0 && place < stored.images_of_cell() * StoredDs::image_bytes);
                                EXPECT_TRUE(places.insert(place).second);
                            }
                        }
                    }
                }
            }
            EXPECT_EQ(last, start);
        }
}

// Nine branches, which need several grids. The grids but the last have only few rows.
TEST(LargePlans, OfSeveralGridsHavePartialResultsOfFewRows) {
    Problem problem = {.heads = 2, .dim = 64, .branches = {}, .dtype = ANNULUS_BFLOAT16};
    for (int i = 0; i < 9; ++i)
        problem.branches.push_back({.segment = 2048LL << 2 * i, .dilation = 1LL << 2 * i});
    for (const std::int64_t length : {std::int64_t{67108864}, std::int64_t{67000001}}) {
        problem.length = length;
        const Plan plan(pattern_of(problem), plan_problem_of(problem));
        const ForwardPlan forward = forward_of(plan, KeyScope::all_keys, 0);
        ASSERT_TRUE(forward.parts);
        EXPECT_EQ(forward.parts->all_rows(), 2 * ((length + 63) / 64));
        expect_sound(plan, KeyScope::all_keys, forward);
        expect_sound(plan, KeyScope::all_keys, backward_of(plan, KeyScope::all_keys, 0));
    }
}

// Returns the range parts of each grid.
std::vector<int> range_parts_of(const std::vector<PlannedGrid> &grids) {
    std::vector<int> parts;
    for (const PlannedGrid &planned : grids)
        parts.push_back(planned.range_parts);
    return parts;
}

// Global queries meet all keys, and global keys meet all queries: one tile for each head. The other pairs of global
// positions are ranges of the window's tiles. So only the rows at global positions have partial results.
TEST(RangeParts, FillTheGpuBesideAWindow) {
    for (const std::int64_t length : {std::int64_t{131072}, std::int64_t{131071}})
        for (const std::int64_t first : {std::int64_t{0}, length / 2, length - 16}) {
            const Problem problem = {.length = length,
                                     .heads = 8,
                                     .dim = 128,
                                     .branches = {window_spec(256, 256), global_spec(first, 16, true)},
                                     .dtype = ANNULUS_BFLOAT16};
            SCOPED_TRACE(testing::Message() << problem);
            const Plan plan(pattern_of(problem), plan_problem_of(problem));
            const ForwardPlan forward = forward_of(plan, KeyScope::all_keys, 0);
            const BackwardPlan backward = backward_of(plan, KeyScope::all_keys, 0);
            expect_sound(plan, KeyScope::all_keys, forward);
            expect_sound(plan, KeyScope::all_keys, backward);
            // The global positions meet the rows before and behind them in two grids. The launches of each fill the
            // multiprocessors.
            const bool is_inside = first > 0 && first < length - 16;
            const std::vector<int> parts = is_inside ? std::vector{16, 16, 1} : std::vector{16, 1};
            EXPECT_EQ(range_parts_of(forward.grids), parts);
            EXPECT_EQ(range_parts_of(backward.queries.grids), parts);
            EXPECT_EQ(range_parts_of(backward.keys.grids), parts);
            ASSERT_TRUE(forward.summed && backward.queries.summed && backward.keys.summed);
            EXPECT_EQ(forward.summed->count(), 16);
            for (const PlannedGrid &planned : forward.grids) {
                EXPECT_LE(planned.tiles.tiles, planned.range_parts > 1 ? 132U : ~0U);
            }
            // The launch over the window is the last one. It adds the partial results of the other launches.
            const PlannedGrid &last = forward.grids.back();
            EXPECT_TRUE(last.is_complete && last.tiles.branch_count == 2);
            for (const Side side : {Side::queries, Side::keys}) {
                const std::vector<Destination> &destinations = backward.side_grids(side).destinations;
                ASSERT_FALSE(destinations.empty());
                EXPECT_EQ(backward.side_grids(side).grids.back().tiles.branch_count, 2);
                EXPECT_EQ(backward.side_grids(side).summed->count(), 16);
                EXPECT_EQ(destinations.front(), Destination::set_partial);
                EXPECT_EQ(destinations.back(), Destination::finish_partial);
            }
        }
}

Problem window_and_global_keys(bool causal) {
    return {.length = 70001,
            .heads = 4,
            .dim = 64,
            .branches = {window_spec(511, 0), global_spec(30011, 5)},
            .causal = causal,
            .dtype = ANNULUS_BFLOAT16};
}

// Global keys are ranges of the other branches' tiles: in forward and for dQ they have no launch of their own.
TEST(GlobalKeys, AreRangesOfOtherTiles) {
    for (const bool causal : {false, true}) {
        const Problem problem = window_and_global_keys(causal);
        const Plan plan(pattern_of(problem), plan_problem_of(problem));
        const ForwardPlan forward = forward_of(plan, KeyScope::all_keys, 0);
        const BackwardPlan backward = backward_of(plan, KeyScope::all_keys, 0);
        expect_sound(plan, KeyScope::all_keys, forward);
        expect_sound(plan, KeyScope::all_keys, backward);
        for (const std::vector<PlannedGrid> *grids : {&forward.grids, &backward.queries.grids}) {
            ASSERT_EQ(grids->size(), 1U);
            EXPECT_EQ(grids->front().tiles.branch_count, 2);
        }
        EXPECT_FALSE(forward.has_own_partial || backward.queries.has_own_partial);
    }
}

// Global keys meet all queries. Only their gradients are sums of two launches.
TEST(GlobalKeys, AloneHavePartialGradients) {
    for (const bool causal : {false, true}) {
        const Problem problem = window_and_global_keys(causal);
        const Plan plan(pattern_of(problem), plan_problem_of(problem));
        const BackwardPlan backward = backward_of(plan, KeyScope::all_keys, 0);
        expect_sound(plan, KeyScope::all_keys, backward);
        ASSERT_TRUE(backward.keys.summed);
        EXPECT_EQ(backward.keys.summed->count(), 5);
        EXPECT_EQ(backward.keys.grids.back().tiles.branch_count, 1);
    }
}

// The rows that a last launch leaves out are written from their partial results.
TEST(RowsOutside, AreThoseOfNoRowBlock) {
    for (const Window &own : {Window{0, 5}, Window{3, 98}, Window{100, 1}, Window{0, 101}}) {
        TileGrid grid{};
        set_windows(own, {0, 101}, 101, grid.sequence);
        const PartialRows rows = rows_outside(grid, 3);
        for (int head = 0; head < 3; ++head)
            for (int position = 0; position < 101; ++position)
                EXPECT_EQ(rows.has(head, position), position < own.start || position >= own.end()) << position;
    }
}

// A step of decoding has a tile for each head. Fewer parts fit into a workspace limit; without parts it is the least.
TEST(RangeParts, AreFewerWithinALimit) {
    const Problem problem = {.batch = 2,
                             .length = 1000003,
                             .heads = 4,
                             .dim = 64,
                             .branches = {{}},
                             .window = QueryWindow{1000002, 1},
                             .dtype = ANNULUS_BFLOAT16};
    const Plan plan(pattern_of(problem), plan_problem_of(problem));
    const ForwardPlan most = forward_of(plan, KeyScope::all_keys, 0);
    EXPECT_EQ(range_parts_of(most.grids), std::vector{16});
    EXPECT_TRUE(most.has_own_partial);
    std::vector<int> found;
    for (const std::uint64_t limit : {forward_bytes(plan, most), forward_bytes(plan, most) / 2, std::size_t{1}}) {
        const ForwardPlan forward = forward_of(plan, KeyScope::all_keys, limit);
        expect_sound(plan, KeyScope::all_keys, forward);
        EXPECT_TRUE(limit == 1 || forward_bytes(plan, forward) <= limit);
        found.push_back(forward.grids.front().range_parts);
    }
    EXPECT_EQ(found[0], 16);
    EXPECT_TRUE(found[1] > 1 && found[1] < 16) << found[1];
    EXPECT_EQ(found[2], 1);
}

// Range parts would only cost time: few keys, few keys that a query sees, a tile for each multiprocessor, padding keys.
TEST(RangeParts, AreLeftOutWhereTheySaveNothing) {
    const Problem decoding = {.length = 1000003,
                              .heads = 2,
                              .dim = 64,
                              .branches = {{}},
                              .window = QueryWindow{1000002, 1},
                              .dtype = ANNULUS_BFLOAT16};
    std::vector<Problem> problems(5, decoding);
    problems[0].length = 3001;
    problems[0].window = QueryWindow{3000, 1};
    problems[1].branches = {window_spec(2000, 0)};
    problems[2].causal = true;
    problems[2].window = QueryWindow{2000, 1};
    problems[3].heads = 100;
    problems[4].zero_keys = true;
    problems[4].branches = {{.segment = 700000}};
    for (const Problem &problem : problems) {
        SCOPED_TRACE(testing::Message() << problem);
        const Plan plan(pattern_of(problem), plan_problem_of(problem));
        EXPECT_EQ(range_parts_of(forward_of(plan, KeyScope::all_keys, 0).grids), std::vector{1});
    }
}

// On a rank, range parts are merged into the partial results that all key scopes share.
TEST(RangeParts, AreThoseOfARank) {
    for (const bool keys_once : {false, true}) {
        const Problem problem = {.length = 500009,
                                 .heads = 4,
                                 .kv_heads = 2,
                                 .dim = 64,
                                 .branches = {window_spec(100, 30), global_spec(77, 13, true)},
                                 .keys_once = keys_once,
                                 .dtype = ANNULUS_BFLOAT16};
        annulus::Problem sizes = plan_problem_of(problem);
        sizes.queries = {0, 100003};
        for (const KeyScope scope : {KeyScope::own_keys, KeyScope::other_keys, KeyScope::last_keys}) {
            sizes.keys = scope == KeyScope::own_keys ? sizes.queries : Window{200000, 100003};
            SCOPED_TRACE(testing::Message() << problem << " key scope " << static_cast<int>(scope));
            const Plan plan(pattern_of(problem), sizes);
            const ForwardPlan forward = forward_of(plan, scope, 0);
            expect_sound(plan, scope, forward);
            const BackwardPlan backward = backward_of(plan, scope, 0);
            expect_sound(plan, scope, backward);
            const auto most = [](const std::vector<PlannedGrid> &grids) {
                return std::ranges::max(range_parts_of(grids));
            };
            EXPECT_GT(most(forward.grids), 1);
            EXPECT_GT(most(backward.queries.grids), 1);
            EXPECT_EQ(most(backward.keys.grids) > 1, scope == KeyScope::own_keys);
        }
    }
}

// Nine branches, each of all rows. If the rows of a head do not fit, they are cut into parts, one after the other.
TEST(LargePlans, OfSeveralGridsAreCutByRows) {
    Problem problem = {.heads = 2, .dim = 64, .branches = {}, .dtype = ANNULUS_BFLOAT16};
    for (int i = 0; i < 9; ++i)
        problem.branches.push_back({.segment = 64LL << 2 * i});
    const auto expect_parts_in_order = [](const auto &steps, const Window &rows, const auto &is_of_side) {
        std::int64_t end = rows.start;
        for (const auto &step : steps) {
            if (!step.launch.part || !is_of_side(step) || step.launch.grid != 0)
                continue;
            const Window &part = step.launch.part->rows;
            EXPECT_EQ(part.start, end == rows.end() ? rows.start : end);
            end = part.end();
        }
        EXPECT_EQ(end, rows.end());
    };
    for (const bool causal : {false, true})
        for (const std::int64_t length : {std::int64_t{67108864}, std::int64_t{67000001}}) {
            problem.length = length;
            problem.causal = causal;
            const Plan plan(pattern_of(problem), plan_problem_of(problem));
            const std::uint64_t statistics = static_cast<std::uint64_t>(length) * 2 * 2 * sizeof(float);
            for (const std::uint64_t limit : {std::uint64_t{0}, std::uint64_t{100} << 20, std::uint64_t{3} << 20}) {
                const std::uint64_t most = limit ? limit : (std::uint64_t{1} << 30) + 4096; // for counters
                const ForwardPlan forward = forward_of(plan, KeyScope::all_keys, limit);
                ASSERT_TRUE(forward.parts);
                EXPECT_LE(forward_bytes(plan, forward), most);
                expect_sound(plan, KeyScope::all_keys, forward);
                expect_parts_in_order(forward.steps, plan.problem().queries, [](const auto &) { return true; });
                const BackwardPlan backward = backward_of(plan, KeyScope::all_keys, limit ? limit + statistics : 0);
                EXPECT_LE(backward_bytes(plan, backward), most + statistics);
                expect_sound(plan, KeyScope::all_keys, backward);
                for (const Side side : {Side::queries, Side::keys}) {
                    ASSERT_TRUE(backward.side_grids(side).parts);
                    expect_parts_in_order(backward.steps, window_of(plan.problem(), side),
                                          [&](const BackwardStep &step) { return step.side == side; });
                }
            }
        }
}

// For D <= 128, the products' launches write the zeros, and no launch does so before. If dS is stored, each launch
// writes a part.
TEST(LargePlans, ClearRowsBesideProducts) {
    Problem problem = {.heads = 8, .branches = {{.segment = 8192, .dilation = 4}}, .dtype = ANNULUS_BFLOAT16};
    const auto clears = [](const auto &step) { return step.launch.clears.parts > 0; };
    for (const annulus_order order : {ANNULUS_ORDER_LINEAR, ANNULUS_ORDER_HILBERT})
        for (const auto &[length, dim] :
             {std::pair(262144, 64), {250001, 64}, {262144, 128}, {250001, 128}, {250001, 192}}) {
            problem.length = length;
            problem.dim = dim;
            problem.branches.front().order = order;
            const bool beside = dim <= 128;
            const Plan plan(pattern_of(problem), plan_problem_of(problem));
            const ForwardPlan forward = forward_of(plan, KeyScope::all_keys, 0);
            const BackwardPlan backward = backward_of(plan, KeyScope::all_keys, 0);
            EXPECT_EQ(std::ranges::count(forward.steps, ForwardAction::clear_outputs, &ForwardStep::action), !beside);
            EXPECT_EQ(std::ranges::count_if(forward.steps, clears), beside);
            EXPECT_EQ(std::ranges::count(backward.steps, BackwardAction::clear_gradients, &BackwardStep::action),
                      beside ? 0 : 2);
            const auto launches =
                std::ranges::count(backward.steps, BackwardAction::find_gradients, &BackwardStep::action);
            EXPECT_EQ(std::ranges::count_if(backward.steps, clears), beside ? launches : 0);
            EXPECT_EQ(backward.stores_ds(), dim == 128);
            expect_sound(plan, KeyScope::all_keys, forward);
            expect_sound(plan, KeyScope::all_keys, backward);
        }
}

// dS of a query and 2048 keys is 4 KiB, or half of that under causality. Zeros of three tensors are 768 bytes for each
// other row.
TEST(LargePlans, StoreNoDsBesideMoreZeros) {
    for (const bool causal : {false, true})
        for (const std::int64_t dilation : {2, 3, 4, 8, 13, 16})
            for (const std::int64_t keys :
                 {16 * 2048, 15 * 2048 + 5 * 64}) { // keys of a class; the second number has a short last segment
                const Problem problem = {.length = keys * dilation,
                                         .heads = 16,
                                         .dim = 128,
                                         .branches = {{.segment = 2048 * dilation, .dilation = dilation}},
                                         .causal = causal,
                                         .dtype = ANNULUS_BFLOAT16};
                const Plan plan(pattern_of(problem), plan_problem_of(problem));
                const BackwardPlan backward = backward_of(plan, KeyScope::all_keys, 0);
                EXPECT_EQ(backward.stores_ds(), dilation < (causal ? 4 : 8));
                expect_sound(plan, KeyScope::all_keys, backward);
            }
}

// Other calls of a rank write the rows of the sequences that it shares.
TEST(PlansOfSequences, LeaveRowsOfOtherCalls) {
    const auto clears = [](OtherRows other_rows) {
        return std::ranges::count(forward_of_sequences(other_rows).steps, ForwardAction::clear_outputs,
                                  &ForwardStep::action);
    };
    EXPECT_EQ(clears(OtherRows::clear), 1);
    EXPECT_EQ(clears(OtherRows::leave), 0);
}

// On a rank, the part with the own keys is split like a whole call, and leaves the same rows partial as without a
// split.
TEST(LargePlans, AreSplitOnARank) {
    for (const bool causal : {false, true}) {
        Problem problem = large_split_problem(causal);
        annulus::Problem shard = plan_problem_of(problem);
        shard.queries = shard.keys = {0, 131101};
        const Plan plan(pattern_of(problem), shard);
        const ForwardPlan forward = forward_of(plan, KeyScope::own_keys, 0);
        const BackwardPlan backward = backward_of(plan, KeyScope::own_keys, 0);
        EXPECT_EQ(forward.grids.size(), 2U);
        EXPECT_TRUE(backward.queries.is_split && backward.keys.is_split);
        expect_sound(plan, KeyScope::own_keys, forward);
        expect_sound(plan, KeyScope::own_keys, backward);
        for (const auto &[what, grids] : {std::pair(GridResult::outputs, &forward.grids),
                                          {GridResult::query_gradients, &backward.queries.grids},
                                          {GridResult::key_gradients, &backward.keys.grids}}) {
            const std::vector<PlannedGrid> whole = make_grids(plan, what, forward_shape(problem.dim));
            EXPECT_EQ(grids->back().tiles.rows_left_partial,
                      rows_with_more_ranges(whole.front().tiles, what, largest_dilation(whole)));
            EXPECT_EQ(grids->front().tiles.rows_left_partial, PartialRows{});
        }
    }
}

// The branches need several grids. For a rank's own keys there are two, although three would take less time.
TEST(LargePlans, AreCutInTwoOnARank) {
    for (const int count : {7, 8}) {
        Problem problem = {.length = 16000001, .dim = 64, .branches = {}, .dtype = ANNULUS_BFLOAT16};
        for (int i = 0; i < count; ++i)
            problem.branches.push_back({.segment = 2048LL << 2 * i, .dilation = 1LL << 2 * i});
        annulus::Problem shard = plan_problem_of(problem);
        EXPECT_EQ(forward_of(Plan(pattern_of(problem), shard), KeyScope::all_keys, 0).grids.size(),
                  count == 7 ? 2U : 3U);
        shard.queries = shard.keys = {0, (1 << 23) + 101};
        const Plan plan(pattern_of(problem), shard);
        const ForwardPlan forward = forward_of(plan, KeyScope::own_keys, 0);
        const BackwardPlan backward = backward_of(plan, KeyScope::own_keys, 0);
        EXPECT_TRUE(is_split_part(forward));
        EXPECT_TRUE(backward.queries.is_split && backward.keys.is_split);
        expect_sound(plan, KeyScope::own_keys, forward);
        expect_sound(plan, KeyScope::own_keys, backward);
    }
}

// A grid has only those rows of a long shard that share a segment with the keys at its border.
TEST(LargePlans, VisitNoRowsWithoutKeys) {
    const Problem problem = {.length = 262147,
                             .heads = 2,
                             .dim = 32,
                             .branches = {{.segment = 2000}, {.segment = 9000, .dilation = 4}},
                             .dtype = ANNULUS_BFLOAT16};
    annulus::Problem sizes = plan_problem_of(problem);
    sizes.keys = {131000 - 500, 500};
    sizes.queries = {131000, 131147};
    const Plan plan(pattern_of(problem), sizes);
    const ForwardPlan forward = forward_of(plan, KeyScope::other_keys, 0);
    const BackwardPlan backward = backward_of(plan, KeyScope::other_keys, 0);
    for (const std::vector<PlannedGrid> *grids : {&forward.grids, &backward.queries.grids}) {
        ASSERT_EQ(grids->size(), 1U);
        const SequenceGrid &sequence = grids->front().tiles.sequence;
        EXPECT_EQ(sequence.row_start, 131000);
        EXPECT_EQ(sequence.row_count, 15 * 9000 - 131000);
        EXPECT_FALSE(grids->front().is_complete);
    }
    expect_sound(plan, KeyScope::other_keys, forward);
    expect_sound(plan, KeyScope::other_keys, backward);
}

// A few branches reach far into other ranks' keys. Branches of short segments reach only the border.
TEST(LargePlans, AreSplitOverOtherKeys) {
    const Problem problem = {.length = 70000,
                             .heads = 16,
                             .dim = 48,
                             .branches = {{.segment = 1024},
                                          {.segment = 5792, .dilation = 2},
                                          {.segment = 32768, .dilation = 4},
                                          {.segment = 185363, .dilation = 8},
                                          {.segment = 1048576, .dilation = 16}},
                             .dtype = ANNULUS_BFLOAT16};
    annulus::Problem sizes = plan_problem_of(problem);
    sizes.queries = {0, 35000};
    sizes.keys = {35000, 35000};
    const Plan plan(pattern_of(problem), sizes);
    for (const KeyScope scope : {KeyScope::other_keys, KeyScope::last_keys}) {
        const ForwardPlan forward = forward_of(plan, scope, 0);
        const BackwardPlan backward = backward_of(plan, scope, 0);
        for (const std::vector<PlannedGrid> *grids : {&forward.grids, &backward.queries.grids, &backward.keys.grids}) {
            ASSERT_EQ(grids->size(), 2U);
            EXPECT_LT(grids->front().tiles.sequence.row_count, 5792);
            EXPECT_EQ(grids->back().tiles.sequence.row_count, 35000);
        }
        expect_sound(plan, scope, forward);
        expect_sound(plan, scope, backward);
    }
}

// A rank's rows are part of the only segment. A class has whole blocks of rows, or not.
TEST(LargePlans, StoreDsOnARank) {
    for (const bool causal : {false, true})
        for (const std::int64_t odd : {0, 1}) {
            const Problem problem = {.batch = 2,
                                     .length = 8192,
                                     .heads = 4,
                                     .kv_heads = 2,
                                     .dim = 128,
                                     .branches = {{.dilation = 2}},
                                     .causal = causal,
                                     .dtype = ANNULUS_BFLOAT16};
            annulus::Problem sizes = plan_problem_of(problem);
            sizes.queries = sizes.keys = {4096, 4096 - odd};
            const Plan own(pattern_of(problem), sizes);
            sizes.keys = {0, 2048};
            annulus::Pattern visible = pattern_of(problem);
            visible.causal = false; // as rank_plan.hpp does
            const Plan others(visible, sizes);
            for (const auto &[plan, scope] : {std::pair(&own, KeyScope::own_keys),
                                              {&others, KeyScope::other_keys},
                                              {&others, KeyScope::last_keys}}) {
                const BackwardPlan backward = backward_of(*plan, scope, 0);
                EXPECT_TRUE(backward.stores_ds());
                expect_sound(*plan, scope, backward);
            }
        }
}

// One branch along a curve needs the steps and the workspace of a linear order, and a permutation. That is of a whole
// segment and of the last one. Causality needs scratch of the same length to find it.
TEST(LargePlans, TakeAnOrderMoreAlongACurve) {
    for (const std::int64_t length : {std::int64_t{262144}, std::int64_t{250001}})
        for (const std::int32_t dim : {64, 128})
            for (const bool causal : {false, true}) {
                Problem line = {.length = length,
                                .heads = 16,
                                .dim = dim,
                                .branches = {{.segment = 8192, .dilation = 2}},
                                .causal = causal,
                                .dtype = ANNULUS_BFLOAT16};
                Problem curve = line;
                curve.branches.front().order = ANNULUS_ORDER_HILBERT;
                const Plan along_line(pattern_of(line), plan_problem_of(line));
                const Plan along_curve(pattern_of(curve), plan_problem_of(curve));
                Workspace orders;
                for (int i = 0; i < (causal ? 2 : 1); ++i)
                    orders.take<int>(8192 + length % 8192);
                const ForwardPlan forward = forward_of(along_curve, KeyScope::all_keys, 0);
                EXPECT_FALSE(forward.has_own_partial);
                EXPECT_EQ(forward_bytes(along_curve, forward),
                          forward_bytes(along_line, forward_of(along_line, KeyScope::all_keys, 0)) + orders.used());
                const BackwardPlan backward = backward_of(along_curve, KeyScope::all_keys, 0);
                EXPECT_EQ(backward.stores_ds(), dim == 128);
                EXPECT_FALSE(backward.queries.has_own_partial || backward.keys.has_own_partial);
                EXPECT_EQ(backward_bytes(along_curve, backward),
                          backward_bytes(along_line, backward_of(along_line, KeyScope::all_keys, 0)) + orders.used());
                expect_sound(curve);
            }
}

// Segments of 7 positions, the last of which has 3, with permutations that only the test knows.
TEST(NumbersAlongACurve, StandForPositionsOfTheirSegments) {
    TileGrid grid{};
    grid.branches[0].length = FastDivmod(7);
    grid.branch_count = 1;
    grid.sequence.sequence_length = 17;
    const std::vector<int> numbers{0, 1, 6, 7, 13, 14, 15, 16};
    const auto positions = [&]<RowOrder order>() {
        std::vector<int> found;
        for (const int number : numbers)
            found.push_back(grid.position_of<order>(number));
        return found;
    };
    EXPECT_EQ(positions.operator()<RowOrder::either>(), numbers);
    const int order[] = {3, 0, 6, 1, 5, 2, 4, 2, 0, 1};
    grid.order = order;
    const std::vector<int> along{3, 0, 4, 7 + 3, 7 + 4, 14 + 2, 14 + 0, 14 + 1};
    EXPECT_EQ(positions.operator()<RowOrder::either>(), along);
    EXPECT_EQ(positions.operator()<RowOrder::along_curve>(), along);
    EXPECT_EQ(positions.operator()<RowOrder::linear>(), numbers);
    for (const int number : numbers) {
        const auto [start, segment_order] = grid.order_of_segment(number);
        EXPECT_EQ(start, number / 7 * 7);
        EXPECT_EQ(segment_order, order + (number < 14 ? 0 : 7));
    }
}

// The packed rows of the two sides share one place, one side after the other.
TEST(LargePlans, StoreNoDsWhereRowsArePacked) {
    const Problem problem = {.length = 16384,
                             .heads = 4,
                             .dim = 128,
                             .branches = {{.segment = 8192, .dilation = 4, .order = ANNULUS_ORDER_HILBERT}},
                             .dtype = ANNULUS_BFLOAT16};
    const Plan plan(pattern_of(problem), plan_problem_of(problem));
    EXPECT_TRUE(backward_of(plan, KeyScope::all_keys, 0).stores_ds());
    const BackwardPlan packed = backward_of(plan, KeyScope::all_keys, 0, true);
    EXPECT_FALSE(packed.stores_ds());
    EXPECT_TRUE(packed.queries.has_own_partial && packed.keys.has_own_partial);
    EXPECT_EQ(std::ranges::count(packed.steps, BackwardAction::pack_ranges, &BackwardStep::action), 2);
}

// Stored dS knows segments alone.
TEST(LargePlans, StoreNoDsOfWindows) {
    const Problem problem = {
        .length = 16384, .heads = 4, .dim = 128, .branches = {window_spec(4095, 0)}, .dtype = ANNULUS_BFLOAT16};
    EXPECT_FALSE(backward_of(Plan(pattern_of(problem), plan_problem_of(problem)), KeyScope::all_keys, 0).stores_ds());
}

// Branches are split and dS is stored, in parts if the limit needs it.
TEST(LargePlans, AreSound) {
    const std::vector<BranchSpec> stored = {{.segment = 2048}};
    for (const bool causal : {false, true}) {
        const Problem with_split = large_split_problem(causal);
        const Plan split_plan(pattern_of(with_split), plan_problem_of(with_split));
        EXPECT_TRUE(forward_of(split_plan, KeyScope::all_keys, 0).parts);
        EXPECT_TRUE(backward_of(split_plan, KeyScope::all_keys, 0).queries.parts);
        expect_sound(with_split);
        for (const std::int32_t kv_heads : {4, 2}) {
            const Problem with_stored = {.batch = 2,
                                         .length = 65536,
                                         .heads = 4,
                                         .kv_heads = kv_heads,
                                         .dim = 128,
                                         .branches = stored,
                                         .causal = causal,
                                         .dtype = ANNULUS_BFLOAT16};
            const Plan stored_plan(pattern_of(with_stored), plan_problem_of(with_stored));
            EXPECT_TRUE(backward_of(stored_plan, KeyScope::all_keys, 0).stores_ds());
            expect_sound(with_stored);
        }
    }
}

} // namespace
} // namespace annulus::test
