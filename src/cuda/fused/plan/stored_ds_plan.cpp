// SPDX-License-Identifier: Apache-2.0
#include "cuda/fused/plan/stored_ds_plan.hpp"

#include "core/dtype_number.hpp"

#include <algorithm>
#include <climits>

namespace annulus {

std::size_t StoredDsParts::bytes() const {
    return static_cast<std::size_t>(of_segment.cells * of_segment.images_of_segment()) * StoredDs::image_bytes;
}

namespace {

bool are_one_segment(const GridBranch &branch, const Window &a, const Window &b) {
    const std::int64_t segment = a.start / branch.length.value;
    const auto is_within = [&](const Window &window) {
        return window.length > 0 && window.start / branch.length.value == segment &&
               (window.end() - 1) / branch.length.value == segment;
    };
    return is_within(a) && is_within(b);
}

bool can_store_ds(const Problem &problem, const std::vector<PlannedGrid> &queries,
                  const std::vector<PlannedGrid> &keys) {
    // The two kernels take turns, so that rows would be packed for each part anew.
    if (queries.size() != 1 || keys.size() != 1 || keys.front().is_packed)
        return false;
    const TileGrid &tiles = keys.front().tiles;
    const GridBranch &branch = tiles.branches[0];
    if (tiles.branch_count != 1 || branch.row_rule == ANNULUS_QUERY_RESIDUE ||
        branch.range_dilation.value != branch.dilation.value || problem.key_stride != 1)
        return false;
    const Window &window = problem.queries;
    const std::int64_t length = branch.length.value, whole = std::int64_t{row_block_rows} * branch.dilation.value;
    if (window.length % whole != 0 || problem.keys.length % whole != 0)
        return false;
    const bool are_same = window == problem.keys;
    if (are_one_segment(branch, window, problem.keys))
        return are_same || !tiles.causal;
    return are_same && window.start % length == 0 && length % whole == 0 &&
           (window.end() % length == 0 || window.end() == problem.sequence_length);
}

// By one kernel, all at once. CTAs take tiles in one order; when `ctas` more of them have been taken one may be over, or
// when twice as many, if it is one of the longest under causality. So many lie between a group's tiles of keys and those
// of queries, and between these and the next tiles of keys with the same place in memory, or fewer where that is too
// much. `room`: cells that there is memory for. False if there are too many tiles.
bool find_groups(int row_blocks_of_tile, int ctas, std::int64_t room, StoredDsParts &parts) {
    constexpr std::int64_t tiles_of_group = 16; // at least: a few counts for each
    StoredDs &stored = parts.of_segment;
    const std::int64_t all = std::int64_t{parts.batches} * parts.heads * parts.segments;
    const std::int64_t tiles =
        divide_up(stored.keys, row_blocks_of_tile) + divide_up(stored.queries, StoredDs::row_blocks_of_tile);
    const std::int64_t group = std::min(divide_up(tiles_of_group, tiles), std::min(room, all));
    const std::int64_t groups = divide_up(all, group), most = std::min(groups, room / group);
    // Where there are few, the longest ones come first: all tiles of keys.
    const bool are_few = most == groups && all * tiles <= 6 * ctas;
    const std::int64_t apart = are_few ? groups : divide_up(stored.is_triangle ? 2 * ctas : ctas, group * tiles);
    const std::int64_t in_memory = std::min(2 * apart + 1, most);
    stored.groups = static_cast<int>(in_memory);
    stored.groups_behind = static_cast<int>(std::min(apart, in_memory == groups ? groups : in_memory - 1));
    stored.cells = static_cast<int>(group * in_memory);
    return groups * group * tiles <= INT_MAX / 64; // what is counted of a tile: warps
}

} // namespace

std::optional<StoredDsParts> plan_stored_ds(const Problem &problem, const std::vector<PlannedGrid> &queries,
                                            const std::vector<PlannedGrid> &keys, const BackwardShapes &shapes,
                                            int multiprocessors, std::size_t bytes) {
    if (!can_store_ds(problem, queries, keys))
        return std::nullopt;
    const TileGrid &tiles = keys.front().tiles;
    const GridBranch &branch = tiles.branches[0];
    StoredDsParts parts{1, 1, 1, tiles.sequence.segments, {}};
    const auto row_blocks = [&](const Window &window) {
        const std::int64_t of_segment = std::min<std::int64_t>(window.length, branch.length.value);
        return static_cast<int>(of_segment / branch.dilation.value / row_block_rows);
    };
    parts.of_segment.queries = row_blocks(problem.queries);
    parts.of_segment.keys = row_blocks(problem.keys);
    parts.of_segment.is_triangle = tiles.causal && problem.queries == problem.keys;
    parts.of_segment.cells = 1;
    std::int64_t room = static_cast<std::int64_t>(bytes / parts.bytes());
    if (room == 0)
        return std::nullopt;
    if (shapes.storing == StoringKernels::one) {
        parts.segments = parts.all_segments;
        parts.heads = problem.kv_heads;
        parts.batches = static_cast<int>(problem.batch);
        return find_groups(shapes.of_keys.row_blocks, multiprocessors, room, parts) ? std::optional(parts)
                                                                                    : std::nullopt;
    }
    const auto take = [&](std::int64_t all) { // in parts of equal size
        const std::int64_t most = std::clamp<std::int64_t>(room, 1, all);
        room /= all;
        return static_cast<int>(divide_up(all, divide_up(all, most)));
    };
    parts.segments = take(parts.all_segments);
    parts.heads = take(problem.kv_heads);
    parts.batches = take(problem.batch);
    parts.of_segment.cells = parts.segments * parts.heads * parts.batches;
    return parts;
}

bool zeros_outweigh_ds(const Problem &problem, const TileGrid &tiles, const StoredDsParts &parts) {
    const std::int64_t images =
        problem.batch * problem.heads * parts.all_segments * parts.of_segment.images_of_segment();
    const std::int64_t rows = problem.heads * problem.queries.length + 2 * problem.kv_heads * problem.key_rows();
    const std::int64_t bytes = problem.batch * rows * problem.head_dim * dtype_bytes(problem.dtype);
    return bytes - bytes / tiles.branches[0].dilation.value > images * StoredDs::image_bytes;
}

} // namespace annulus
