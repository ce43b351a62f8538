// SPDX-License-Identifier: Apache-2.0
#include "cuda/fused/plan/stored_ds_plan.hpp"

#include "core/dtype_number.hpp"

#include <algorithm>
#include <climits>

namespace annulus {

std::size_t StoredDsParts::bytes_of_cell() const {
    return static_cast<std::size_t>(of_segment.images_of_segment()) * StoredDs::image_bytes;
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

bool can_store_ds(const Problem &problem, const std::vector<PlannedGrid> &queries, const std::vector<PlannedGrid> &keys,
                  StoringKernels kernels) {
    // The two kernels take turns, so that rows would be packed for each part anew.
    if (queries.size() != 1 || keys.size() != 1 || keys.front().is_packed)
        return false;
    const TileGrid &tiles = keys.front().tiles;
    const GridBranch &branch = tiles.branches[0];
    if (tiles.branch_count != 1 || branch.row_rule == ANNULUS_QUERY_RESIDUE ||
        branch.range_dilation.value != branch.dilation.value || problem.key_stride != 1)
        return false;
    const Window &window = problem.queries;
    const bool are_same = window == problem.keys, are_of_one = are_one_segment(branch, window, problem.keys);
    if (kernels == StoringKernels::two) {
        const std::int64_t length = branch.length.value, whole = std::int64_t{row_block_rows} * branch.dilation.value;
        const bool have_whole_images = window.length % whole == 0 && problem.keys.length % whole == 0 &&
                                       (are_of_one || (window.start % length == 0 && length % whole == 0));
        if (!have_whole_images)
            return false;
    }
    return are_same || (are_of_one && !tiles.causal);
}

// CTAs take tiles in one order, each one ahead of the tile at hand: a tile has ended when twice as many as there are
// CTAs have been taken after it, or a few more if it is one of the longest under causality. So many lie between a
// group's tiles of keys and its tiles of queries, and between these and the tiles of keys whose dS comes in the same
// place; or fewer, alike, where that is too much, but three groups in memory at the least, of three tiles for each CTA.
// Of several passes, whose tiles of queries are few and long, the first distance is one group and the second what
// memory has room for, with four groups at the least; and two cells, of which one is done while the next pass of the
// other waits for results of keys. Where the gradients of keys return to another rank, as much of the multiplying is
// done meanwhile as there is memory for. None if there is less memory, or there are too many tiles.
std::optional<StoredTurns> find_turns(const StoredDsParts &parts, int row_blocks_of_tile, int ctas, bool keys_return,
                                      std::size_t bytes) {
    const StoredDs &stored = parts.of_segment;
    const int passes = stored.turns.passes;
    const std::int64_t cells_of_pass = std::int64_t{parts.batches} * parts.heads * parts.segments;
    const std::int64_t cells = passes * cells_of_pass;
    const auto room = static_cast<std::int64_t>(bytes / parts.bytes_of_cell());
    const std::int64_t of_keys = divide_up(stored.keys, row_blocks_of_tile);
    const std::int64_t tiles = of_keys + divide_up(stored.queries, StoredDs::row_blocks_of_tile);
    // A few counts for each group: of so many tiles at the least. Where all are few, the tiles of keys come first,
    // which are the longest: one group. All three numbers were measured.
    const bool are_few = passes == 1 && cells <= room && cells * tiles <= (stored.is_triangle ? 8 : 4) * ctas;
    const std::int64_t group = are_few ? cells : passes > 1 ? 1 : std::min(divide_up(32, tiles), cells);
    const std::int64_t groups = divide_up(cells, group), most = std::min(groups, room / group);
    const std::int64_t apart = divide_up((stored.is_triangle ? 5 : 4) * ctas, 2 * group * tiles);
    if (most < std::min<std::int64_t>(groups, passes > 1 ? 4 : 3) || (passes > 1 && cells_of_pass < 2) ||
        most * group * tiles < std::min<std::int64_t>(cells * tiles, 3 * ctas))
        return std::nullopt;
    const std::int64_t in_memory = keys_return || passes > 1 ? most : std::min(2 * apart + 1, most);
    std::int64_t behind = passes > 1 ? 1 : in_memory / 2;
    if (keys_return)
        behind = in_memory == groups ? groups : std::max(behind, in_memory - 1 - apart);
    const std::int64_t count = (groups + behind) * group * tiles;
    if (count > INT_MAX - ctas) // each CTA takes one in vain
        return std::nullopt;
    const auto number = [](std::int64_t x) { return static_cast<int>(x); };
    return StoredTurns{FastDivmod(number(group)),
                       FastDivmod(number(group * tiles)),
                       FastDivmod(number(in_memory)),
                       number(group * of_keys),
                       FastDivmod(number(cells_of_pass)),
                       passes,
                       number(groups),
                       number(behind),
                       {0, number(count)}};
}

// By one kernel: in as few passes as there is memory for. Several leave partial results, of some heads at a time where
// keys have none anyhow. With fewer queries a pass than these that would take longer than to compute dS twice.
std::optional<StoredDsParts> plan_passes(const Problem &problem, KeyScope scope, StoredDsParts parts, bool sums_keys,
                                         int row_blocks_of_tile, int multiprocessors, std::size_t bytes) {
    constexpr int fewest_queries = 4608 / row_block_rows;
    const int queries = parts.of_segment.queries;
    parts.segments = parts.all_segments;
    parts.heads = problem.kv_heads;
    parts.batches = static_cast<int>(problem.batch);
    for (int passes = 1; passes == 1 || divide_up(queries, passes) >= fewest_queries; ++passes) {
        parts.of_segment.queries = static_cast<int>(divide_up(queries, passes));
        parts.of_segment.turns.passes = static_cast<int>(divide_up(queries, parts.of_segment.queries));
        std::size_t of_sums = 0;
        if (passes > 1 && !sums_keys) {
            const std::size_t of_head = 2 * sizeof(float) * static_cast<std::size_t>(problem.key_rows()) *
                                        static_cast<std::size_t>(problem.head_dim);
            const auto most = static_cast<std::int64_t>(std::max<std::size_t>(bytes / 8 / of_head, 1));
            parts.batches = 1;
            parts.heads = static_cast<int>(divide_up(problem.kv_heads, divide_up(problem.kv_heads, most)));
            parts.of_segment.ends_partial = true;
            of_sums = of_head * static_cast<std::size_t>(parts.heads);
        }
        if (of_sums >= bytes)
            return std::nullopt;
        if (const std::optional<StoredTurns> turns =
                find_turns(parts, row_blocks_of_tile, multiprocessors, has_other_keys(scope), bytes - of_sums)) {
            parts.of_segment.turns = *turns;
            parts.of_segment.cells = turns->cells_of_group.value * turns->groups_in_memory.value;
            return parts;
        }
    }
    return std::nullopt;
}

} // namespace

std::optional<StoredDsParts> plan_stored_ds(const Problem &problem, KeyScope scope,
                                            const std::vector<PlannedGrid> &queries,
                                            const std::vector<PlannedGrid> &keys, bool sums_keys,
                                            const BackwardShapes &shapes, int multiprocessors, std::size_t bytes) {
    if (!can_store_ds(problem, queries, keys, shapes.storing))
        return std::nullopt;
    const TileGrid &tiles = keys.front().tiles;
    const GridBranch &branch = tiles.branches[0];
    StoredDsParts parts{1, 1, 1, tiles.sequence.segments, {}};
    const auto row_blocks = [&](const Window &window) {
        const std::int64_t of_segment = std::min<std::int64_t>(window.length, branch.length.value);
        return static_cast<int>(divide_up(divide_up(of_segment, branch.dilation.value), row_block_rows));
    };
    parts.of_segment.queries = row_blocks(problem.queries);
    parts.of_segment.keys = row_blocks(problem.keys);
    parts.of_segment.is_triangle = tiles.causal && problem.queries == problem.keys;
    if (shapes.storing == StoringKernels::one)
        return plan_passes(problem, scope, parts, sums_keys, shapes.of_keys.row_blocks, multiprocessors, bytes);
    auto room = static_cast<std::int64_t>(bytes / parts.bytes_of_cell());
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
    parts.of_segment.cells = parts.segments * parts.heads * parts.batches;
    return parts;
}

bool zeros_outweigh_ds(const Problem &problem, const TileGrid &tiles, const StoredDsParts &parts) {
    const StoredDs &stored = parts.of_segment;
    const std::int64_t of_keys = stored.keys;
    const std::int64_t of_cell =
        of_keys * (stored.is_triangle ? of_keys + 1 : std::int64_t{2} * stored.turns.passes * stored.queries) / 2;
    const std::int64_t images = problem.batch * problem.heads * parts.all_segments * of_cell;
    const std::int64_t rows = problem.heads * problem.queries.length + 2 * problem.kv_heads * problem.key_rows();
    const std::int64_t bytes = problem.batch * rows * problem.head_dim * dtype_bytes(problem.dtype);
    return bytes - bytes / tiles.branches[0].dilation.value > images * StoredDs::image_bytes;
}

} // namespace annulus
