// SPDX-License-Identifier: Apache-2.0
// What a launch of a backward kernel has to do, whatever the architecture: its grid, tensors and results. An
// architecture's parameters add how it reads the rows of runs.
//
// Scores are products of rows of Q and K, gradients of probabilities those of dO and V. So each side has two matrices:
// its score rows (Q, or K) and its value rows (dO, or V).
#pragma once

#include "cuda/fused/schedule/destination.hpp"
#include "cuda/fused/schedule/tile_grid.hpp"

#include <cstdint>

namespace annulus {

struct BackwardWork : TileGrid {
    PassRows unit_scores, unit_values;
    FastDivmod unit_stride; // positions to a row of units
    int all_heads, heads_of_kv_head, head_dim;
    float scale, scale_log2; // scale log2(e)
    // Where rows have numbers other than their positions (curve_order.hpp): the index, from unit_start, of the position
    // with number unit_start + i; results are then partial. Else null.
    const int *unit_order;
    int unit_offset; // of unit_start, in the rows of units and of partial results
    // Of queries, in the order of their tensors or, for units of keys, of runs: [B, H, statistic_rows].
    const float *lse_log2; // LSE log2(e); of a query without keys infinity, so that its probabilities are 0
    const float *delta;
    int statistic_rows;

    // Results: gradients of the units' score rows and value rows, of the dtype or partial, [B, heads, rows, D].
    Destination destination;
    PassRows d_scores, d_values;
    float *partial_d_scores, *partial_d_values;
    int partial_rows;
    std::int64_t first_partial_row; // row of the first partial result, of all heads one after the other
    int *has_nan;                   // causal; becomes 1 where a result is NaN or infinity. Else null

    // The row of a unit in its tensors and in partial results.
    constexpr int unit_row(int number) const {
        const int index = number - unit_start;
        return (unit_order ? unit_order[index] : unit_stride.quotient(index)) + unit_offset;
    }
};

} // namespace annulus
