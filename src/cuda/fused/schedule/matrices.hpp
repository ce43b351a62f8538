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

// The tensors that ranges read: `q_or_k` is K or Q, and `v_or_d_o` is V or dO. In forward they are K and V.
struct RangeMatrices {
    RangeMatrix q_or_k, v_or_d_o;
};

} // namespace annulus
