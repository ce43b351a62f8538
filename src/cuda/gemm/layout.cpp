// SPDX-License-Identifier: Apache-2.0
#include "cuda/gemm/layout.hpp"

#include "core/dtype_number.hpp"
#include "cuda/results/cuda_call.hpp"

#include <algorithm>
#include <limits>

namespace annulus {

namespace {

constexpr std::int64_t largest_tile = 2048, smallest_tile = 64;
constexpr std::int64_t shortest_window = 64;
// With less memory than this, a second worker costs more launches than it saves by running at the same time.
constexpr std::int64_t min_worker_bytes = std::int64_t{16} << 20;
// The share of a worker's memory that the state gets if it could use more.
constexpr double state_share = 0.4, causal_state_share = 0.6;

std::int64_t query_row_bytes(const Plan &plan, annulus_pass pass) {
    const std::int64_t row = 4 * plan.problem().head_dim;
    return pass == ANNULUS_PASS_FORWARD ? row + 8 : row; // O, m and l; or dQ
}

std::int64_t key_row_bytes(const Plan &plan) {
    return 8 * plan.problem().head_dim; // dK and dV
}

// True if windows of this length cut no segment.
bool holds_segments(const Plan &plan, std::int64_t window) {
    if (window >= plan.problem().sequence_length)
        return true;
    return std::all_of(plan.branches().begin(), plan.branches().end(),
                       [&](const BranchPlan &branch) { return window % branch.segment_length() == 0; });
}

// Returns a window of at most `limit` positions: if possible the longest segment that fits, times a power of two.
// Windows that cut segments, or that cut the sequence into unequal parts, make uneven launches.
std::int64_t window_length(const Plan &plan, std::int64_t limit) {
    std::int64_t unit = shortest_window;
    for (const BranchPlan &branch : plan.branches())
        if (branch.segment_length() <= limit)
            unit = std::max(unit, branch.segment_length());
    while (unit <= limit / 2)
        unit *= 2;
    return unit;
}

// Returns a grid whose blocks have up to `rows` (batch entry, head, position) triples, heads in multiples of `group`.
BlockGrid make_grid(const Plan &plan, const Window &positions, std::int64_t window, std::int64_t rows,
                    std::int32_t group, int workers) {
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
    // At least one block for each worker if the problem has enough, and all blocks of about the same size.
    std::int64_t head_blocks = divide_up(groups, groups_at_once),
                 batch_blocks = divide_up(problem.batch, batches_at_once);
    const auto even = [&](std::int64_t blocks, std::int64_t others, std::int64_t limit) {
        return std::min(limit, divide_up(blocks * others, workers) * workers / std::max<std::int64_t>(1, others));
    };
    head_blocks = std::max(head_blocks, even(head_blocks, batch_blocks * grid.windows, groups));
    if (head_blocks * batch_blocks * grid.windows < workers)
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
    block.queries = query_results ? intersect(part, problem.queries) : problem.queries;
    block.keys = key_results ? intersect(part, problem.keys) : problem.keys;
    return block;
}

std::int64_t tile_bytes(const Problem &problem, annulus_pass pass, std::int64_t queries, std::int64_t keys,
                        bool packed) {
    const bool forward = pass == ANNULUS_PASS_FORWARD;
    const std::int64_t matrices = forward ? 1 : 2, d = problem.head_dim, element = dtype_bytes(problem.dtype);
    if (!packed)
        return matrices * queries * score_pitch(keys) * 4;
    // Scores, and for each row its input, position and product.
    queries = score_pitch(queries);
    keys = score_pitch(keys);
    return matrices * queries * keys * 4 + queries * (matrices * d * element + 8 + d * 4) +
           keys * (2 * d * element + 8 + (forward ? 0 : 8 * d));
}

namespace {

// Makes the layout for a given number of workers.
class LayoutMaker {
  public:
    LayoutMaker(const Plan &plan, annulus_pass pass, std::int64_t available, int workers, Results results)
        : plan_(plan), problem_(plan.problem()), pass_(pass), forward_(pass == ANNULUS_PASS_FORWARD),
          group_(forward_ ? 1 : problem_.heads / problem_.kv_heads) {
        layout_.results = results;
        layout_.workers = workers;
        const std::int64_t share = available / workers;
        layout_.blas_bytes = static_cast<std::size_t>(std::clamp<std::int64_t>(share / 32, 1 << 16, 1 << 22));
        layout_.tiles = std::clamp<std::int64_t>(share / (16 * item_bytes), 64, 4096);
        budget_ = std::max<std::int64_t>(0, share - static_cast<std::int64_t>(layout_.blas_bytes) -
                                                layout_.tiles * item_bytes);
        for (const BranchPlan &branch : plan.branches()) {
            max_keys_ = std::max(max_keys_, branch.largest_class());
            max_queries_ = std::max(max_queries_, divide_up(branch.segment_length(), branch.query_stride()));
            longest_segment_ = std::max(longest_segment_, branch.segment_length());
        }
    }

