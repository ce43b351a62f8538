// SPDX-License-Identifier: Apache-2.0
// Products of 16-bit elements by single warps (mma.sync), and how warps read rows from shared memory (shared_rows.cuh).
// On GPUs with wgmma, they serve what a warp computes alone.
#pragma once

#include "cuda/fused/math/fragment.cuh"
#include "cuda/fused/math/shared_rows.cuh"
#include "cuda/fused/schedule/tile_grid.hpp"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace annulus::mma {

// d += A B with A [16, 16] and B [16, 8]. d is laid out as FragmentThread says, a and b as load_matrices() leaves them.
template <class Element>
__device__ __forceinline__ void add_product(float *d, const std::uint32_t *a, const std::uint32_t *b);
template <>
__device__ __forceinline__ void add_product<__nv_bfloat16>(float *d, const std::uint32_t *a, const std::uint32_t *b) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
template <>
__device__ __forceinline__ void add_product<__half>(float *d, const std::uint32_t *a, const std::uint32_t *b) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
#pragma unroll
    for (int half = 0; half < 2; ++half)
        asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
            "{%0, %1, %2, %3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[2 * half]), "r"(a[2 * half + 1]), "r"(b[half]));
#endif
}

// Addresses of the 16-byte parts that a lane reads of its row: the even parts, or the odd parts. They are 16 columns,
// 32 bytes, apart. `rows` is that of swizzled_offset().
struct LaneRow {
    std::uint32_t first; // the row's first even or odd part
    __device__ __forceinline__ LaneRow(std::uint32_t matrix, int row, int is_odd)
        : first(matrix + row * swizzled_row_bytes + ((is_odd ^ swizzle_of_row<2>(row)) << 4)) {}
    // Returns the address of the lane's part of columns 16 i to 16 i + 15.
    template <int rows> __device__ __forceinline__ std::uint32_t at(int i) const {
        return (first ^ (i % 4 << 5)) + i / 4 * rows * swizzled_row_bytes;
    }
};

// result = A B^T, in the order of a fragment. A: the rows of all strips in a row block at `a`, from its row `first_row`
// on. B: `rows` rows at `b`. Both have `columns` columns. What a lane reads of B serves all strips.
template <class Element, int columns, int rows, int strips>
requires(sizeof(Element) == 2) __device__ __forceinline__
    void multiply_rows(float (&result)[strips][rows / 2], std::uint32_t a, int first_row, std::uint32_t b) {
    const int lane = FragmentThread<>().lane(); // read anew, so that addresses are not kept in registers
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
            std::uint32_t b_fragment[4];
            load_matrices<false>(b_fragment, right.template at<rows>(i) + j * 16 * swizzled_row_bytes);
#pragma unroll
            for (int s = 0; s < strips; ++s) {
                add_product<Element>(result[s] + 8 * j, own[s], b_fragment);
                add_product<Element>(result[s] + 8 * j + 4, own[s], b_fragment + 2);
            }
        }
    }
}

} // namespace annulus::mma
