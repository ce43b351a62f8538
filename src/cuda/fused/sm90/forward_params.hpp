// SPDX-License-Identifier: Apache-2.0
// What a launch of the fused forward kernel is given.
#pragma once

#include "cuda/fused/math/forward_work.hpp"

#include <cuda.h>

namespace annulus {

struct ForwardParams : ForwardWork {
    CUtensorMap k[2 * max_strides], v[2 * max_strides];
    TensorRows k_rows, v_rows; // K and V once more, for permuted rows
};

} // namespace annulus
