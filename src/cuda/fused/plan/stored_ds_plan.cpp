// SPDX-License-Identifier: Apache-2.0
#include "cuda/fused/plan/stored_ds_plan.hpp"

#include "core/dtype_number.hpp"
#include "cuda/fused/plan/tuning.hpp"

#include <algorithm>
#include <climits>

namespace annulus {

std::size_t StoredDsParts::cell_bytes() const {
    return static_cast<std::size_t>(layout.images_of_cell()) * StoredDs::image_bytes;
}

std::int64_t StoredDsParts::sum_count() const {
    if (layout.slices > 1)
        return std::int64_t{layout.cells_of_slice.value} * layout.query_tiles();
    return layout.splits > 1 ? std::int64_t{layout.cells} * layout.query_tiles() * layout.splits : 0;
}

std::int64_t StoredDsParts::sum_counter_count() const {
    return layout.slices > 1 ? sum_count() * StoredDs::consumers_of_tile : sum_count() / layout.splits;
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
    // The two kernels alternate, so the rows would have to be packed again for each part.
    if (queries.size() != 1 || keys.size() != 1 || keys.front().is_packed)
        return false;
    const TileGrid &tiles = keys.front().tiles;
    const GridBranch &branch = tiles.branches[0];
    if (tiles.branch_count != 1 || tiles.has_windows || branch.row_rule == ANNULUS_QUERY_RESIDUE ||
        branch.range_dilation.value != branch.dilation.value || problem.key_stride != 1)
        return false;
    const Window &window = problem.queries;
    return window == problem.keys || (are_one_segment(branch, window, problem.keys) && !tiles.causal);
}

// Finds the order of turns (StoredTurns), or returns none if there is too little memory or there are too many tiles.
//
// CTAs take tiles in one order: the tiles of keys of a group of cells, which store dS, and later its tiles of queries,
// which multiply dS. Two distances in this order matter:
//
// 1. from a group's tiles of keys to its tiles of queries: by then, dS should have been written;
// 2. from these tiles of queries to the tiles of keys whose dS takes the same memory: by then, dS should have been
// read.
//
// If a cell has all keys of its segment: Each CTA takes a tile while it computes the tile before. So a tile has ended
// when 2 · ctas later tiles have been taken. Under causality it is 2.5 · ctas, since the longest tiles take longer.
// Both distances are this long. If memory is too small for that, they shrink alike, but min_groups groups and
// min_tiles_of_cta tiles for each CTA stay in memory.
//
// If a cell is a slice of the keys, its tiles of keys take most of the time, and tiles of queries are short. Distance 1
// is then as many groups as have a tile of keys for each CTA, and distance 2 is groups_until_read. If memory is too
// small for both, there are more passes.
//
// With several passes, the next pass of a cell waits for its results of keys. So there must be two cells.
//
// If the gradients of keys return to another rank (`keys_return`), distance 1 takes the memory that distance 2 leaves.
// More multiplications then overlap with the return.
std::optional<StoredTurns> find_turns(const StoredDsParts &parts, int row_blocks_of_tile, int ctas, bool keys_return,
                                      std::size_t bytes) {
    const StoredDs &stored = parts.layout;
    const int passes = stored.turns.passes;
    const std::int64_t cells_of_pass = std::int64_t{stored.slices} * stored.cells_of_slice.value;
    const std::int64_t cells = passes * cells_of_pass;
    const auto room = static_cast<std::int64_t>(bytes / parts.cell_bytes());
    const std::int64_t key_tiles = divide_up(stored.keys, row_blocks_of_tile);
    const std::int64_t tiles = key_tiles + divide_up(stored.queries, StoredDs::row_blocks_of_tile);
    // Each group has its own counters, so it has a least number of tiles. If all tiles are few, they are one group: the
    // tiles of keys come first, which are the longest.
    const bool are_few =
        passes == 1 && cells <= room &&
        cells * tiles <= (stored.is_triangular ? tuning::few_causal_tiles_of_cta : tuning::few_tiles_of_cta) * ctas;
    const std::int64_t group = are_few      ? cells
                               : passes > 1 ? 1
                                            : std::min(divide_up(tuning::min_group_tiles, tiles), cells);
    const std::int64_t groups = divide_up(cells, group), max_groups = std::min(groups, room / group);
    const bool has_slices = stored.slices > 1;
    const std::int64_t apart = divide_up(
        (stored.is_triangular ? tuning::causal_tiles_apart_of_two_ctas : tuning::tiles_apart_of_two_ctas) * ctas,
        2 * group * tiles);
    // Distances 1 and 2, in groups.
    const std::int64_t until_written = has_slices ? divide_up(ctas, group * key_tiles) : apart,
                       until_read = has_slices ? tuning::groups_until_read : apart + 1;
    const std::int64_t wanted = std::min(groups, until_written + until_read);
    if (max_groups < (has_slices ? wanted : std::min(groups, tuning::min_groups)) ||
        (passes > 1 && cells_of_pass < 2) ||
        (!has_slices &&
         max_groups * group * tiles < std::min<std::int64_t>(cells * tiles, tuning::min_tiles_of_cta * ctas)))
        return std::nullopt;
    const std::int64_t in_memory = keys_return ? max_groups : std::min(wanted, max_groups);
    std::int64_t behind = has_slices ? std::min(until_written, groups) : in_memory / 2;
    if (keys_return)
        behind = in_memory == groups ? groups : std::max(behind, in_memory - until_read);
    const std::int64_t count = (groups + behind) * group * tiles;
    if (count > INT_MAX - ctas) // each CTA takes one number without a tile
        return std::nullopt;
    const auto number = [](std::int64_t x) { return static_cast<int>(x); };
    return StoredTurns{FastDivmod(number(group)),
                       FastDivmod(number(group * tiles)),
                       FastDivmod(number(in_memory)),
                       number(group * key_tiles),
                       FastDivmod(number(cells_of_pass)),
                       passes,
                       number(groups),
                       number(behind),
                       {0, number(count)}};
}

// Returns the bytes of StoredDs::sums and StoredDs::sum_counters.
std::size_t query_sum_bytes(const Problem &problem, const StoredDsParts &parts) {
    return static_cast<std::size_t>(parts.sum_count() * StoredDs::sum_floats(problem.head_dim) +
                                    parts.sum_counter_count()) *
           sizeof(float);
}

// Returns the bytes of partial results of `parts.key_rows` rows of keys, which several passes need.
std::size_t key_sum_bytes(const Problem &problem, const StoredDsParts &parts) {
    return 2 * sizeof(float) * static_cast<std::size_t>(parts.key_rows) * static_cast<std::size_t>(problem.head_dim);
}

// Divides all cells into parts of equal size, of which one fits into memory. There is room for `room` cells.
void divide_cells(const Problem &problem, std::int64_t room, StoredDsParts &parts) {
    const auto take = [&](std::int64_t all) {
        const std::int64_t max_part = std::clamp<std::int64_t>(room, 1, all);
        room /= all;
        return static_cast<int>(divide_up(all, divide_up(all, max_part)));
    };
    parts.segments = take(parts.all_segments);
    parts.heads = take(problem.kv_heads);
    parts.batches = take(problem.batch);
    parts.layout.cells = parts.segments * parts.heads * parts.batches;
}

// Plans one kernel that stores and multiplies dS. If the dS of a few segments does not fit into memory, a cell is a
// slice of the keys of a segment. Then there are the fewest passes that fit. Slices need sums of dQ, and several passes
// need partial results of keys, if the call has none. If these take more than one part in `sum_share` of the memory, a
// launch has fewer segments, heads or batch entries.
std::optional<StoredDsParts> plan_one_kernel(const Problem &problem, KeyScope scope, const StoredDsParts &segment,
                                             bool sums_keys, int row_blocks_of_tile, int multiprocessors,
                                             std::size_t bytes) {
    // Finds the turns of launches with as many segments as there is `room` for, if each takes `sums` bytes of sums.
    const auto find = [&](StoredDsParts parts, std::int64_t room, std::size_t sums) -> std::optional<StoredDsParts> {
        divide_cells(problem, room, parts);
        parts.key_rows = std::min(parts.segments * segment.key_rows, problem.key_rows());
        parts.layout.cells_of_slice = FastDivmod(parts.layout.cells);
        const std::size_t used = sums * static_cast<std::size_t>(parts.layout.cells);
        if (used >= bytes)
            return std::nullopt;
        const std::optional<StoredTurns> turns =
            find_turns(parts, row_blocks_of_tile, multiprocessors, has_other_keys(scope), bytes - used);
        if (!turns)
            return std::nullopt;
        parts.layout.turns = *turns;
        parts.layout.cells = turns->cells_of_group.value * turns->groups_in_memory.value;
        return parts;
    };
    if (std::optional<StoredDsParts> whole = find(segment, INT_MAX, 0))
        return whole;
    StoredDsParts sliced = segment;
    const int queries = segment.layout.queries, keys = segment.layout.keys;
    sliced.layout.slices = static_cast<int>(divide_up(keys, tuning::slice_key_blocks));
    sliced.layout.keys =
        static_cast<int>(divide_up(keys, sliced.layout.slices * row_blocks_of_tile)) * row_blocks_of_tile;
    sliced.layout.cells_of_slice = FastDivmod(1); // sums are counted for one segment
    for (int passes = 1; passes == 1 || divide_up(queries, passes) >= tuning::min_pass_queries / row_block_rows;
         ++passes) {
        sliced.layout.queries = static_cast<int>(divide_up(queries, passes));
        sliced.layout.turns.passes = static_cast<int>(divide_up(queries, sliced.layout.queries));
        sliced.layout.ends_partial = sliced.layout.turns.passes > 1 && !sums_keys;
        const std::size_t sums =
            query_sum_bytes(problem, sliced) + (sliced.layout.ends_partial ? key_sum_bytes(problem, sliced) : 0);
        const std::size_t room = sums > 0 ? bytes / tuning::sum_share / sums : INT_MAX;
        if (std::optional<StoredDsParts> parts = find(sliced, static_cast<std::int64_t>(room), sums))
            return parts;
    }
    return std::nullopt;
}

// Calls use(size, how many) for the sizes of consecutive parts of `all`.
template <class Use> void for_sizes(std::int64_t all, std::int64_t part, const Use &use) {
    use(part, all / part);
    if (all % part > 0)
        use(all % part, 1);
}

// The tiles of a launch, in the order of their lengths: each of `cells` cells has `count` tiles. A length is a number
// of range blocks. The first tiles are the longest, and from tile `equal` on each has `step` blocks less than the tile
// before.
struct TileLengths {
    std::int64_t cells;
    int count;
    double longest, step;
    int equal;

