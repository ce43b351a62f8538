// SPDX-License-Identifier: Apache-2.0
// Merges the partial results of range parts (plan/range_parts.hpp), in the order of the parts.
#pragma once

#include "cuda/fused/schedule/tile_grid.hpp"
#include "cuda/results/device_summed_rows.hpp"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace annulus {

struct RangePartsWork {
    const TileGrid &grid; // as it was launched
    int parts, columns;
    bool adds;               // to the partial results of all rows; otherwise sets them
    std::int64_t all_rows;   // rows of a head
    DeviceSummedRows summed; // the rows that have partial results
};

// Merges O and softmax states [parts, B, heads, rows of the grid] into those of all rows that have partial results,
// [B, heads, rows].
void merge_range_parts(const RangePartsWork &work, const float2 *part_state, const float *part_o, float2 *state,
                       float *o, cudaStream_t stream);
// Does the same for gradients, whose parts are added.
void add_range_parts(const RangePartsWork &work, const float *parts, float *gradients, cudaStream_t stream);

} // namespace annulus
