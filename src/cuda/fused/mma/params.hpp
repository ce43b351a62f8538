// SPDX-License-Identifier: Apache-2.0
// What launches of the kernels on mma.sync are given.
#pragma once

#include "cuda/fused/math/backward_work.hpp"
#include "cuda/fused/math/forward_work.hpp"

namespace annulus::mma {

// Row 0 of a range's matrices is that of first_range_row.
struct ForwardParams : ForwardWork {
    TensorRows k, v;
};
struct BackwardParams : BackwardWork {
    TensorRows range_q_or_k, range_v_or_d_o;
};

} // namespace annulus::mma
