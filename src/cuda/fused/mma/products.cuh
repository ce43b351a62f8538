// SPDX-License-Identifier: Apache-2.0
// The products of a warp's strips with a block of rows in shared memory, swizzled (shared_rows.cuh), for 16-bit
// elements. What a lane reads of the block serves all strips.
#pragma once

#include "cuda/fused/math/fragment.cuh"
#include "cuda/fused/math/shared_rows.cuh"
#include "cuda/fused/math/warp_products.cuh"
#include "cuda/fused/mma/instructions.cuh"
#include "cuda/fused/mma/operand.cuh"
#include "cuda/fused/mma/products_float32.cuh"

#include <cstdint>
#include <type_traits>

namespace annulus::mma {

// Computes multiply_rows() for 32-bit elements.
template <class Element, int columns, int rows, int strips>
requires(sizeof(Element) == sizeof(float)) __device__ __forceinline__
    void multiply_rows(float (&result)[strips][rows / 2], std::uint32_t a, int first_row, std::uint32_t b) {
    multiply_float_rows<std::is_same_v<Element, float>, columns, rows, strips>(result, a, first_row, b);
}

// sum += A B, with A in registers, and `rows` rows of `columns` columns of B at `b`.
template <class Element, int columns, int rows, int strips>
__device__ __forceinline__ void add_block_product(float (&sum)[strips][columns / 2],
                                                  const Operand<Element, rows / 2> (&a)[strips], std::uint32_t b) {
    if constexpr (sizeof(Element) == sizeof(float)) {
        add_float_block_product<std::is_same_v<Element, float>, columns, rows, strips>(sum, a, b);
    } else {
        const int lane = FragmentThread<>().lane(); // read anew, so that addresses are not kept in registers
        const LaneRow right(b, lane % 16, lane / 16);
#pragma unroll
        for (int i = 0; i < rows / 16; ++i)
#pragma unroll
            for (int j = 0; j < columns / 16; ++j) {
                std::uint32_t b_fragment[4];
                load_matrices<true>(b_fragment, right.template at<rows>(j) + i * 16 * swizzled_row_bytes);
#pragma unroll
                for (int s = 0; s < strips; ++s) {
                    add_product<Element>(sum[s] + 8 * j, a[s].pairs + 4 * i, b_fragment);
                    add_product<Element>(sum[s] + 8 * j + 4, a[s].pairs + 4 * i, b_fragment + 2);
                }
            }
    }
}

// Puts the sums of add_block_product() into the order of a fragment.
template <class Element, int count> __device__ __forceinline__ void order_sums(float (&sum)[count]) {
    if constexpr (sizeof(Element) == sizeof(float))
        order_float_sums(sum);
}

} // namespace annulus::mma
