// SPDX-License-Identifier: Apache-2.0
#include "cuda/fused/plan/launch.hpp"

#include "cuda/fused/plan/tuning.hpp"
#include "cuda/fused/schedule/rows_to_clear.hpp"

#include <algorithm>
#include <climits>

namespace annulus {

bool share_partial_results(const std::vector<PlannedGrid> &grids) {
    return grids.size() > 1 || (!grids.empty() && grids.front().is_packed);
}

bool finishes_rows(KeyScope scope, const std::vector<PlannedGrid> &grids) {
    return scope == KeyScope::own_keys && grids.size() == 1 && !grids.front().curve;
}

void set_rows_left_partial(GridResult what, std::vector<PlannedGrid> &grids) {
    TileGrid &grid = grids.front().tiles;
    grid.rows_left_partial = rows_with_more_ranges(grid, what);
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

std::optional<SplitParts> heads_within(const SplitRows &all, std::size_t room) {
    const auto rows = static_cast<std::size_t>(partial_rows_of(all.rows, all.stride));
    const std::size_t head_bytes = std::max<std::size_t>(rows * all.row_bytes, 1);
    const auto max_heads = static_cast<std::int64_t>(room / head_bytes);
    if (max_heads == 0)
        return std::nullopt;
    if (max_heads < all.heads)
        return SplitParts{1, static_cast<int>(divide_up(all.heads, divide_up(all.heads, max_heads))), all.rows,
                          all.stride};
    return SplitParts{static_cast<int>(std::min<std::int64_t>(all.batches, max_heads / all.heads)), all.heads, all.rows,
                      all.stride};
}

std::optional<SplitParts> rows_within(const SplitRows &all, std::size_t room,
                                      std::initializer_list<std::int64_t> multiples) {
    const auto max_rows = static_cast<std::int64_t>(room / all.row_bytes);
    const auto multiple = std::ranges::find_if(multiples, [&](std::int64_t x) { return x <= max_rows; });
    if (multiple == multiples.end())
        return std::nullopt;
    const std::int64_t pieces = divide_up(all.rows, *multiple);
    const std::int64_t parts = divide_up(pieces, max_rows / *multiple);
    return SplitParts{1, 1, static_cast<int>(std::min<std::int64_t>(all.rows, divide_up(pieces, parts) * *multiple))};
}

std::int64_t count_parts(const SplitParts &parts, const SplitRows &all) {
    return divide_up(all.batches, std::max(parts.batches, 1)) * divide_up(all.heads, std::max(parts.heads, 1)) *
           divide_up(all.rows, std::max(parts.rows, 1));
}

std::size_t room_within(std::uint64_t limit, std::size_t used) {
    return limit == 0 ? tuning::usual_room : std::max<std::size_t>(limit, used) - used;
}

} // namespace annulus
