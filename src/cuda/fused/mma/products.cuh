// SPDX-License-Identifier: Apache-2.0
// The products of a warp's strips with a block of rows in shared memory, swizzled (shared_rows.cuh): here those of
// 16-bit elements. What a lane reads of the block serves all strips.
#pragma once

#include "cuda/fused/math/fragment.cuh"
#include "cuda/fused/math/shared_rows.cuh"
#include "cuda/fused/mma/instructions.cuh"
#include "cuda/fused/mma/operand.cuh"
#include "cuda/fused/mma/products_float32.cuh"
#include "cuda/fused/schedule/tile_grid.hpp"

#include <cstdint>
#include <type_traits>

namespace annulus::mma {

// Of 8 x 8 elements, rows after one another, as dS is stored.
constexpr int matrix_bytes = 128;

// Part `part` (of 16 bytes) and the next ones of a lane's row: those that a warp reads are 16 columns, 32 bytes, apart.
// `rows` as of swizzled_offset().
struct LaneRow {
    std::uint32_t first; // of the row's even or odd parts
    __device__ __forceinline__ LaneRow(std::uint32_t matrix, int row, int is_odd)
        : first(matrix + row * swizzled_row_bytes + ((is_odd ^ swizzle_of_row<2>(row)) << 4)) {}
    // Of columns 16 i to 16 i + 15.
    template <int rows> __device__ __forceinline__ std::uint32_t at(int i) const {
        return (first ^ (i % 4 << 5)) + i / 4 * rows * swizzled_row_bytes;
    }
};

// result = A B^T, in a fragment's order. A: the strips' rows of a row block at `a`, the first of them its row
// `first_row`; B: `rows` rows at `b`. Both of `columns` columns.
template <class Element, int columns, int rows, int strips>
__device__ __forceinline__ void multiply_rows(float (&result)[strips][rows / 2], std::uint32_t a, int first_row,
                                              std::uint32_t b) {
    if constexpr (sizeof(Element) == sizeof(float)) {
        multiply_float_rows<std::is_same_v<Element, float>, columns, rows, strips>(result, a, first_row, b);
    } else {
        const int lane = FragmentThread<>().lane(); // asked for anew: addresses would be kept in registers
        const LaneRow left(a, first_row + lane % 16, lane / 16), right(b, lane / 16 * 8 + lane % 8, lane / 8 % 2);
#pragma unroll
        for (int s = 0; s < strips; ++s)
#pragma unroll
            for (int i = 0; i < rows / 2; ++i)
                result[s][i] = 0;
#pragma unroll
        for (int i = 0; i < columns / 16; ++i) {
            std::uint32_t own[strips][4];
#pragma unroll
            for (int s = 0; s < strips; ++s)
                load_matrices<false>(own[s], left.template at<row_block_rows>(i) + s * 16 * swizzled_row_bytes);
#pragma unroll
            for (int j = 0; j < rows / 16; ++j) {
                std::uint32_t of_range[4];
                load_matrices<false>(of_range, right.template at<rows>(i) + j * 16 * swizzled_row_bytes);
#pragma unroll
                for (int s = 0; s < strips; ++s) {
                    add_product<Element>(result[s] + 8 * j, own[s], of_range);
                    add_product<Element>(result[s] + 8 * j + 4, own[s], of_range + 2);
                }
            }
        }
    }
}

// sum += A B: A in registers, `rows` rows of B, of `columns` columns, at `b`.
template <class Element, int columns, int rows, int strips>
__device__ __forceinline__ void add_product_of(float (&sum)[strips][columns / 2],
                                               const Operand<Element, rows / 2> (&a)[strips], std::uint32_t b) {
    if constexpr (sizeof(Element) == sizeof(float)) {
        add_float_product_of<std::is_same_v<Element, float>, columns, rows, strips>(sum, a, b);
    } else {
        const int lane = FragmentThread<>().lane(); // asked for anew: addresses would be kept in registers
        const LaneRow right(b, lane % 16, lane / 16);
#pragma unroll
        for (int i = 0; i < rows / 16; ++i)
#pragma unroll
            for (int j = 0; j < columns / 16; ++j) {
                std::uint32_t of_range[4];
                load_matrices<true>(of_range, right.template at<rows>(j) + i * 16 * swizzled_row_bytes);
#pragma unroll
                for (int s = 0; s < strips; ++s) {
                    add_product<Element>(sum[s] + 8 * j, a[s].pairs + 4 * i, of_range);
                    add_product<Element>(sum[s] + 8 * j + 4, a[s].pairs + 4 * i, of_range + 2);
                }
            }
    }
}

// From the order of what add_product_of() has summed to a fragment's.
template <class Element, int count> __device__ __forceinline__ void order_sums(float (&sum)[count]) {
    if constexpr (sizeof(Element) == sizeof(float))
        order_float_sums(sum);
}

} // namespace annulus::mma