    double of(std::int64_t tile) const {
        return longest - step * static_cast<double>(std::max<std::int64_t>(tile - equal, 0));
    }
    double sum_of_cell() const {
        const double shorter = std::max(count - equal, 0);
        return count * longest - step * shorter * (shorter - 1) / 2;
    }
};

// Estimates the times of pairs of launches that store and multiply dS, and of launches that compute it twice. The unit
// is the time of one product of two row blocks on a multiprocessor.
class TimesOfPairs {
  public:
    TimesOfPairs(const Problem &problem, const StoredDs &cell, const BackwardShapes &shapes, int multiprocessors)
        : problem_(problem), cell_(cell), shapes_(shapes), multiprocessors_(multiprocessors) {}

    double computing_twice(std::int64_t cells) const {
        const int row_blocks = shapes_.queries.row_blocks;
        const TileLengths queries{cells, static_cast<int>(divide_up(cell_.queries, row_blocks)),
                                  static_cast<double>(cell_.keys),
                                  cell_.is_triangular ? static_cast<double>(row_blocks) : 0, 0};
        return time_of_keys(cells, cell_, 0) + time_of_tiles(queries, shapes_.queries, 3, 0);
    }
    double storing(const StoredDsParts &parts) const {
        double time = 0;
        for_sizes(parts.all_segments, parts.segments, [&](std::int64_t segments, std::int64_t segment_parts) {
            for_sizes(problem_.kv_heads, parts.heads, [&](std::int64_t heads, std::int64_t head_parts) {
                for_sizes(problem_.batch, parts.batches, [&](std::int64_t batches, std::int64_t batch_parts) {
                    time += static_cast<double>(segment_parts * head_parts * batch_parts) *
                            time_of_passes(segments * heads * batches, parts.layout);
                });
            });
        });
        return time;
    }

