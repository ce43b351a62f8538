// SPDX-License-Identifier: Apache-2.0
#include "cuda/fused/plan/stored_ds_plan.hpp"

#include <algorithm>

namespace annulus {

std::size_t StoredDsParts::bytes() const {
    return static_cast<std::size_t>(std::int64_t{batches} * heads * segments * of_segment.images_of_segment()) *
           StoredDs::image_bytes;
}

namespace {

bool can_store_ds(const Problem &problem, const std::vector<PlannedGrid> &queries,
                  const std::vector<PlannedGrid> &keys) {
    if (!stores_d_s(problem.head_dim) || queries.size() != 1 || keys.size() != 1 || keys.front().curve)
        return false;
    const TileGrid &tiles = keys.front().tiles;
    const GridBranch &branch = tiles.branches[0];
    const Window &window = problem.queries;
    const std::int64_t length = branch.length.value, whole = std::int64_t{row_block_rows} * branch.dilation.value;
    return tiles.branch_count == 1 && branch.row_rule != ANNULUS_QUERY_RESIDUE &&
           branch.range_dilation.value == branch.dilation.value && window.start == problem.keys.start &&
           window.length == problem.keys.length && problem.key_stride == 1 && window.start % length == 0 &&
           (window.end() % length == 0 || window.end() == problem.sequence_length) && length % whole == 0 &&
           window.length % whole == 0;
}

} // namespace

std::optional<StoredDsParts> plan_stored_ds(const Problem &problem, const std::vector<PlannedGrid> &queries,
                                            const std::vector<PlannedGrid> &keys, std::size_t bytes) {
    if (!can_store_ds(problem, queries, keys))
        return std::nullopt;
    const TileGrid &tiles = keys.front().tiles;
    const GridBranch &branch = tiles.branches[0];
    StoredDsParts parts{1, 1, 1, tiles.sequence.segments, {}};
    parts.of_segment.row_blocks_of_segment = branch.length.value / branch.dilation.value / row_block_rows;
    parts.of_segment.causal = tiles.causal;
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

bool go_by_length(const TileGrid &tiles, int multiprocessors) {
    return tiles.causal && tiles.tiles < 8 * static_cast<unsigned>(multiprocessors);
}

} // namespace annulus
