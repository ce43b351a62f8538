// SPDX-License-Identifier: Apache-2.0
// The tensor rows of a strip whose rows are permuted. Finding a row takes a while, so each lane finds one of them.
#pragma once

#include "cuda/device/warp.cuh"
#include "cuda/fused/math/fragment.cuh"

namespace annulus {

// `Thread` is the FragmentThread of the strip.
template <class Thread> class RowsOfStrip {
  public:
    // row_of(i) returns the tensor row of row i of the row block.
    template <class RowOf>
    __device__ __forceinline__ explicit RowsOfStrip(const RowOf &row_of)
        : own_(row_of(Thread().strip() * 16 + Thread().lane() % 16)) {}
    // Returns the tensor row of row i of the row block, which is in the strip. The whole warp calls it.
    __device__ __forceinline__ int row(int i) const { return __shfl_sync(~0u, own_, i % 16); }

  private:
    int own_;
};

} // namespace annulus
