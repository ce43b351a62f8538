// SPDX-License-Identifier: Apache-2.0
// The caller's tensors in the form that kernels use.
#pragma once

#include <cstdint>

namespace annulus {

// A caller's [B, rows, heads, D] tensor, or [B, heads, rows] LSE: strides in elements, the position of row 0, and the
// number of positions between consecutive rows.
struct DeviceRows {
    void *data = nullptr;
    std::int64_t batch = 0, row = 0, head = 0;
    std::int64_t start = 0, stride = 1;
};

} // namespace annulus
