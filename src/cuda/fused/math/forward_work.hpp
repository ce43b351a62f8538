// SPDX-License-Identifier: Apache-2.0
// What a launch of a forward kernel has to do, whatever the architecture: its grid, tensors and results. An
// architecture's parameters add how it reads keys and values.
#pragma once

#include "cuda/fused/schedule/destination.hpp"
#include "cuda/fused/schedule/rows_to_clear.hpp"
#include "cuda/fused/schedule/tile_grid.hpp"
#include "cuda/results/softmax_state.hpp"

#include <cstdint>

namespace annulus {

// Row blocks are of queries, ranges of keys.
struct ForwardWork : TileGrid {
    int heads_of_kv_head, head_dim;
    float scale_log2, inverse_scale_log2; // scale log2(e), above 0
    TensorRows q;

    // The row of a query in Q.
    template <RowOrder rows = RowOrder::either> constexpr int query_row(int number) const {
        return position_of<rows>(number) - first_row;
    }

    // Results, of queries that have keys: O and LSE (which may be null) of the dtype, or partial results.
    Destination destination;
    TensorRows out, lse;
    float *partial_o;               // [B, H, partial_rows, D], or null
    float2 *partial_state;          // [B, H, partial_rows]
    int all_heads, partial_rows;    // of the whole: heads, and rows of each that have partial results
    FastDivmod partial_stride;      // of so many neighbouring rows no more than one has any
    std::int64_t first_partial_row; // row of the first partial result, of all heads one after the other
    int *has_nonfinite;             // causal; becomes 1 where O or a partial result is NaN or infinity. Else null
    RowsToClear cleared;            // of kernels that clear rows
};

} // namespace annulus
