// SPDX-License-Identifier: Apache-2.0
// What a launch of a backward kernel has to do, whatever the architecture: its grid, tensors and results. An
// architecture's parameters add how it reads the rows of ranges.
//
// Scores are products of rows of Q and K, gradients of probabilities those of dO and V. So each side has two matrices:
// its score rows (Q, or K) and its value rows (dO, or V).
#pragma once

#include "cuda/fused/schedule/destination.hpp"
#include "cuda/fused/schedule/rows_to_clear.hpp"
#include "cuda/fused/schedule/stored_turns.hpp"
#include "cuda/fused/schedule/tile_grid.hpp"

#include <algorithm>
#include <cstdint>

namespace annulus {

// dS of the only branch of some heads and segments in images: of 64 keys and 64 queries each, in an order that is the
// architecture's. For each batch entry, head, segment and row block of keys one image for each row block of queries of
// a pass (StoredTurns) that sees it: under causality, where both are of the same rows, not for the hidden() ones
// before.
struct StoredDs {
    std::uint8_t *images;
    int first_batch, batches, first_head, head_step, heads, first_segment, segments;
    int queries, keys;  // row blocks at most: of a pass's queries, and of a segment's keys
    bool is_triangular; // of images
    int cells;          // a segment of a head of a batch entry: so many have their images in memory at a time
    // Where one kernel stores and multiplies (else of one pass, no more), and what it counts: two counts for each group
    // in memory.
    StoredTurns turns;
    unsigned *done;
    bool ends_partial; // the last of several passes writes what the others have left as partial results

    static constexpr int image_bytes = row_block_rows * row_block_rows * 2;
    static constexpr int row_blocks_of_tile = 4; // of queries, of the kernel that multiplies

    // Of the queries' row blocks those before a pass's: the first pass has the last ones, which see all keys.
    constexpr int queries_before(int pass) const { return (turns.passes - 1 - pass) * queries; }
    // Positions of a pass's queries, of a class in [start, end).
    struct Positions {
        int start, end;
    };
    constexpr Positions queries_of_pass(int start, int end, int dilation, int pass) const {
        const auto first = [&](int any_pass) { return start + queries_before(any_pass) * row_block_rows * dilation; };
        return {first(pass), pass == 0 ? end : std::min(end, first(pass - 1))};
    }

    // At most, which is in the first pass.
    constexpr std::int64_t images_of_segment() const {
        const std::int64_t seeing_less = is_triangular ? keys - queries_before(0) : 0;
        return std::int64_t{keys} * queries - seeing_less * (seeing_less - 1) / 2;
    }
    // Of a pass's row blocks of queries those that do not see this one of keys.
    constexpr int hidden(int key_block, int pass) const {
        const int before = queries_before(pass);
        return is_triangular && key_block > before ? key_block - before : 0;
    }
    // Where that of the first row block of queries is, or would be.
    constexpr std::uint8_t *image(int batch, int head, int segment, int key_block, int pass) const {
        const std::int64_t head_of_all = std::int64_t{batch - first_batch} * heads + (head - first_head) / head_step;
        const std::int64_t cell_of_pass = head_of_all * segments + segment - first_segment;
        const std::int64_t cell = (std::int64_t{pass} * turns.cells_of_pass.value + cell_of_pass) % cells;
        const std::int64_t hides = hidden(key_block, pass);
        return images +
               (cell * images_of_segment() + std::int64_t{key_block} * queries - hides * (hides + 1) / 2) * image_bytes;
    }

    // Where they lie by halves, of 32 keys: for a row block of keys first those of all row blocks of queries, then the
    // others behind.
    static constexpr int half_bytes = image_bytes / 2;
    struct Halves {
        std::uint8_t *first_query; // or where that would be
        std::int64_t distance;     // between halves
    };
    constexpr Halves halves(int batch, int head, int segment, int key_block, int pass) const {
        const std::int64_t hides = hidden(key_block, pass);
        return {image(batch, head, segment, key_block, pass) + hides * half_bytes, (queries - hides) * half_bytes};
    }

    // Where a pass puts the results of keys; `first`: the first pass.
    constexpr Destination destination(Destination first, int pass) const {
        if (pass == 0)
            return first;
        return ends_partial && pass == turns.passes - 1 ? Destination::finish_partial : Destination::add_to_partial;
    }
};

struct BackwardWork : TileGrid {
    TensorRows row_q_or_k, row_v_or_d_o;
    FastDivmod row_stride; // positions to a row of row blocks
    int all_heads, heads_of_kv_head, head_dim;
    float scale, scale_log2; // scale log2(e)
    // Of queries: [B, H, statistic_rows].
    const float *lse_log2; // LSE log2(e); of a query without keys infinity, so that its probabilities are 0
    const float *delta;
    int statistic_rows;

    // Results: gradients of the row blocks' score rows and value rows, of the dtype or partial, [B, heads,
    // partial_rows, D].
    Destination destination;
    TensorRows d_q_or_k, d_v;
    float *partial_d_q_or_k, *partial_d_v;
    int partial_rows;
    FastDivmod partial_stride;      // of so many neighbouring rows no more than one has any
    std::int64_t first_partial_row; // row of the first partial result, of all heads one after the other
    int *has_nonfinite;             // causal; becomes 1 where a result is NaN or infinity. Else null
    StoredDs stored_d_s;            // of kernels that store dS or multiply it
    RowsToClear cleared;            // of kernels that clear rows

    // The row of a row block in its tensors.
    template <RowOrder rows = RowOrder::either> constexpr int row_of(int number) const {
        return row_stride.quotient(position_of<rows>(number) - first_row);
    }
};

} // namespace annulus
