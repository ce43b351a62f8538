// SPDX-License-Identifier: Apache-2.0
#include "cuda/fused/plan/launch.hpp"

#include "cuda/fused/plan/range_parts.hpp"
#include "cuda/fused/plan/tuning.hpp"
#include "cuda/fused/schedule/rows_to_clear.hpp"

#include <algorithm>
#include <climits>

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
