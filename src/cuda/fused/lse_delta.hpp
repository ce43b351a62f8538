// SPDX-License-Identifier: Apache-2.0
// LSE and delta of each query, which gradients need beside its rows.
#pragma once

#include "cuda/device/device_rows.hpp"
#include "cuda/fused/schedule/tile_grid.hpp"

#include <annulus/tensor.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace annulus {

// Of each query: LSE log2(e), or infinity of one without keys, so that its probabilities are 0; and
// delta = O . dO - dLSE. Both [B, H, queries]. `out` and `d_out`, of 16-bit elements, have rows that begin at multiples
// of 16 bytes; d_lse.data may be null.
struct LseDeltaArguments {
    DeviceRows out, d_out, lse, d_lse;
    std::int64_t batches, queries;
    std::int32_t heads, head_dim;
    float *lse_log2, *delta;
    unsigned *counters; // set to 0 on the way, which spares a launch
    int counter_count;
};
void find_lse_delta(annulus_dtype dtype, const LseDeltaArguments &arguments, cudaStream_t stream);

// Copies both to target [B, H, rows of the ranges] in a grid's order. `rows` is B H, of so many queries each, the first
// at position `start`.
struct LseDeltaOrder {
    std::int64_t rows, queries, start;
};
void pack_lse_delta(const TileGrid &grid, const LseDeltaOrder &order, const float *lse_log2, const float *delta,
                    float *packed_lse_log2, float *packed_delta, cudaStream_t stream);

} // namespace annulus
