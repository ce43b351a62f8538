// SPDX-License-Identifier: Apache-2.0
// From a unit's results, in the registers of a warpgroup as products leave them, to rows of a tensor. A warp has 16 of
// the unit's rows, which it writes without the others.
#pragma once

#include "cuda/fused/tile_pass.hpp"
#include "cuda/prim/copy.cuh"
#include "cuda/prim/warp.cuh"

#include <cstdint>

namespace annulus {

template <int count> __device__ __forceinline__ void note_nonfinite(const float (&x)[count], int *has_nan) {
    float zero = 0;
#pragma unroll
    for (const float &element : x)
        zero += element * 0.f;
    if (zero != 0.f)
        *has_nan = 1;
}

// To shared memory, in the dtype: `first` times the thread's first row, `second` times the one 8 further.
template <class Element, int count>
__device__ __forceinline__ void stage_rows(std::uint32_t staging, const float (&x)[count], float first, float second) {
    const int thread = thread_of_warpgroup(), lane = thread % warp_threads, warp = thread / warp_threads;
    constexpr int parts = count / 4; // of 16 bytes
#pragma unroll
    for (int i = 0; i < parts / 2; ++i) {
        const float *const two = x + 8 * i;
        store_matrices(
            staging + swizzled_offset(unit_rows, warp * 16 + lane % 16, 2 * i + lane / 16),
            pack_two<Element>(two[0] * first, two[1] * first), pack_two<Element>(two[2] * second, two[3] * second),
            pack_two<Element>(two[4] * first, two[5] * first), pack_two<Element>(two[6] * second, two[7] * second));
    }
    __syncwarp();
}

// From there to the first `columns` columns of rows row_at(0), …, row_at(rows - 1).
template <class Element, int most_columns, class RowAt>
__device__ __forceinline__ void store_rows(std::uint32_t staging, int rows, int columns, const RowAt &row_at) {
    const int thread = thread_of_warpgroup(), lane = thread % warp_threads, warp = thread / warp_threads;
    constexpr int parts = most_columns / 8;
#pragma unroll
    for (int i = 0; i < parts / 2; ++i) {
        const int row = warp * 16 + (lane + i * warp_threads) / parts, part = (lane + i * warp_threads) % parts;
        const uint4 sixteen_bytes = load_16_bytes(staging + swizzled_offset(unit_rows, row, part));
        if (row < rows && part * 8 < columns)
            *reinterpret_cast<uint4 *>(static_cast<Element *>(row_at(row)) + part * 8) = sixteen_bytes;
    }
}

} // namespace annulus
