// SPDX-License-Identifier: Apache-2.0
// The products of a block, each one group of wgmma instructions. Operands in shared memory are given by the low half of
// their descriptors.
#pragma once

#include "cuda/fused/math/shared_rows.cuh"
#include "cuda/fused/schedule/tile_grid.hpp"
#include "cuda/fused/sm90/wgmma.cuh"

#include <cstdint>

namespace annulus {

// Starts result = A B^T, with 64 rows of A and `rows` rows of B, both of `columns` columns in shared memory.
template <class Element, int columns, int rows>
__device__ __forceinline__ void multiply_rows(float (&result)[rows / 2], std::uint32_t a, std::uint32_t b) {
    fence_registers(result);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < columns / 16; ++i)
        WgmmaSsKMajor<Element, rows>::run(
            result, smem_descriptor(a + ((i / 4) * row_block_rows * swizzled_row_bytes + i % 4 * 32) / 16),
            smem_descriptor(b + ((i / 4) * rows * swizzled_row_bytes + i % 4 * 32) / 16), i != 0);
    wgmma_commit();
}

// Starts result = A B^T, with 64 rows of A in registers, and `rows` rows of B, of `columns` columns in shared memory.
template <class Element, int columns, int rows>
__device__ __forceinline__ void multiply_rows(float (&result)[rows / 2], std::uint32_t (&a)[columns / 4],
                                              std::uint32_t b) {
    fence_registers(result);
    fence_registers(a);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < columns / 16; ++i)
        WgmmaRsKMajor<Element, rows>::run(
            result, a + 4 * i, smem_descriptor(b + ((i / 4) * rows * swizzled_row_bytes + i % 4 * 32) / 16), i != 0);
    wgmma_commit();
}

// Starts sum += A B, with A in registers, and `rows` rows of `columns` columns of B in shared memory.
template <class Element, int columns, int rows>
__device__ __forceinline__ void add_product(float (&sum)[columns / 2], std::uint32_t (&a)[rows / 4], std::uint32_t b) {
    fence_registers(sum);
    fence_registers(a);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < rows / 16; ++i)
        WgmmaRsMnMajor<Element, columns>::run(sum, a + 4 * i, smem_descriptor(b + i * 16 * swizzled_row_bytes / 16));
    wgmma_commit();
}

} // namespace annulus
