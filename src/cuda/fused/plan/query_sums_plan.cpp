// SPDX-License-Identifier: Apache-2.0
#include "cuda/fused/plan/query_sums_plan.hpp"

#include "cuda/fused/plan/sequence_grids.hpp"
#include "cuda/fused/plan/tuning.hpp"

#include <algorithm>
#include <climits>
#include <cstdlib>

namespace annulus {

namespace {

// True if the order of query_sums.hpp can express the grids.
bool is_one_branch(const std::vector<PlannedGrid> &queries, const std::vector<PlannedGrid> &keys) {
    const auto is_one = [](const std::vector<PlannedGrid> &grids) {
        return grids.size() == 1 && !grids.front().is_packed && grids.front().sequences.empty() &&
               grids.front().tiles.branch_count == 1 && !grids.front().tiles.has_residue_classes &&
               grids.front().tiles.sequence.row_count > 0 && grids.front().tiles.sequence.range_count > 0;
    };
    return is_one(queries) && is_one(keys);
}

// True if two kernels are faster for cells with this number of rows.
bool are_short(std::int64_t rows, bool causal, int head_dim) {
    return rows <= (causal && head_dim > 64 ? tuning::short_causal_segment_of_wide_rows : tuning::short_segment);
}

} // namespace

std::int64_t QuerySumsParts::sums() const {
    return std::int64_t{batches} * heads * segments * blocks;
}

std::size_t QuerySumsParts::bytes() const {
    return static_cast<std::size_t>(sums()) * static_cast<std::size_t>(block_rows * head_dim) * sizeof(float);
}

QuerySums QuerySumsParts::layout(int launch_batches, int launch_heads, int launch_segments) const {
    QuerySums result{};
    result.heads = FastDivmod(launch_heads);
    result.segments = FastDivmod(launch_segments);
    result.cells = launch_batches * launch_heads * launch_segments;
    result.tiles = tiles;
    result.blocks = blocks;
    result.block_floats = block_rows * head_dim;
    // Q, dO and the sums of dQ of a cell.
    const std::int64_t cell_bytes = std::int64_t{blocks} * block_rows * head_dim * (2 * 2 + 4);
    std::int64_t most = std::max<std::int64_t>(tuning::bytes_of_cells_at_once / cell_bytes, 1);
    if (const char *at_most = getenv("CELLS"))
        most = atoi(at_most);
    const auto groups = static_cast<int>(divide_up(result.cells, most));
    const auto at_once = static_cast<int>(divide_up(result.cells, groups));
    result.cells_at_once = FastDivmod(at_once);
    result.cells_of_last = FastDivmod(result.cells - (groups - 1) * at_once);
    result.tiles_of_group = FastDivmod(at_once * tiles);
    result.running_tiles = std::max(multiprocessors / at_once, 1);
    result.wave = 0;
    if (const char *ring = getenv("RING"))
        if (atoi(ring)) {
            const int waves = static_cast<int>(divide_up(tiles, result.running_tiles));
            result.wave = static_cast<int>(divide_up(tiles, waves));
        }
    return result;
}

std::optional<QuerySumsParts> plan_query_sums(const Problem &problem, const std::vector<PlannedGrid> &queries,
                                              const std::vector<PlannedGrid> &keys, const BackwardShapes &shapes,
                                              int multiprocessors, std::size_t bytes) {
    if (!shapes.all || !is_one_branch(queries, keys))
        return std::nullopt;
    const TileGrid &tiles = keys.front().tiles;
    const GridBranch &branch = tiles.branches[0];
    const auto rows_of_cell = [&](const Window &window, const FastDivmod &dilation) {
        return divide_up(std::min<std::int64_t>(window.length, branch.length.value), dilation.value);
    };
    const FastDivmod row_dilation = divides_rows(branch) ? branch.dilation : FastDivmod(1);
    const std::int64_t cell_keys = rows_of_cell(problem.keys, row_dilation),
                       cell_queries = rows_of_cell(problem.queries, branch.range_dilation);
    if (are_short(std::min(cell_keys, cell_queries), tiles.causal, shapes.all_columns))
        return std::nullopt;
    QuerySumsParts parts{1,
                         1,
                         1,
                         tiles.sequence.first_segment,
                         tiles.sequence.segments,
                         shapes.all_columns,
                         static_cast<int>(divide_up(cell_keys, QuerySums::tile_rows)),
                         static_cast<int>(divide_up(cell_queries, shapes.all->range_block_rows)),
                         shapes.all->range_block_rows,
                         multiprocessors};
    auto room = static_cast<std::int64_t>(bytes / parts.bytes());
    room = std::min<std::int64_t>(room, (INT_MAX / 2) / parts.tiles); // tiles of a launch have 32-bit numbers
    if (room == 0)
        return std::nullopt;
    const auto take = [&](std::int64_t all) { // divides into parts of equal size
        const std::int64_t most = std::clamp<std::int64_t>(room, 1, all);
        room /= all;
        return static_cast<int>(divide_up(all, divide_up(all, most)));
    };
    parts.heads = take(problem.kv_heads);
    parts.segments = take(parts.all_segments);
    parts.batches = take(problem.batch);
    return parts;
}

} // namespace annulus
