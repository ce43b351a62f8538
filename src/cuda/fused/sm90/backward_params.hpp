// SPDX-License-Identifier: Apache-2.0
// What a launch of a fused backward kernel is given.
#pragma once

#include "cuda/fused/math/backward_work.hpp"
#include "cuda/fused/schedule/query_sums.hpp"

#include <cuda.h>
#include <cuda_runtime_api.h>

namespace annulus {

struct BackwardParams : BackwardWork {
    CUtensorMap range_q_or_k[2 * max_strides], range_v_or_d_o[2 * max_strides];
    TensorRows range_q_or_k_rows, range_v_or_d_o_rows; // the same, for permuted rows
    QuerySums query_sums;                              // for Gradients::all and Gradients::d_q_of_sums
};

} // namespace annulus
