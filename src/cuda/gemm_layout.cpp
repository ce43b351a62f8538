// SPDX-License-Identifier: Apache-2.0
#include "cuda/gemm_layout.hpp"

#include "core/dtype_number.hpp"

#include <algorithm>

namespace annulus {

namespace {

constexpr std::int64_t largest_tile = 2048, smallest_tile = 64;
constexpr std::int64_t shortest_window = 64;
constexpr std::int64_t most_tiles = 4096;
constexpr std::size_t blas_workspace = std::size_t{1} << 20;
// A lane with less than this does more launches than it saves by running beside another.
constexpr std::int64_t least_lane_bytes = std::int64_t{16} << 20;

// Of a lane's memory, what score matrices get while the state could use more.
constexpr double score_share = 0.6;

std::int64_t query_row_bytes(const Plan &plan, annulus_pass pass) {
    const std::int64_t row = 4 * plan.problem().head_dim;
    return pass == ANNULUS_PASS_FORWARD ? row + 8 : row; // O, m and l; or dQ
}

std::int64_t key_row_bytes(const Plan &plan) {
    return 8 * plan.problem().head_dim; // dK and dV
}

// Whether windows of this length cut no segment.
bool holds_segments(const Plan &plan, std::int64_t window) {
    if (window >= plan.problem().sequence_length)
        return true;
    return std::all_of(plan.branches().begin(), plan.branches().end(),
                       [&](const BranchPlan &branch) { return window % branch.segment_length() == 0; });
}

// The longest window of at most `most` positions, best a multiple of the longest segment that fits: windows that cut
// segments make uneven tiles.
std::int64_t window_length(const Plan &plan, std::int64_t most) {
    std::int64_t unit = shortest_window;
    for (const BranchPlan &branch : plan.branches())
        if (branch.segment_length() <= most)
            unit = std::max(unit, branch.segment_length());
    return std::max(most / unit * unit, shortest_window);
}

// Fills a grid whose blocks may have `rows` (batch entry, head, position) triples, heads in whole multiples of `group`.
BlockGrid make_grid(const Plan &plan, const Window &positions, std::int64_t window, std::int64_t rows,
                    std::int32_t group, int lanes) {
    const Problem &problem = plan.problem();
    BlockGrid grid;
    grid.window = window;
    grid.first_window = positions.start / window;
    grid.windows = positions.length == 0 ? 0 : divide_up(positions.end(), window) - grid.first_window;
    const std::int64_t length = std::min(window, positions.length);
    const std::int64_t groups = problem.heads / group;
    const std::int64_t groups_at_once =
        std::clamp<std::int64_t>(rows / std::max<std::int64_t>(1, length * group), 1, groups);
    const std::int64_t batches_at_once =
        groups_at_once < groups
            ? 1
            : std::clamp<std::int64_t>(rows / std::max<std::int64_t>(1, length * problem.heads), 1, problem.batch);
    // As many blocks as lanes where the problem allows, and all blocks of about one size.
    std::int64_t head_blocks = divide_up(groups, groups_at_once),
                 batch_blocks = divide_up(problem.batch, batches_at_once);
    const auto even = [&](std::int64_t blocks, std::int64_t others, std::int64_t most) {
        return std::min(most, divide_up(blocks * others, lanes) * lanes / std::max<std::int64_t>(1, others));
    };
    head_blocks = std::max(head_blocks, even(head_blocks, batch_blocks * grid.windows, groups));
    if (head_blocks * batch_blocks * grid.windows < lanes)
        batch_blocks = std::max(batch_blocks, even(batch_blocks, head_blocks * grid.windows, problem.batch));
    grid.heads = static_cast<std::int32_t>(divide_up(groups, head_blocks) * group);
    grid.head_blocks = static_cast<std::int32_t>(divide_up(problem.heads, grid.heads));
    grid.batches = divide_up(problem.batch, batch_blocks);
    grid.batch_blocks = divide_up(problem.batch, grid.batches);
    return grid;
}

} // namespace

Block BlockGrid::block(const Plan &plan, std::int64_t i) const {
    const Problem &problem = plan.problem();
    Block block;
    const std::int64_t head_block = i % head_blocks, batch_block = i / head_blocks % batch_blocks;
    const Window part{(first_window + i / head_blocks / batch_blocks) * window, window};
    block.first_head = static_cast<std::int32_t>(head_block * heads);
    block.heads = std::min(heads, problem.heads - block.first_head);
    block.first_batch = batch_block * batches;
    block.batches = std::min(batches, problem.batch - block.first_batch);
    // A block that yields both meets no other window; else the other side is whole.
    const bool both = query_results && key_results;
    block.queries = both || !windows_of_keys ? intersect(part, problem.queries) : problem.queries;
    block.keys = both || windows_of_keys ? intersect(part, problem.keys) : problem.keys;
    return block;
}

std::int64_t tile_bytes(const Problem &problem, annulus_pass pass, std::int64_t queries, std::int64_t keys,
                        bool packed) {
    const bool forward = pass == ANNULUS_PASS_FORWARD;
    const std::int64_t matrices = forward ? 1 : 2, d = problem.head_dim, element = dtype_bytes(problem.dtype);
    std::int64_t bytes = matrices * queries * score_pitch(keys) * 4;
    if (packed) // inputs, positions, products
        bytes += queries * (matrices * d * element + 8 + d * 4) + keys * (2 * d * element + 8 + (forward ? 0 : 8 * d));
    return bytes;
}

GemmLayout make_layout(const Plan &plan, annulus_pass pass, std::uint64_t limit, int most_lanes) {
    const Problem &problem = plan.problem();
    const bool forward = pass == ANNULUS_PASS_FORWARD;
    const auto available = static_cast<std::int64_t>(std::min<std::uint64_t>(limit, std::uint64_t{1} << 60));

    // The largest class bounds what a tile can be.
    std::int64_t most_queries = 1, most_keys = 1;
    for (const BranchPlan &branch : plan.branches()) {
        const std::int64_t members = divide_up(branch.segment_length(), branch.dilation());
        most_keys = std::max(most_keys, members);
        most_queries =
            std::max(most_queries, branch.query_rule() == ANNULUS_QUERY_EVERY ? branch.segment_length() : members);
    }
    const auto largest_tile_bytes = [&](std::int64_t tile, bool packed) {
        return tile_bytes(problem, pass, std::min(tile, most_queries), std::min(tile, most_keys), packed);
    };

    GemmLayout layout;
    layout.blas_bytes = blas_workspace;
    const std::int64_t fixed = static_cast<std::int64_t>(blas_workspace) + most_tiles * 256;
    layout.lanes = available / most_lanes >= least_lane_bytes ? most_lanes : 1;
    const std::int64_t budget = std::max<std::int64_t>(0, available / layout.lanes - fixed);
    const auto score_budget = static_cast<std::int64_t>(static_cast<double>(budget) * score_share);
    layout.tile = largest_tile;
    while (layout.tile > smallest_tile && largest_tile_bytes(layout.tile, true) > score_budget)
        layout.tile /= 2;

    // Blocks, from the memory that is left for their state.
    const std::int64_t state_budget = budget - score_budget;
    const std::int32_t group = forward ? 1 : problem.heads / problem.kv_heads;
    const auto add_grid = [&](const Window &positions, std::int64_t window, std::int64_t row_bytes, bool queries,
                              bool keys) {
        BlockGrid grid = make_grid(plan, positions, window, state_budget / row_bytes, group, layout.lanes);
        grid.query_results = queries;
        grid.key_results = keys;
        grid.windows_of_keys = keys;
        const std::int64_t rows = grid.batches * std::min(window, positions.length);
        if (queries)
            layout.query_rows = std::max(layout.query_rows, rows * grid.heads);
        if (keys)
            layout.key_rows = std::max(layout.key_rows, rows * (grid.heads / group));
        if (grid.count() > 0)
            layout.grids.push_back(grid);
    };
    // Positions that fit with one head, or one group of heads.
    const auto fitting = [&](std::int64_t row_bytes) {
        return std::max(shortest_window, state_budget / (row_bytes * group));
    };
    const auto whole_or_window = [&](const Window &positions, std::int64_t row_bytes) {
        const std::int64_t most = fitting(row_bytes);
        return positions.end() <= most ? std::max<std::int64_t>(positions.end(), 1) : window_length(plan, most);
    };
    const std::int64_t query_bytes = query_row_bytes(plan, pass);
    const std::int64_t key_bytes = divide_up(key_row_bytes(plan), group); // shared by the heads of a group
    if (forward) {
        add_grid(problem.queries, whole_or_window(problem.queries, query_bytes), query_bytes, true, false);
    } else {
        const std::int64_t both = whole_or_window(problem.keys, query_bytes + key_bytes);
        if (holds_segments(plan, both)) {
            add_grid(problem.keys, both, query_bytes + key_bytes, true, true);
        } else {
            add_grid(problem.queries, whole_or_window(problem.queries, query_bytes), query_bytes, true, false);
            add_grid(problem.keys, whole_or_window(problem.keys, key_bytes), key_bytes, false, true);
        }
    }
    std::int64_t most_blocks = 0;
    for (const BlockGrid &grid : layout.grids)
        most_blocks = std::max(most_blocks, grid.count());
    layout.lanes = static_cast<int>(std::clamp<std::int64_t>(most_blocks, 1, layout.lanes));

    // Scores: no more than the largest block can use at a time, no less than one tile of the largest kind.
    const std::int64_t rows = std::max(layout.query_rows, layout.key_rows * group);
    layout.tiles = std::clamp<std::int64_t>(rows, 1, most_tiles);
    const std::int64_t state_bytes = layout.query_rows * query_bytes + layout.key_rows * key_row_bytes(plan);
    const std::int64_t most_bytes = std::max(budget - state_bytes, score_budget);
    const std::int64_t widest = std::min(layout.tile, most_keys);
    const auto useful = static_cast<double>(rows) * static_cast<double>(tile_bytes(problem, pass, 1, widest, false) +
                                                                        tile_bytes(problem, pass, 1, 1, true));
    layout.score_bytes = static_cast<std::size_t>(
        std::max(largest_tile_bytes(layout.tile, true),
                 static_cast<std::int64_t>(std::min(useful, static_cast<double>(most_bytes)))));
    return layout;
}

} // namespace annulus
