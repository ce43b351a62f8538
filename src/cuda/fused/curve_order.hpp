// SPDX-License-Identifier: Apache-2.0
// From an order along a curve to the linear order: each segment's positions are renumbered so that those of a class
// stand where the linear order has that class, in their own order. To a branch, and to causality between a query and
// keys of one class, the numbers are then what positions are in the linear order.
#pragma once

#include "core/plan.hpp"
#include "cuda/device/device_rows.hpp"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace annulus {

// Writes to order[i] the index, from the window's start, of the position that is number i. The window cuts no segment.
// `residues` is scratch of as many elements.
void find_curve_order(const BranchPlan &branch, const Window &window, int *residues, int *order, cudaStream_t stream);

// Copies the rows of K or V of a window to target [batches, window, heads, D] in an order. `rows` of 16-bit elements
// begin at multiples of 16 bytes.
void pack_in_order(const DeviceRows &rows, const Window &window, const int *order, std::int64_t batches,
                   std::int32_t heads, std::int32_t head_dim, void *target, cudaStream_t stream);

} // namespace annulus
