// SPDX-License-Identifier: Apache-2.0
// What a launch of a forward kernel has to do, whatever the architecture: its grid, tensors and results. An
// architecture's parameters add how it reads keys and values.
#pragma once

#include "cuda/fused/schedule/tile_grid.hpp"
#include "cuda/results/softmax_state.hpp"

#include <cstdint>

namespace annulus {

// Units are of queries, runs of keys.
struct ForwardWork : TileGrid {
    int heads_of_kv_head, head_dim;
    float scale_log2, inverse_scale_log2; // scale log2(e), above 0
    PassRows q;
    // Where queries and keys have numbers other than their positions (curve_order.hpp): the index, from unit_start, of
    // the position with number unit_start + i; results are then sums. Else null.
    const int *query_order;
    int query_offset; // of unit_start, in the rows of Q and the sums

    // The row of a query in Q and the sums.
    constexpr int query_row(int number) const {
        const int index = number - unit_start;
        return (query_order ? query_order[index] : index) + query_offset;
    }

    // Results, of queries that have keys: either O and LSE (which may be null) of the dtype, or sums: O
    // unnormalised and (m, l) in units of log2.
    PassRows out, lse;
    float *sum_o;            // [B, H, queries, D], or null
    float2 *sum_state;       // [B, H, queries]
    int all_heads, sum_rows; // heads and rows of the whole
    std::int64_t first_sum;  // row of the sums' first, of all heads one after the other
    bool sets_sums;          // instead of adding to them
    bool takes_sums;         // for O and LSE of the rows that have one
    // With sums: queries that have none (`summed`) get O and LSE at once; finished_state() tells of them.
    bool finishes_rows;
    int *has_nan; // causal; becomes 1 where O or a sum is NaN or infinite. Else null
};

} // namespace annulus
