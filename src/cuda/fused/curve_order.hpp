// SPDX-License-Identifier: Apache-2.0
// Turns an order along a curve into the linear order. The positions of each segment get new numbers, so that a class
// has the same numbers as in the linear order. To a branch, these numbers are what positions are in the linear order.
// Places are such numbers. Under causality a class keeps the order of its positions. So for a query and keys of one
// class, the numbers say which keys are hidden.
#pragma once

#include "core/plan.hpp"
#include "cuda/device/device_rows.hpp"
#include "cuda/fused/schedule/tile_grid.hpp"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace annulus {

// Writes to order[i] the position of number i; both count from the start of the segment. Writes them for a whole
// segment, then for the last segment, if that is shorter. `order` has curve_order_length() elements. So has `residues`,
// which is scratch and used only under causality.
void find_curve_order(const BranchPlan &branch, int *residues, int *order, cudaStream_t stream);

// Copies the range rows of a grid to target [batches, rows, heads, D], in the grid's order. The rows must begin at
// multiples of 16 bytes.
void pack_in_order(annulus_dtype dtype, const TileGrid &grid, const DeviceRows &rows, std::int64_t batches,
                   std::int32_t heads, std::int32_t head_dim, void *target, cudaStream_t stream);

} // namespace annulus
