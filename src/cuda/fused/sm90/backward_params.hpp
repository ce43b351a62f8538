// SPDX-License-Identifier: Apache-2.0
// What a launch of a fused backward kernel is given.
#pragma once

#include "cuda/fused/math/backward_work.hpp"
#include "cuda/fused/schedule/kernel_shape.hpp"

#include <algorithm>
#include <cuda.h>
#include <cuda_runtime_api.h>

namespace annulus {

// Returns whether there are kernels that store dS instead of computing it twice. Below 33 columns, two products take
// less time than writing and reading their result.
constexpr bool has_storing_kernels(int head_dim) {
    return head_dim > 32 && head_dim <= most_columns_of_both;
}

struct BackwardParams : BackwardWork {
    CUtensorMap range_q_or_k[2 * max_strides], range_v_or_d_o[2 * max_strides];
    TensorRows range_q_or_k_rows, range_v_or_d_o_rows; // the same, for permuted rows
    // For a kernel over row blocks of keys that stores dS and multiplies it: the work for queries, and K.
    BackwardWork query_work;
    CUtensorMap k[2];
    TensorRows k_rows;

    void set_queries(const BackwardParams &queries) {
        query_work = queries;
        std::copy_n(queries.range_q_or_k, 2, k); // two maps: there is one branch
        k_rows = queries.range_q_or_k_rows;
    }
};

} // namespace annulus
