// SPDX-License-Identifier: Apache-2.0
// What a launch of a backward kernel has to do, whatever the architecture: its grid, tensors and results. An
// architecture's parameters add how it reads the rows of ranges.
//
// Row blocks are of queries and ranges of keys, or the other way round. Each side has two matrices: `q_or_k` (Q or K),
// whose products are scores S, and `v_or_d_o` (V or dO), whose products are dP.
#pragma once

#include "cuda/fused/schedule/destination.hpp"
#include "cuda/fused/schedule/rows_to_clear.hpp"
#include "cuda/fused/schedule/tile_grid.hpp"

#include <cstdint>

namespace annulus {

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
    int partial_rows;
    FastDivmod partial_stride;      // among this many consecutive rows at most one has partial results
    std::int64_t first_partial_row; // row of the first partial result, counted over all heads one after the other
    int *has_nonfinite;             // null unless keys are hidden: becomes 1 if a result is NaN or infinite
    RowsToClear cleared;            // for kernels that clear rows

    // Returns the row, in its tensors, of a row block's row with this number.
    template <RowOrder rows = RowOrder::either> constexpr int row_of(int number) const {
        return row_stride.quotient(position_of<rows>(number) - first_row);
    }
};

} // namespace annulus
