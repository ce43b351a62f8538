// SPDX-License-Identifier: Apache-2.0
#include "cuda/fused/plan/shard_sums.hpp"

#include "cuda/results/device_summed_rows.hpp"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace annulus {

namespace {

SummedInterval interval_of(const GridBranch &branch, const Window &rows) {
    return {rows,
            branch.length.value,
            branch.row_rule == ANNULUS_QUERY_DILATED ? branch.dilation.value : 1,
            branch.first_head,
            branch.head_count,
            branch.first_phase,
            branch.heads_of_phase.value};
}

// Adds the intervals of the rows of a shard that PartialRows::has() knows.
void add_intervals(const PartialRows &left, const Window &shard, std::vector<SummedInterval> &intervals) {
    for (const GridBranch &branch : std::span(left.branches, static_cast<std::size_t>(left.branch_count))) {
        const auto segment_at = [&](std::int64_t position) {
            return Window{position - position % branch.length.value, branch.length.value};
        };
        const auto add = [&](const Window &rows) {
            if (const Window inside = intersect(rows, shard); inside.length > 0)
                intervals.push_back(interval_of(branch, inside));
        };
        if (const Window first = segment_at(shard.start); first.start < left.window_start)
            add(branch.is_window ? intersect(first, {left.window_start, branch.before}) : first);
        if (const Window last = segment_at(shard.end() - 1); last.end() > left.window_end)
            add(branch.is_window ? intersect(last, {std::int64_t{left.window_end} - branch.after, branch.after})
                                 : last);
    }
}

// True if the launches may store dS. Then the workspace limit may demand several passes, which leave partial results of
// all keys.
bool may_store_ds(const std::vector<PlannedGrid> &keys) {
    return keys.size() == 1 && keys.front().tiles.branch_count == 1 && !keys.front().tiles.has_windows;
}

} // namespace

std::optional<SummedRows> summed_rows_of_grids(const std::vector<PlannedGrid> &grids, const Window &rows) {
    std::vector<SummedInterval> intervals;
    for (const PlannedGrid &planned : std::span(grids).first(grids.size() - 1))
        for (const GridBranch &branch : branches_of(planned.tiles))
            intervals.push_back(interval_of(branch, rows));
    add_intervals(grids.back().tiles.rows_left_partial, rows, intervals);
    SummedRows summed(std::move(intervals));
    if (summed.count() >= rows.length || summed.intervals().size() > DeviceSummedRows::max_intervals)
        return std::nullopt;
    return summed;
}

ShardSums summed_rows(const Plan &shard, const ForwardPlan &own_keys) {
    const bool finishes = std::ranges::any_of(own_keys.steps, [](const ForwardStep &step) {
        return step.launch.destination == Destination::outputs_or_partial;
    });
    if (!finishes)
        return {};
    return {summed_rows_of_grids(own_keys.grids, shard.problem().queries), {}};
}

ShardSums summed_rows(const Plan &shard, const BackwardPlan &own_keys) {
    ShardSums sums;
    if (own_keys.queries.finishes)
        sums.queries = summed_rows_of_grids(own_keys.queries.grids, shard.problem().queries);
    if (own_keys.keys.finishes && !may_store_ds(own_keys.keys.grids))
        sums.keys = summed_rows_of_grids(own_keys.keys.grids, shard.problem().keys);
    return sums;
}

} // namespace annulus
