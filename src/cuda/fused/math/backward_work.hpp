// SPDX-License-Identifier: Apache-2.0
// What a launch of a backward kernel has to do, whatever the architecture: its grid, tensors and results. An
// architecture's parameters add how it reads the rows of ranges.
//
// Row blocks are of queries and ranges of keys, or the other way round. Each side has two matrices: `q_or_k` (Q or K),
// whose products are scores S, and `v_or_d_o` (V or dO), whose products are dP.
#pragma once

#include "cuda/fused/schedule/destination.hpp"
#include "cuda/fused/schedule/rows_to_clear.hpp"
#include "cuda/fused/schedule/stored_turns.hpp"
#include "cuda/fused/schedule/tile_grid.hpp"
#include "cuda/results/device_summed_rows.hpp"

#include <algorithm>
#include <cstdint>

namespace annulus {

// dS of the only branch of some heads and segments, in images. An image has the dS of 64 keys and 64 queries, in an
// order that is the architecture's. A cell is a segment of a head and batch entry, or a slice of its keys. In a cell,
// each row block of keys has images. It has one for each row block of queries of a pass (StoredTurns) that sees it.
// Under causality, if queries and keys are the same rows, the first hidden() row blocks of queries do not see it. They
// have no image if the cell has all keys of its segment.
struct StoredDs {
    std::uint8_t *images;
    int first_batch, batches, first_head, head_step, heads, first_segment, segments;
    int queries, keys;  // in row blocks, at most: a pass's queries and a cell's keys
    bool is_triangular; // causality hides row blocks
    int cells;          // cells whose images are in memory at a time
    // Slices of the keys of a segment, and cells of each slice: cell `number` of a pass is of slice number /
    // cells_of_slice. With several slices, a tile of queries has a turn for each. `sums` has its sums over earlier
    // slices, and `sum_counters` has, for each tile and consumer, the number of the slice that is added next. Slices
    // are counted over all passes.
    int slices;
    FastDivmod cells_of_slice;
    // `turns`: the order in which one kernel stores and multiplies. If there are two kernels, only its number of passes
    // counts, and `launch_pass` is the pass of the launch.
    // `done`: what that one kernel counts, two counts for each group in memory.
    StoredTurns turns;
    int launch_pass;
    unsigned *done;
    // A kernel that only multiplies divides the keys of each tile of queries among `splits` CTAs. Their sums are in
    // `sums`, and `sum_counters` has, for each tile, the number of CTAs that have stored theirs.
    int splits;
    float *sums;            // sum_floats() for each of StoredDsParts::sum_count()
    unsigned *sum_counters; // 0 before the first turn of a launch and after the last; kept from run() to run_rest()
    bool ends_partial; // the last of several passes adds the partial results of the earlier ones, and writes the sum

    static constexpr int image_bytes = row_block_rows * row_block_rows * 2;
    static constexpr int row_blocks_of_tile = 4; // row blocks of queries in a tile that multiplies
    static constexpr int consumers_of_tile = 2;  // of the one kernel: each has some row blocks of a tile

    // Returns the number of tiles of queries of a segment, in a pass.
    constexpr int query_tiles() const { return (queries + row_blocks_of_tile - 1) / row_blocks_of_tile; }
    // Returns the number of floats in the sums of a tile of queries.
    static constexpr std::int64_t sum_floats(int head_dim) {
        return std::int64_t{row_blocks_of_tile} * row_block_rows * ((head_dim + 7) / 8 * 8);
    }

    // Returns how many of the queries' row blocks come before a pass's. The first pass has the last row blocks, which
    // see all keys.
    constexpr int queries_before(int pass) const { return (turns.passes - 1 - pass) * queries; }
    // The interval of positions with a pass's queries, for a class in [start, end).
    struct Positions {
        int start, end;
    };
    constexpr Positions queries_of_pass(int start, int end, int dilation, int pass) const {
        const auto first = [&](int any_pass) { return start + queries_before(any_pass) * row_block_rows * dilation; };
        return {first(pass), pass == 0 ? end : std::min(end, first(pass - 1))};
    }