  private:
    // Returns the time of a launch, the larger one of two bounds. First, CTAs share all tiles evenly at best. Second,
    // some CTA has i / CTAs + 1 of the longest i + 1 tiles. `fixed` is the time of a tile beside its range blocks, in
    // range blocks.
    double time_of_tiles(const TileLengths &tiles, const KernelShape &shape, double products, double fixed) const {
        const std::int64_t all = tiles.cells * tiles.count, ctas = std::int64_t{multiprocessors_} * shape.ctas;
        fixed += double{tuning::tile_rows} / row_block_rows;
        double blocks =
            static_cast<double>(tiles.cells) * (tiles.sum_of_cell() + tiles.count * fixed) / static_cast<double>(ctas);
        for (std::int64_t i = 0; i < all; i += ctas)
            blocks = std::max(blocks, static_cast<double>(i / ctas + 1) * (tiles.of(i / tiles.cells) + fixed));
        return blocks * shape.ctas * shape.row_blocks * products;
    }
    // Returns the keys of a pass, in row blocks.
    static int keys_of_pass(const StoredDs &layout, int pass) {
        return layout.is_triangular ? std::min(layout.keys, layout.queries_before(pass) + layout.queries) : layout.keys;
    }
    double time_of_keys(std::int64_t cells, const StoredDs &layout, int pass) const {
        const int row_blocks = shapes_.keys.row_blocks;
        const TileLengths keys{cells, static_cast<int>(divide_up(keys_of_pass(layout, pass), row_blocks)),
                               static_cast<double>(layout.queries),
                               layout.is_triangular ? static_cast<double>(row_blocks) : 0,
                               layout.queries_before(pass) / row_blocks};
        return time_of_tiles(keys, shapes_.keys, 4, 0);
    }
    double time_of_queries(std::int64_t cells, const StoredDs &layout, int pass) const {
        const KernelShape shape{.row_blocks = StoredDs::row_blocks_of_tile, .range_block_rows = row_block_rows};
        const double columns = problem_.head_dim, splits = layout.splits;
        const TileLengths queries{cells * layout.splits, layout.query_tiles(), keys_of_pass(layout, pass) / splits,
                                  layout.is_triangular ? StoredDs::row_blocks_of_tile / splits : 0, 0};
        const double sums = layout.splits > 1 ? tuning::split_sum_key_blocks * (splits + 1) : 0;
        const double memory = tuning::stored_traffic_columns / columns / multiprocessors_ * splits *
                              static_cast<double>(cells) * queries.sum_of_cell() * shape.row_blocks;
        return std::max(
            memory,
            time_of_tiles(queries, shape, tuning::stored_product_time + tuning::stored_image_columns / columns, sums));
    }
    double time_of_passes(std::int64_t cells, const StoredDs &layout) const {
        const int passes = layout.turns.passes;
        const double sums =
            passes > 1 ? tuning::sums_in_query_blocks * static_cast<double>(cells * layout.keys) / multiprocessors_ : 0;
        const auto time_of_pass = [&](int pass) {
            return time_of_keys(cells, layout, pass) + time_of_queries(cells, layout, pass) + sums;
        };
        if (!layout.is_triangular)
            return passes * time_of_pass(0);
        double time = 0;
        for (int pass = 0; pass < passes; ++pass)
            time += time_of_pass(pass);
        return time;
    }

