// SPDX-License-Identifier: Apache-2.0
// Where the rows of a strip are along a curve, which takes a while to be found: each lane finds one of them.
#pragma once

#include "cuda/device/warp.cuh"
#include "cuda/fused/math/fragment.cuh"

namespace annulus {

// `At` is the FragmentThread of the strip.
template <class Thread> class RowsOfStrip {
  public:
    // Row i of the row block is row_of(i).
    template <class RowOf>
    __device__ __forceinline__ explicit RowsOfStrip(const RowOf &row_of)
        : own_(row_of(Thread().strip() * 16 + Thread().lane() % 16)) {}
    // Of a row of the row block in the strip. By the whole warp.
    __device__ __forceinline__ int row(int i) const { return __shfl_sync(~0u, own_, i % 16); }

  private:
    int own_;
};

} // namespace annulus
