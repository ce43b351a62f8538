// SPDX-License-Identifier: Apache-2.0
#include "cuda/fused/plan/launch.hpp"

#include "cuda/fused/schedule/rows_to_clear.hpp"

#include <algorithm>
#include <climits>

namespace annulus {

bool share_partial_results(const std::vector<PlannedGrid> &grids) {
    return grids.size() > 1 || (!grids.empty() && grids.front().is_packed);
}

bool finishes_rows(CallPart part, const std::vector<PlannedGrid> &grids) {
    return part == CallPart::own_keys && grids.size() == 1 && !grids.front().curve;
}

void set_rows_left_partial(GridOf what, std::vector<PlannedGrid> &grids) {
    TileGrid &grid = grids.front().tiles;
    grid.rows_left_partial = rows_with_more_ranges(grid, what);
}

bool clears_beside(const Problem &problem, const std::vector<PlannedGrid> &grids, const KernelShape &shape,
                   std::int64_t rows) {
    const std::int64_t pieces = RowsToClear::most_tensors * problem.batch *
                                divide_up(problem.heads, RowsToClear::piece_heads) *
                                divide_up(rows, RowsToClear::piece_rows);
    return shape.clears_rows && problem.key_stride == 1 && grids.size() == 1 && !grids.front().curve &&
           grids.front().sequences.empty() && pieces > 0 && pieces <= INT_MAX;
}

Destination next_destination(bool has_partial, bool finishes, bool sets) {
    if (!has_partial)
        return Destination::outputs;
    if (finishes)
        return Destination::outputs_or_partial;
    return sets ? Destination::set_partial : Destination::add_to_partial;
}

std::optional<HeadParts> parts_within(std::int64_t batches, int heads, std::size_t bytes_of_head, std::size_t room) {
    const auto most = static_cast<std::int64_t>(room / std::max<std::size_t>(bytes_of_head, 1));
    if (most == 0)
        return std::nullopt;
    if (most < heads)
        return HeadParts{1, static_cast<int>(divide_up(heads, divide_up(heads, most)))};
    return HeadParts{static_cast<int>(std::min<std::int64_t>({batches, most / heads, INT_MAX})), heads};
}

std::int64_t count_parts(const HeadParts &parts, std::int64_t batches, int heads) {
    return divide_up(batches, std::max(parts.batches, 1)) * divide_up(heads, std::max(parts.heads, 1));
}

std::size_t room_within(std::uint64_t limit, std::size_t used) {
    return limit == 0 ? usual_room : std::max<std::size_t>(limit, used) - used;
}

} // namespace annulus
