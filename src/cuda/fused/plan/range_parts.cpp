// SPDX-License-Identifier: Apache-2.0
#include "cuda/fused/plan/range_parts.hpp"

#include "core/progression.hpp"
#include "cuda/fused/plan/sequence_grids.hpp"
#include "cuda/fused/plan/tuning.hpp"

#include <algorithm>

namespace annulus {

namespace {

// The range rows that the tiles of a grid may meet.
class MetRanges {
  public:
    MetRanges(const TileGrid &grid, const KernelShape &shape) : grid_(grid), shape_(shape) {
        const SequenceGrid &sequence = grid.sequence;
        const Window ranges{sequence.range_start, sequence.range_count};
        std::int64_t start = ranges.end(), end = ranges.start;
        for (const GridBranch &branch : branches_of(grid)) {
            const Window own = intersect(ranges, positions_of(branch));
            if (own.length == 0)
                continue;
            start = std::min(start, own.start);
            end = std::max(end, own.end());
        }
        positions_ = {start, std::max<std::int64_t>(end - start, 0)};
    }

    // The positions that all tiles together reach.
    const Window &positions() const { return positions_; }

    // Returns the greatest number of range rows that a tile meets among `length` consecutive positions.
    std::int64_t met_rows(std::int64_t length) const {
        std::int64_t rows = 0;
        for (const GridBranch &branch : branches_of(grid_)) {
            const std::int64_t tile_rows =
                std::int64_t{shape_.row_blocks} * row_block_rows * branches_of(grid_).back().dilation.value;
            const std::int64_t span = std::min<std::int64_t>(tile_rows, grid_.sequence.row_count);
            rows += std::min({length, std::int64_t{branch.length.value}, span + branch.before + branch.after,
                              std::int64_t{branch.range_end} - branch.range_start}) /
                    branch.range_dilation.value;
        }
        return rows;
    }

  private:
    // Returns the positions that the rows of the grid reach in a branch, also beyond the range rows that there are.
    Window positions_of(const GridBranch &branch) const {
        const std::int64_t first = grid_.sequence.row_start, last = first + grid_.sequence.row_count - 1,
                           length = branch.length.value;
        const std::int64_t start = std::max(first / length * length, first - branch.before),
                           end = std::min((last / length + 1) * length, last + branch.after + 1);
        return intersect(Window{start, std::max<std::int64_t>(end - start, 0)},
                         Window{branch.range_start, branch.range_end - branch.range_start});
    }

    const TileGrid &grid_;
    const KernelShape &shape_;
    Window positions_{};
};

// True if the parts of a grid may be merged row by row, in an order of positions, with few rows for each tile.
bool may_divide(const PlannedGrid &planned, const Problem &problem, GridResult what, const KernelShape &shape) {
    const TileGrid &grid = planned.tiles;
    const bool rows_are_positions = what != GridResult::key_gradients || problem.key_stride == 1;
    const std::int64_t rows = std::int64_t{grid.batches} * grid.heads.value * grid.sequence.row_count;
    return !planned.curve && planned.sequences.empty() && !grid.zero_keys && rows_are_positions && rows > 0 &&
           rows <= std::int64_t{grid.tiles} * shape.row_blocks * row_block_rows;
}

} // namespace

void cut_ranges(const Window &positions, std::int64_t length, PlannedGrid &planned) {
    TileGrid &grid = planned.tiles;
    const std::int64_t tiles_of_part = grid.sequence.tiles();
    for (std::int64_t start = positions.start; start < positions.end(); start += length) {
        const Window part = intersect(positions, {start, length});
        SequenceGrid sequence = grid.sequence;
        sequence.range_start = static_cast<int>(part.start);
        sequence.range_count = static_cast<int>(part.length);
        for (int batch = 0; batch < grid.batches; ++batch) {
            const auto number = static_cast<int>(planned.sequences.size());
            planned.sequences.push_back({static_cast<unsigned>(number * tiles_of_part),
                                         static_cast<int>(planned.sequence_grids.size()), batch, 0, number});
        }
        planned.sequence_grids.push_back(sequence);
    }
    planned.range_parts = static_cast<int>(planned.sequence_grids.size());
    grid.sequence_count = static_cast<int>(planned.sequences.size());
    grid.tiles_of_head = FastDivmod(static_cast<int>(grid.sequence_count * tiles_of_part));
    grid.tiles = count_tiles(grid.tiles_of_head.value, {grid.heads.value});
}

bool divide_ranges(const Problem &problem, GridResult what, const KernelShape &shape, int ctas,
                   std::vector<PlannedGrid> &grids) {
    bool has_any = false;
    for (PlannedGrid &planned : grids) {
        TileGrid &grid = planned.tiles;
        if (!may_divide(planned, problem, what, shape))
            continue;
        const std::int64_t max_parts = ctas / static_cast<std::int64_t>(grid.tiles);
        const MetRanges ranges(grid, shape);
        const Window &positions = ranges.positions();
        if (max_parts < 2 || positions.length == 0)
            continue;
        const std::int64_t least = static_cast<std::int64_t>(tuning::tile_rows) * grid.branches[0].range_dilation.value;
        const std::int64_t length =
            divide_up(std::max(least, divide_up(positions.length, max_parts)), shape.range_block_rows) *
            shape.range_block_rows;
        if (static_cast<double>(ranges.met_rows(positions.length) - ranges.met_rows(length)) < tuning::launch_rows)
            continue;
        cut_ranges(positions, length, planned);
        has_any = true;
    }
    return has_any;
}

bool has_range_parts(const std::vector<PlannedGrid> &grids) {
    return std::ranges::any_of(grids, [](const PlannedGrid &planned) { return planned.range_parts > 1; });
}

std::int64_t rows_of_range_parts(std::span<const PlannedGrid> grids) {
    std::int64_t most = 0;
    for (const PlannedGrid &planned : grids)
        if (planned.range_parts > 1)
            most = std::max(most, std::int64_t{planned.range_parts} * planned.tiles.batches *
                                      planned.tiles.heads.value * planned.tiles.sequence.row_count);
    return most;
}

} // namespace annulus