    // True if hidden row blocks have no images.
    constexpr bool leaves_out_hidden() const { return is_triangular && slices == 1; }
    // Returns how many images a cell has at most. The first pass has the most.
    constexpr std::int64_t images_of_cell() const {
        const std::int64_t seeing_less = leaves_out_hidden() ? keys - queries_before(0) : 0;
        return std::int64_t{keys} * queries - seeing_less * (seeing_less - 1) / 2;
    }
    // Returns how many of a pass's row blocks of queries do not see this row block of keys.
    constexpr int hidden(int key_block, int pass) const {
        const int before = queries_before(pass);
        return is_triangular && key_block > before ? key_block - before : 0;
    }
    // Returns the number of a segment's cell among those of its slice.
    constexpr std::int64_t cell_of_slice(int batch, int head, int segment) const {
        const std::int64_t head_of_all = std::int64_t{batch - first_batch} * heads + (head - first_head) / head_step;
        return head_of_all * segments + segment - first_segment;
    }
    // Returns where the image of the pass's first row block of queries is, or would be.
    constexpr std::uint8_t *image(int batch, int head, int segment, int key_block, int pass) const {
        const std::int64_t slice = slices == 1 ? 0 : key_block / keys;
        const std::int64_t cell_of_pass = slice * cells_of_slice.value + cell_of_slice(batch, head, segment);
        const std::int64_t cell = (std::int64_t{pass} * turns.cells_of_pass.value + cell_of_pass) % cells;
        const std::int64_t left_out = leaves_out_hidden() ? hidden(key_block, pass) : 0;
        return images +
               (cell * images_of_cell() + (key_block - slice * keys) * queries - left_out * (left_out + 1) / 2) *
                   image_bytes;
    }

    // Images may also lie in halves of 32 keys. A row block of keys then has the first halves of all row blocks of
    // queries first, and the second halves behind them.
    static constexpr int half_bytes = image_bytes / 2;
    struct Halves {
        std::uint8_t *first_query; // half of the pass's first row block of queries, or where it would be
        std::int64_t distance;     // bytes from an image's first half to its second half
    };
    constexpr Halves halves(int batch, int head, int segment, int key_block, int pass) const {
        const std::int64_t left_out = leaves_out_hidden() ? hidden(key_block, pass) : 0;
        return {image(batch, head, segment, key_block, pass) + left_out * half_bytes,
                (queries - left_out) * half_bytes};
    }

    // Returns where a pass puts the gradients of keys. `first` is the destination of the first pass.
    constexpr Destination destination(Destination first, int pass) const {
        if (pass == 0)
            return first;
        return ends_partial && pass == turns.passes - 1 ? Destination::finish_partial : Destination::add_to_partial;
    }
};

struct BackwardWork : TileGrid {
    TensorRows row_q_or_k, row_v_or_d_o;
    FastDivmod row_stride; // positions from one row of row blocks to the next
    int all_heads, heads_of_kv_head, head_dim;
    float scale, scale_log2; // scale_log2 is scale log2(e)
    // Statistics of queries: [B, H, statistic_rows].
    const float *lse_log2; // LSE log2(e); infinity for a query without keys, so that its probabilities are 0
    const float *delta;
    int statistic_rows;

    // Results: gradients of the row blocks' rows of Q or K, and of V. They are of the dtype, or partial: [B, heads,
    // partial_rows, D].
    Destination destination;
    TensorRows d_q_or_k, d_v;
    float *partial_d_q_or_k, *partial_d_v;
    DeviceSummedRows summed; // the rows that have partial results, if only some do
    int partial_rows;
    FastDivmod partial_stride; // among this many consecutive rows at most one has partial results; without `summed`
    std::int64_t first_partial_row; // row of the first partial result, counted over all heads one after the other
    int *has_nonfinite;             // null unless keys are hidden: becomes 1 if a result is NaN or infinite
    StoredDs stored_d_s;            // for kernels that store dS or multiply it
    RowsToClear cleared;            // for kernels that clear rows

    // Returns the row, in its tensors, of a row block's row with this number.
    template <RowOrder rows = RowOrder::either> constexpr int row_of(int number) const {
        return row_stride.quotient(position_of<rows>(number) - first_row);
    }
    // Returns the number of a row's partial results among those of its head of Q or K; -1 if the row has none. `head`
    // is one of Q.
    template <RowOrder rows = RowOrder::either> constexpr int partial_row(int head, int number) const {
        return summed.are_few ? summed.row(head, number) : partial_stride.quotient(row_of<rows>(number));
    }
};

} // namespace annulus
