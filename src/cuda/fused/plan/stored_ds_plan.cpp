// SPDX-License-Identifier: Apache-2.0
#include "cuda/fused/plan/stored_ds_plan.hpp"

#include "core/dtype_number.hpp"

#include <algorithm>

namespace annulus {

std::size_t StoredDsParts::bytes() const {
    return static_cast<std::size_t>(std::int64_t{batches} * heads * segments * of_segment.images_of_segment()) *
           StoredDs::image_bytes;
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

} // namespace

std::optional<StoredDsParts> plan_stored_ds(const Problem &problem, const std::vector<PlannedGrid> &queries,
                                            const std::vector<PlannedGrid> &keys, std::size_t bytes) {
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
    std::int64_t room = static_cast<std::int64_t>(bytes / parts.bytes());
    if (room == 0)
        return std::nullopt;
    const auto take = [&](std::int64_t all) { // in parts of equal size
        const std::int64_t most = std::clamp<std::int64_t>(room, 1, all);
        room /= all;
        return static_cast<int>(divide_up(all, divide_up(all, most)));
    };
    parts.segments = take(parts.all_segments);
    parts.heads = take(problem.kv_heads);
    parts.batches = take(problem.batch);
    return parts;
}

bool zeros_outweigh_ds(const Problem &problem, const TileGrid &tiles, const StoredDsParts &parts) {
    const StoredDsParts all{static_cast<int>(problem.batch), problem.heads, parts.all_segments, parts.all_segments,
                            parts.of_segment};
    const std::int64_t rows = problem.heads * problem.queries.length + 2 * problem.kv_heads * problem.key_rows();
    const std::int64_t bytes = problem.batch * rows * problem.head_dim * dtype_bytes(problem.dtype);
    return static_cast<std::size_t>(bytes - bytes / tiles.branches[0].dilation.value) > all.bytes();
}

} // namespace annulus