    const Problem &problem_;
    const StoredDs &cell_; // all queries and keys
    const BackwardShapes &shapes_;
    const int multiprocessors_;
};

// Returns the bytes of the sums of all splits of a cell, and of their counters.
std::size_t split_bytes_of_cell(const Problem &problem, StoredDsParts parts) {
    parts.layout.cells = 1;
    return query_sum_bytes(problem, parts);
}

// Returns whether memory is fast enough for storing dS to take less time than computing dS twice. While the first
// kernel computes four products, memory writes dS. The second kernel takes as long as memory needs to read dS.
// Computing dS twice takes seven products.
bool is_memory_fast_enough(const Problem &problem, const BackwardShapes &shapes) {
    const double flops_per_byte = tuning::product_flops_per_cycle / tuning::memory_efficiency * shapes.cycles_per_byte;
    const double reading =
        flops_per_byte / problem.head_dim; // in products, each of which does D flops for a byte of dS
    return 4 + reading < (1 - tuning::min_gain) * 7;
}

// Plans pairs of launches, of which the first stores dS and the second multiplies it:
//
// - A pair has as many cells as fit into memory, with the queries of one pass.
// - The number of passes is the one that takes the least time. With fewer passes fewer cells fit, and their tiles may
//   leave multiprocessors without work.
// - The keys of a tile of queries are divided among as many CTAs as take the least time.
//
// Returns none if computing dS twice takes less time.
std::optional<StoredDsParts> plan_pairs(const Problem &problem, const StoredDsParts &cell, bool sums_keys,
                                        const BackwardShapes &shapes, int multiprocessors, std::size_t bytes) {
    if (!is_memory_fast_enough(problem, shapes))
        return std::nullopt;
    const int queries = cell.layout.queries;
    const TimesOfPairs times(problem, cell.layout, shapes, multiprocessors);
    double least_time = times.computing_twice(problem.batch * problem.kv_heads * cell.all_segments);
    std::optional<StoredDsParts> best;
    int fewest_passes = queries; // that fit
    for (int part = queries; part > 0; --part) {
        const auto passes = static_cast<int>(divide_up(queries, part));
        if (passes > tuning::max_more_passes * fewest_passes)
            break;
        part = static_cast<int>(divide_up(queries, passes)); // passes of equal size
        StoredDsParts parts = cell;
        StoredDs &layout = parts.layout;
        layout.queries = part;
        layout.turns.passes = passes;
        layout.ends_partial = passes > 1 && !sums_keys;
        const std::size_t key_sums = layout.ends_partial ? key_sum_bytes(problem, cell) : 0;
        for (layout.splits = 1; layout.splits <= tuning::max_splits; ++layout.splits) {
            const auto room = static_cast<std::int64_t>(
                bytes / (parts.cell_bytes() + key_sums + split_bytes_of_cell(problem, parts)));
            if (room == 0)
                break;
            fewest_passes = std::min(fewest_passes, passes);
            divide_cells(problem, room, parts);
            parts.key_rows = std::min(parts.segments * cell.key_rows, problem.key_rows());
            if (const double time = times.storing(parts); time < (1 - tuning::min_gain) * least_time) {
                least_time = time;
                best = parts;
            }
        }
    }
    return best;
}

} // namespace

