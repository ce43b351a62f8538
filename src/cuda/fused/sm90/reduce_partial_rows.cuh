// SPDX-License-Identifier: Apache-2.0
// How the kernel that stores dS adds rows to partial results. It does not read them: with each pass it would wait for
// what is there (StorePartialRows). Nothing else adds to these rows meanwhile.
#pragma once

#include "cuda/fused/math/store_rows.cuh"

namespace annulus {

// Adds by reductions in memory, which take numbers below 2^-126 for 0.
struct ReducePartialRows {
    template <int count>
    __device__ __forceinline__ static void store(const float (&x)[count], int r, bool adds, float *partial,
                                                 int columns) {
        if (adds) {
#pragma unroll
            for (int i = 0; i < count / 4; ++i) {
                const int column = 8 * i + FragmentThread<>().column();
                const float *const own = x + 4 * i + 2 * r;
                if (column < columns)
                    atomicAdd(reinterpret_cast<float2 *>(partial + column), float2{own[0], own[1]});
            }
        } else {
            store_partial_row<count>(x, r, true, 1, false, 0, partial, columns);
        }
    }
};

} // namespace annulus
