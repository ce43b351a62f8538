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
// A worker with less than this does more launches than it saves by running beside another.
constexpr std::int64_t least_worker_bytes = std::int64_t{16} << 20;
// Of a worker's memory, what the state gets where it could use more.
constexpr double state_share = 0.4, causal_state_share = 0.6;

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

// A window of at most `most` positions, best the longest segment that fits or twice, four times, … as much: windows
// that cut segments, or the sequence into unlike parts, make uneven launches.
std::int64_t window_length(const Plan &plan, std::int64_t most) {
    std::int64_t unit = shortest_window;
    for (const BranchPlan &branch : plan.branches())
        if (branch.segment_length() <= most)
            unit = std::max(unit, branch.segment_length());
    while (unit <= most / 2)
        unit *= 2;
    return unit;
}

// Fills a grid whose blocks may have `rows` (batch entry, head, position) triples, heads in whole multiples of `group`.
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
    // As many blocks as workers where the problem allows, and all blocks of about one size.
    std::int64_t head_blocks = divide_up(groups, groups_at_once),
                 batch_blocks = divide_up(problem.batch, batches_at_once);
    const auto even = [&](std::int64_t blocks, std::int64_t others, std::int64_t most) {
        return std::min(most, divide_up(blocks * others, workers) * workers / std::max<std::int64_t>(1, others));
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
    // Scores; inputs, position and product of each row.
    queries = score_pitch(queries);
    keys = score_pitch(keys);
    return matrices * queries * keys * 4 + queries * (matrices * d * element + 8 + d * 4) +
           keys * (2 * d * element + 8 + (forward ? 0 : 8 * d));
}

namespace {

// A layout with a given number of workers.
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
            most_keys_ = std::max(most_keys_, branch.largest_class());
            most_queries_ = std::max(most_queries_, divide_up(branch.segment_length(), branch.query_stride()));
            longest_segment_ = std::max(longest_segment_, branch.segment_length());
        }
    }

    GemmLayout make() {
        make_grids();
        fit_scores();
        return std::move(layout_);
    }

  private:
    // Items and pointers of a tile, with room to spare.
    static constexpr std::int64_t item_bytes = 256;

    std::int64_t largest_tile_bytes(std::int64_t tile, bool packed) const {
        return tile_bytes(problem_, pass_, std::min(tile, most_queries_), std::min(tile, most_keys_), packed);
    }

    // What the state may take when a position of one head, or of one group of heads, takes `row_bytes`: a share; more
    // where that saves segments from being cut and leaves enough for the scores.
    std::int64_t state_budget(std::int64_t row_bytes) const {
        const auto share = static_cast<std::int64_t>(static_cast<double>(budget_) *
                                                     (plan_.causal() ? causal_state_share : state_share));
        const std::int64_t wanted = longest_segment_ <= budget_ / row_bytes ? longest_segment_ * row_bytes : 0;
        if (wanted <= budget_ - 2 * largest_tile_bytes(largest_tile, true))
            return std::max(share, wanted);
        return std::clamp<std::int64_t>(budget_ - largest_tile_bytes(smallest_tile, true), 0, share);
    }

    // The longest window that fits, the whole sequence if it does.
    std::int64_t fitting_window(const Window &positions, std::int64_t row_bytes) const {
        const std::int64_t most = std::max(shortest_window, state_budget(row_bytes) / row_bytes);
        return positions.end() <= most ? std::max<std::int64_t>(positions.end(), 1) : window_length(plan_, most);
    }

    void add_grid(const Window &positions, std::int64_t row_bytes, bool queries, bool keys) {
        // Without a state blocks are as large as they can be.
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
        std::int64_t most_blocks = 1;
        for (const BlockGrid &grid : layout_.grids)
            most_blocks = std::max(most_blocks, grid.count());
        layout_.workers = static_cast<int>(std::min<std::int64_t>(most_blocks, layout_.workers));
    }

    // Score matrices: no more than the largest block can use at a time, no less than one tile of the largest kind.
    void fit_scores() {
        const std::int64_t left = budget_ - (layout_.has_state() ? layout_.state_bytes(plan_, pass_) : 0);
        layout_.tile = largest_tile;
        // Backward, most of the float32 products have few thread blocks to a tile, and fewer tiles leave a GPU idle.
        const std::int64_t tiles_at_once = problem_.dtype == ANNULUS_FLOAT32 && !forward_ ? 4 : 2;
        while (layout_.tile > smallest_tile && tiles_at_once * largest_tile_bytes(layout_.tile, true) > left)
            layout_.tile /= 2;
        const std::int64_t rows = std::max<std::int64_t>({layout_.query_rows, layout_.key_rows * group_, 1});
        layout_.tiles = std::min(layout_.tiles, rows);
        const std::int64_t widest = std::min(layout_.tile, most_keys_);
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
    const std::int32_t group_; // heads that share a block's gradients of keys
    GemmLayout layout_;
    std::int64_t budget_ = 0; // of a worker, for state and scores
    // The largest class and segment.
    std::int64_t most_queries_ = 1, most_keys_ = 1, longest_segment_ = 1;
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

// Whether one tile alone, which needs no packing, computes each row of the results. Not under causality, where float32
// results have to be checked for NaN (recompute_nonfinite.cu).
bool can_be_direct(const Plan &plan, annulus_pass pass, std::int64_t tile) {
    const Problem &problem = plan.problem();
    const BranchPlan &branch = plan.branches().front();
    if (plan.branches().size() > 1 || plan.causal() || branch.largest_class() > tile ||
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

GemmLayout best_layout(const Plan &plan, annulus_pass pass, std::int64_t available, int most_workers, Results results) {
    GemmLayout single = LayoutMaker(plan, pass, available, 1, results).make();
    // float32 products are bound by arithmetic, and the larger a launch the better.
    if (available / most_workers < least_worker_bytes || plan.problem().dtype == ANNULUS_FLOAT32)
        return single;
    GemmLayout layout = LayoutMaker(plan, pass, available, most_workers, results).make();
    // Rather one worker than all scores twice, or small tiles, or a share for a worker that has nothing to do.
    const bool better = layout.workers == 1 || single.grids.size() < layout.grids.size() ||
                        (single.grids.size() == layout.grids.size() && single.tile > layout.tile);
    return better ? single : layout;
}

} // namespace

GemmLayout make_layout(const Plan &plan, annulus_pass pass, std::uint64_t limit, int most_workers, Results results) {
    const std::int64_t copied = bytes_of_branches(plan);
    const std::int64_t available = std::max<std::int64_t>(
        0, static_cast<std::int64_t>(std::min<std::uint64_t>(limit, std::uint64_t{1} << 60)) - copied);
    if (results == Results::direct && can_be_direct(plan, pass, largest_tile)) {
        GemmLayout layout = best_layout(plan, pass, available, most_workers, Results::direct);
        if (can_be_direct(plan, pass, layout.tile))
            return layout;
    }
    return best_layout(plan, pass, available, most_workers,
                       results == Results::in_partial ? Results::in_partial : Results::in_state);
}

} // namespace annulus
