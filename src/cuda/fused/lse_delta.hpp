// SPDX-License-Identifier: Apache-2.0
// LSE and delta of each query, from which backward computes gradients.
#pragma once

#include "cuda/device/device_rows.hpp"
#include "cuda/fused/schedule/tile_grid.hpp"

#include <annulus/tensor.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace annulus {

// Arguments of find_lse_delta(), which writes two values for each query, both [B, H, queries]:
//
// - lse_log2 = LSE · log2(e), or infinity for a query without keys, so that its probabilities are 0
// - delta = O · dO - dLSE
//
// `out` and `d_out` have 16-bit elements, and their rows begin at multiples of 16 bytes. d_lse.data may be null.
struct LseDeltaArguments {
    DeviceRows out, d_out, lse, d_lse;
    std::int64_t batches, queries;
    std::int32_t heads, head_dim;
    float *lse_log2, *delta;
    unsigned *counters; // set to 0 by the same kernel, which saves a launch
    int counter_count;
};
void find_lse_delta(annulus_dtype dtype, const LseDeltaArguments &arguments, cudaStream_t stream);

// Copies lse_log2 and delta to [B, H, range rows], in a grid's order. LseDeltaOrder::rows is B · H; each has `queries`
// queries, the first at position `start`.
struct LseDeltaOrder {
    std::int64_t rows, queries, start;
};
void pack_lse_delta(const TileGrid &grid, const LseDeltaOrder &order, const float *lse_log2, const float *delta,
                    float *packed_lse_log2, float *packed_delta, cudaStream_t stream);

} // namespace annulus
