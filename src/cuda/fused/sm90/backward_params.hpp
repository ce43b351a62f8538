// SPDX-License-Identifier: Apache-2.0
// What a launch of a fused backward kernel is given.
//
// Scores are products of rows of Q and K, gradients of probabilities those of dO and V. So each side has two matrices:
// its score rows (Q, or K) and its value rows (dO, or V).
#pragma once

#include "cuda/fused/schedule/tile_grid.hpp"

#include <cuda.h>
#include <cuda_runtime_api.h>

namespace annulus {

// What a kernel computes. Units of the first are of queries, of the next ones of keys. The last two are a pair: one
// keeps dS, which the other (kept_scores.cuh) only has to multiply.
enum class Gradients { d_q, d_k_and_d_v, d_k, d_v, d_k_and_d_v_keeping_d_s, d_q_of_kept_d_s };

// Above this, the gradients of a unit's K and V together are too many registers: a kernel for each.
inline constexpr int most_columns_of_both = 128;

// Whether there are kernels that keep dS instead of computing it twice: below 65 columns two products take less time
// than writing and reading their result.
constexpr bool keeps_scores(int head_dim) {
    return head_dim > 64 && head_dim <= most_columns_of_both;
}

// dS of the only branch of some heads and segments in images: blocks of 64 keys and 64 queries, rows of keys as in
// shared memory. For each batch entry, head, segment and unit of keys one image for each unit of queries, under
// causality for those from the same number on.
struct StoredDs {
    std::uint8_t *images;
    int first_batch, batches, first_head, head_step, heads, first_segment, segments;
    int units_of_segment; // at most
    bool causal;

    static constexpr int image_bytes = unit_rows * unit_rows * 2;
    static constexpr int units_of_tile = 4; // of queries, of the kernel that multiplies

    __host__ __device__ std::int64_t images_of_segment() const {
        return std::int64_t{units_of_segment} * (causal ? units_of_segment + 1 : 2 * units_of_segment) / 2;
    }
    // Where that of the first unit of queries is, or would be.
    __device__ __forceinline__ std::uint8_t *image(int batch, int head, int segment, int keys) const {
        std::int64_t index = std::int64_t{batch - first_batch} * heads + (head - first_head) / head_step;
        index = (index * segments + segment - first_segment) * images_of_segment();
        index += std::int64_t{keys} * units_of_segment - (causal ? std::int64_t{keys} * (keys + 1) / 2 : 0);
        return images + index * image_bytes;
    }
};

struct BackwardParams : TileGrid {
    CUtensorMap run_scores[2 * most_strides], run_values[2 * most_strides];
    PassRows unit_scores, unit_values;
    FastDivmod unit_stride; // positions to a row of units
    int all_heads, heads_of_kv_head, head_dim;
    float scale, scale_log2; // scale log2(e)
    // Where rows have numbers other than their positions (curve_order.hpp): the index, from unit_start, of the position
    // with number unit_start + i; results are then sums. Else null.
    const int *unit_order;
    int unit_offset; // of unit_start, in the rows of units and the sums
    // Of queries, in the order of their tensors or, for units of keys, of runs: [B, H, statistic_rows].
    const float *lse_log2; // LSE log2(e); of a query without keys infinity, so that its probabilities are 0
    const float *delta;
    int statistic_rows;

    // Results: gradients of the units' score rows and value rows. Either rows of the dtype, or sums [B, heads, rows,
    // D].
    PassRows d_scores, d_values;
    float *sum_d_scores, *sum_d_values;
    int sum_rows;
    std::int64_t first_sum; // row of the sums' first, of all heads one after the other
    bool sets_sums;         // instead of adding to them
    bool takes_sums;        // for the rows of the dtype that have one
    bool finishes_rows;     // with sums: rows that have none (`summed`) are written at once
    int *has_nan;           // causal; becomes 1 where a result or a sum is NaN or infinite. Else null
    StoredDs kept;

    // The row of a unit in its tensors and the sums.
    __host__ __device__ int unit_row(int number) const {
        const int index = number - unit_start;
        return (unit_order ? unit_order[index] : unit_stride.quotient(index)) + unit_offset;
    }
};

} // namespace annulus
