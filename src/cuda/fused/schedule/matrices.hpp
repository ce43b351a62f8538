// SPDX-License-Identifier: Apache-2.0
// Tensors as the launches see them.
#pragma once

#include "cuda/device/device_rows.hpp"
#include "cuda/fused/schedule/tile_grid.hpp"

#include <cstdint>

namespace annulus {

inline TensorRows tensor_rows(const DeviceRows &rows) {
    return {rows.data, rows.batch, rows.row, rows.head, static_cast<int>(rows.start)};
}

// A matrix of `heads` heads with `count` rows each.
struct RangeMatrix {
    DeviceRows rows;
    std::int64_t count = 0;
    std::int32_t heads = 0;
};

// The tensors that ranges read: K and V, or Q and dO.
struct RangeMatrices {
    RangeMatrix scores, values;
};

} // namespace annulus
