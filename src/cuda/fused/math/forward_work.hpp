// SPDX-License-Identifier: Apache-2.0
// What a launch of a forward kernel has to do, whatever the architecture: its grid, tensors and results. An
// architecture's parameters add how it reads keys and values.
#pragma once

#include "cuda/fused/schedule/destination.hpp"
#include "cuda/fused/schedule/rows_to_clear.hpp"
#include "cuda/fused/schedule/tile_grid.hpp"
#include "cuda/results/device_summed_rows.hpp"
#include "cuda/results/softmax_state.hpp"

#include <cstdint>

namespace annulus {

// Row blocks are of queries, ranges of keys.
struct ForwardWork : TileGrid {
    int heads_of_kv_head, head_dim;
    float scale_log2, inverse_scale_log2; // scale log2(e), above 0, and 1 / (scale log2(e))
    TensorRows q;

    // Returns the row of a query in Q.
    template <RowOrder rows = RowOrder::either> constexpr int query_row(int number) const {
        return position_of<rows>(number) - first_row;
    }

    // Returns the number of a query's partial results among those of its head; -1 if the query has none.
    template <RowOrder rows = RowOrder::either> constexpr int partial_row(int head, int number) const {
        return summed.are_few ? summed.row(head, number) : partial_stride.quotient(query_row<rows>(number));
    }

    // Results of queries that have keys: O of the dtype and LSE in float32 (which may be null), or partial results.
    Destination destination;
    TensorRows out, lse;
    DeviceSummedRows summed;     // the rows that have partial results, if only some do
    float *partial_o;            // [B, H, partial_rows, D], or null
    float2 *partial_state;       // [B, H, partial_rows]
    int all_heads, partial_rows; // in all: heads, and rows of each head that have partial results
    FastDivmod partial_stride;   // among this many consecutive rows at most one has partial results; without `summed`
    std::int64_t first_partial_row; // row of the first partial result, counted over all heads one after the other
    int *has_nonfinite;  // null unless keys are hidden: becomes 1 if O or a partial result is NaN or infinite
    RowsToClear cleared; // for kernels that clear rows
};

} // namespace annulus
