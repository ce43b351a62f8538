// SPDX-License-Identifier: Apache-2.0
// Rows of a tensor, or of partial results, that a strip's rows have. Finding a row takes a while if rows are permuted
// or only some have partial results. So each lane finds one.
#pragma once

#include "cuda/device/warp.cuh"
#include "cuda/fused/math/fragment.cuh"

namespace annulus {

// `Thread` is the FragmentThread of the strip.
template <class Thread> class RowsOfStrip {
  public:
    // row_of(i) returns the row for row i of the row block.
    template <class RowOf>
    __device__ __forceinline__ explicit RowsOfStrip(const RowOf &row_of)
        : own_(row_of(Thread().strip() * 16 + Thread().lane() % 16)) {}
    // Returns the row for row i of the row block, which is in the strip. The whole warp calls it.
    __device__ __forceinline__ int row(int i) const { return __shfl_sync(~0u, own_, i % 16); }
    // Returns the rows for the thread's two rows.
    __device__ __forceinline__ int2 both() const { return {row(Thread().row(0)), row(Thread().row(1))}; }

  private:
    int own_;
};

} // namespace annulus
