// SPDX-License-Identifier: Apache-2.0
// From an order along a curve to the linear order: each segment's positions are renumbered so that those of a class
// stand where the linear order has that class. To a branch the numbers are then what positions are in the linear order.
// Places are such numbers. Under causality a class keeps the order of its positions, so that between a query and keys
// of one class numbers tell what is hidden.
#pragma once

#include "core/plan.hpp"
#include "cuda/device/device_rows.hpp"
#include "cuda/fused/schedule/tile_grid.hpp"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace annulus {

// Writes to order[i] the position that is number i, both from the segment's start: of a whole segment, and behind it of
// the last one, if that is shorter. `order` and, under causality, `residues`, which is scratch, have
// curve_order_length() elements.
void find_curve_order(const BranchPlan &branch, int *residues, int *order, cudaStream_t stream);

// Copies the rows that a grid's ranges are of, at multiples of 16 bytes, to target [batches, rows, heads, D] in the
// grid's order.
void pack_in_order(annulus_dtype dtype, const TileGrid &grid, const DeviceRows &rows, std::int64_t batches,
                   std::int32_t heads, std::int32_t head_dim, void *target, cudaStream_t stream);

} // namespace annulus
