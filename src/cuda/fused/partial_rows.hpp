// SPDX-License-Identifier: Apache-2.0
// From partial results to the caller's tensors, for those rows alone that have some.
#pragma once

#include "cuda/fused/schedule/tile_grid.hpp"
#include "cuda/results/results.hpp"

#include <annulus/tensor.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

namespace annulus {

struct PartialRowsArguments {
    Block block;      // whose queries and keys are the same positions and heads
    PartialRows rows; // that have partial results
    std::int32_t head_dim;
    const float *partial; // [B, H, rows, D]
    DeviceRows target;
};
// Writes the rows that have partial results to the caller's tensors, of up to three gradients,
// with the same block and head dimension.
void write_partial_rows(annulus_dtype dtype, std::span<const PartialRowsArguments> gradients, cudaStream_t stream);

} // namespace annulus