    GemmLayout make() {
        make_grids();
        fit_scores();
        return std::move(layout_);
    }

  private:
    // Items and pointers of a tile, rounded up generously.
    static constexpr std::int64_t item_bytes = 256;

    std::int64_t largest_tile_bytes(std::int64_t tile, bool packed) const {
        return tile_bytes(problem_, pass_, std::min(tile, max_queries_), std::min(tile, max_keys_), packed);
    }

    // Returns the bytes that the state may take, if one position of a head (or of a group of heads) takes `row_bytes`.
    // This is a share of the memory. It is more if then no segment is cut and enough memory remains for the scores.
    std::int64_t state_budget(std::int64_t row_bytes) const {
        const auto share = static_cast<std::int64_t>(static_cast<double>(budget_) *
                                                     (plan_.causal() ? causal_state_share : state_share));
        const std::int64_t wanted = longest_segment_ <= budget_ / row_bytes ? longest_segment_ * row_bytes : 0;
        if (wanted <= budget_ - 2 * largest_tile_bytes(largest_tile, true))
            return std::max(share, wanted);
        return std::clamp<std::int64_t>(budget_ - largest_tile_bytes(smallest_tile, true), 0, share);
    }

    // Returns the longest window that fits, or the whole sequence if that fits.
    std::int64_t fitting_window(const Window &positions, std::int64_t row_bytes) const {
        const std::int64_t limit = std::max(shortest_window, state_budget(row_bytes) / row_bytes);
        return positions.end() <= limit ? std::max<std::int64_t>(positions.end(), 1) : window_length(plan_, limit);
    }

    void add_grid(const Window &positions, std::int64_t row_bytes, bool queries, bool keys) {
        // Without a state, blocks are as large as possible.
        const std::int64_t window =
            layout_.has_state() ? fitting_window(positions, row_bytes) : problem_.sequence_length;
        const std::int64_t rows_that_fit = layout_.has_state() ? state_budget(row_bytes) / row_bytes * group_
                                                               : std::numeric_limits<std::int64_t>::max();
        BlockGrid grid = make_grid(plan_, positions, window, rows_that_fit, group_, layout_.workers);
        grid.query_results = queries;
        grid.key_results = keys;
        const std::int64_t rows = grid.batches * std::min(window, positions.length);
        if (queries)
            layout_.query_rows = std::max(layout_.query_rows, rows * grid.heads);
        if (keys)
            layout_.key_rows = std::max(layout_.key_rows, rows * (grid.heads / group_));
        if (grid.count() > 0)
            layout_.grids.push_back(grid);
    }

    void make_grids() {
        const std::int64_t query_bytes = query_row_bytes(plan_, pass_) * group_, key_bytes = key_row_bytes(plan_);
        if (forward_) {
            add_grid(problem_.queries, query_bytes, true, false);
        } else if (problem_.gradients.only_v) {
            add_grid(problem_.keys, key_bytes, false, true);
        } else if (!layout_.has_state() ||
                   (intersect(problem_.keys, problem_.queries) == problem_.queries &&
                    holds_segments(plan_, fitting_window(problem_.keys, query_bytes + key_bytes)))) {
            add_grid(problem_.keys, query_bytes + key_bytes, true, true);
        } else {
            add_grid(problem_.queries, query_bytes, true, false);
            add_grid(problem_.keys, key_bytes, false, true);
        }
        std::int64_t max_blocks = 1;
        for (const BlockGrid &grid : layout_.grids)
            max_blocks = std::max(max_blocks, grid.count());
        layout_.workers = static_cast<int>(std::min<std::int64_t>(max_blocks, layout_.workers));
    }

