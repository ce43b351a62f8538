// SPDX-License-Identifier: Apache-2.0
// Writes partial results to the caller's tensors, for some of the rows.
#pragma once

#include "cuda/fused/schedule/tile_grid.hpp"
#include "cuda/results/results.hpp"

#include <annulus/tensor.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

namespace annulus {

struct PartialRowsArguments {
    Block block;      // queries and keys must be the same positions and heads
    PartialRows rows; // the rows that are written
    std::int32_t head_dim;
    const float *partial;    // [B, H, rows, D]
    DeviceSummedRows summed; // the rows that `partial` has
    DeviceRows target;
};
// Writes rows of partial results to the caller's tensors, for up to three gradients. All must have the same block and
// head dimension.
void write_partial_rows(annulus_dtype dtype, std::span<const PartialRowsArguments> gradients, cudaStream_t stream);

} // namespace annulus
