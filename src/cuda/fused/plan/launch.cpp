// SPDX-License-Identifier: Apache-2.0
#include "cuda/fused/plan/launch.hpp"

#include "cuda/fused/plan/range_parts.hpp"
#include "cuda/fused/plan/tuning.hpp"
#include "cuda/fused/schedule/rows_to_clear.hpp"
#include "cuda/results/device_summed_rows.hpp"

#include <algorithm>
#include <climits>
#include <functional>
#include <span>
#include <utility>

namespace annulus {

bool share_partial_results(const std::vector<PlannedGrid> &grids) {
    return grids.size() > 1 || (!grids.empty() && grids.front().is_packed) || has_range_parts(grids);
}

bool must_clear(const std::vector<PlannedGrid> &grids, bool are_all_partial) {
    return grids.empty() || !(grids.front().is_complete || (grids.front().leaves_rows && !are_all_partial));
}

bool finishes_rows(const Plan &plan, KeyScope scope, const std::vector<PlannedGrid> &grids) {
    return may_finish_rows(plan, scope) && grids.size() == 1 && !grids.front().curve;
}

void set_rows_left_partial(GridResult what, std::vector<PlannedGrid> &grids) {
    TileGrid &grid = grids.front().tiles;
    grid.rows_left_partial = rows_with_more_ranges(grid, what, largest_dilation(grids));
}

bool clears_beside(const Problem &problem, const std::vector<PlannedGrid> &grids, const KernelShape &shape,
                   std::int64_t rows) {
    const std::int64_t pieces = RowsToClear::max_tensors * problem.batch *
                                divide_up(problem.heads, RowsToClear::piece_heads) *
                                divide_up(rows, RowsToClear::piece_rows);
    return shape.clears_rows && problem.key_stride == 1 && grids.size() == 1 && grids.front().sequences.empty() &&
           pieces > 0 && pieces <= INT_MAX;
}

std::optional<FinishingLaunches> finish_with_last(const Problem &problem, const Window &rows,
                                                  std::vector<PlannedGrid> &grids) {
    const auto is_plain = [](const PlannedGrid &planned) {
        return !planned.curve && (planned.sequences.empty() || planned.range_parts > 1);
    };
    if (grids.size() < 2 || !std::ranges::all_of(grids, is_plain))
        return std::nullopt;
    const auto rows_of = [](const PlannedGrid &planned) {
        return Window{planned.tiles.sequence.row_start, planned.tiles.sequence.row_count};
    };
    std::vector<PlannedGrid> ordered = grids;
    std::ranges::stable_sort(ordered, std::greater(),
                             [&](const PlannedGrid &planned) { return rows_of(planned).length; });
    const auto last = std::ranges::find_if(
        ordered, [](const PlannedGrid &planned) { return planned.fills_rows && planned.range_parts == 1; });
    if (last == ordered.end())
        return std::nullopt;
    std::rotate(last, last + 1, ordered.end());
    FinishingLaunches result;
    std::vector<Window> set; // the windows of rows that have partial results; they are apart
    std::int64_t set_rows = 0;
    for (const PlannedGrid &planned : std::span(ordered).first(ordered.size() - 1)) {
        const Window own = rows_of(planned);
        const auto meets = [&](const Window &other) { return intersect(own, other).length > 0; };
        const auto contains = [&](const Window &other) { return intersect(own, other) == own; };
        const bool sets = planned.fills_rows && std::ranges::none_of(set, meets);
        if (!sets && std::ranges::none_of(set, contains))
            return std::nullopt;
        result.destinations.push_back(sets ? Destination::set_partial : Destination::add_to_partial);
        if (sets) {
            set.push_back(own);
            set_rows += own.length;
        }
    }
    if (set_rows < rows.length) {
        if (rows_of(ordered.back()) != rows || set.size() > DeviceSummedRows::max_intervals)
            return std::nullopt;
        std::vector<SummedInterval> intervals;
        for (const Window &window : set)
            intervals.push_back({window, problem.sequence_length, 1, 0, problem.heads, 0, 1});
        result.summed.emplace(std::move(intervals));
    }
    result.destinations.push_back(Destination::finish_partial);
    grids = std::move(ordered);
    return result;
}

Destination next_destination(bool has_partial, bool finishes, bool sets) {
    if (!has_partial)
        return Destination::outputs;
    if (finishes)
        return Destination::outputs_or_partial;
    return sets ? Destination::set_partial : Destination::add_to_partial;
}

std::size_t room_within(std::uint64_t limit, std::size_t used) {
    return limit == 0 ? tuning::usual_room : std::max<std::size_t>(limit, used) - used;
}

} // namespace annulus