std::optional<StoredDsParts> plan_stored_ds(const Problem &problem, KeyScope scope,
                                            const std::vector<PlannedGrid> &queries,
                                            const std::vector<PlannedGrid> &keys, bool sums_keys,
                                            const BackwardShapes &shapes, int multiprocessors, std::size_t bytes) {
    if (!can_store_ds(problem, queries, keys))
        return std::nullopt;
    const TileGrid &tiles = keys.front().tiles;
    const GridBranch &branch = tiles.branches[0];
    const auto segment_rows = [&](const Window &window) {
        return std::min<std::int64_t>(window.length, branch.length.value);
    };
    const auto row_blocks = [&](const Window &window) {
        return static_cast<int>(divide_up(divide_up(segment_rows(window), branch.dilation.value), row_block_rows));
    };
    StoredDsParts parts{1, 1, 1, tiles.sequence.segments, segment_rows(problem.keys), {}};
    parts.layout.splits = parts.layout.slices = 1;
    parts.layout.queries = row_blocks(problem.queries);
    parts.layout.keys = row_blocks(problem.keys);
    parts.layout.is_triangular = tiles.causal && problem.queries == problem.keys;
    if (shapes.storing == StoringKernels::one)
        return plan_one_kernel(problem, scope, parts, sums_keys, shapes.keys.row_blocks, multiprocessors, bytes);
    return plan_pairs(problem, parts, sums_keys, shapes, multiprocessors, bytes);
}

bool zeros_outweigh_ds(const Problem &problem, const TileGrid &tiles, const StoredDsParts &parts) {
    const StoredDs &stored = parts.layout;
    const std::int64_t key_blocks = std::int64_t{stored.slices} * stored.keys;
    const std::int64_t cell_images =
        key_blocks * (stored.is_triangular ? key_blocks + 1 : std::int64_t{2} * stored.turns.passes * stored.queries) /
        2;
    const std::int64_t images = problem.batch * problem.heads * parts.all_segments * cell_images;
    const std::int64_t rows = problem.heads * problem.queries.length + 2 * problem.kv_heads * problem.key_rows();
    const std::int64_t bytes = problem.batch * rows * problem.head_dim * dtype_bytes(problem.dtype);
    return bytes - bytes / tiles.branches[0].dilation.value > images * StoredDs::image_bytes;
}

} // namespace annulus