    // Sets the size of tiles and score matrices: at most what the largest block can use at a time, at least one largest
    // tile.
    void fit_scores() {
        const std::int64_t left = budget_ - (layout_.has_state() ? layout_.state_bytes(plan_, pass_) : 0);
        layout_.tile = largest_tile;
        // In backward most float32 products have few thread blocks a tile, so that few tiles would leave a GPU idle.
        const std::int64_t tiles_at_once = problem_.dtype == ANNULUS_FLOAT32 && !forward_ ? 4 : 2;
        while (layout_.tile > smallest_tile && tiles_at_once * largest_tile_bytes(layout_.tile, true) > left)
            layout_.tile /= 2;
        const std::int64_t rows = std::max<std::int64_t>({layout_.query_rows, layout_.key_rows * group_, 1});
        layout_.tiles = std::min(layout_.tiles, rows);
        const std::int64_t widest = std::min(layout_.tile, max_keys_);
        const auto useful =
            static_cast<double>(rows) * static_cast<double>(tile_bytes(problem_, pass_, 1, widest, false) +
                                                            tile_bytes(problem_, pass_, 1, 1, true));
        layout_.score_bytes =
            static_cast<std::size_t>(std::max(largest_tile_bytes(layout_.tile, true),
                                              static_cast<std::int64_t>(std::min(useful, static_cast<double>(left)))));
    }

    const Plan &plan_;
    const Problem &problem_;
    const annulus_pass pass_;
    const bool forward_;
    const std::int32_t group_; // heads that share a key head
    GemmLayout layout_;
    std::int64_t budget_ = 0; // bytes of a worker for state and scores
    // Sizes of the largest class and length of the longest segment.
    std::int64_t max_queries_ = 1, max_keys_ = 1, longest_segment_ = 1;
};

} // namespace

std::int64_t GemmLayout::state_bytes(const Plan &plan, annulus_pass pass) const {
    const std::int64_t queries = query_rows * query_row_bytes(plan, pass), keys = key_rows * key_row_bytes(plan);
    return grids.size() > 1 ? std::max(queries, keys) : queries + keys;
}

bool needs_packing(const TileSet &set) {
    constexpr std::int64_t worth_packing = 64;
    const bool odd = (set.queries % score_pitch_unit != 0 || set.keys % score_pitch_unit != 0) &&
                     std::min(set.queries, set.keys) >= worth_packing;
    return !set.curve.is_linear() || odd;
}

namespace {

// True if each row of the results is computed by a single tile, which needs no packing. False if keys are hidden: then
// float32 results must be checked for NaN (recompute_nonfinite.cu).
bool can_be_direct(const Plan &plan, annulus_pass pass, std::int64_t tile) {
    const Problem &problem = plan.problem();
    const BranchPlan &branch = plan.branches().front();
    if (plan.branches().size() > 1 || plan.hides_keys() || branch.kind() == ANNULUS_BRANCH_GLOBAL ||
        branch.largest_class() > tile ||
        (branch.dilation() > 1 && (branch.has_all_residues() || !branch.queries_are_class())))
        return false;
    if (pass == ANNULUS_PASS_BACKWARD && (problem.heads != problem.kv_heads || !(problem.queries == problem.keys)))
        return false;
    const Block whole{0, problem.batch, 0, problem.heads, problem.queries, problem.keys};
    std::vector<TileSet> sets;
    make_tiles(plan, branch, whole, tile, sets);
    return std::all_of(sets.begin(), sets.end(),
                       [](const TileSet &set) { return set.covers_queries && !needs_packing(set); });
}

GemmLayout best_layout(const Plan &plan, annulus_pass pass, std::int64_t available, int max_workers, Results results) {
    GemmLayout single = LayoutMaker(plan, pass, available, 1, results).make();
    // float32 products are limited by arithmetic: one worker with larger launches is faster.
    if (available / max_workers < min_worker_bytes || plan.problem().dtype == ANNULUS_FLOAT32)
        return single;
    GemmLayout layout = LayoutMaker(plan, pass, available, max_workers, results).make();
    // One worker is better than computing all scores twice, than smaller tiles, and than a worker without blocks.
    const bool better = layout.workers == 1 || single.grids.size() < layout.grids.size() ||
                        (single.grids.size() == layout.grids.size() && single.tile > layout.tile);
    return better ? single : layout;
}

} // namespace

GemmLayout make_layout(const Plan &plan, annulus_pass pass, std::uint64_t limit, int max_workers, Results results) {
    const std::int64_t copied = bytes_of_branches(plan);
    const std::int64_t available = std::max<std::int64_t>(
        0, static_cast<std::int64_t>(std::min<std::uint64_t>(limit, std::uint64_t{1} << 60)) - copied);
    if (results == Results::direct && can_be_direct(plan, pass, largest_tile)) {
        GemmLayout layout = best_layout(plan, pass, available, max_workers, Results::direct);
        if (can_be_direct(plan, pass, layout.tile))
            return layout;
    }
    return best_layout(plan, pass, available, max_workers,
                       results == Results::in_partial ? Results::in_partial : Results::in_state);
}

} // namespace annulus
