// SPDX-License-Identifier: Apache-2.0
// The strips of a warp: 16 rows each, all of one row block.
#pragma once

#include "cuda/device/warp.cuh"
#include "cuda/fused/math/fragment.cuh"
#include "cuda/fused/schedule/tile_grid.hpp"

#include <type_traits>
#include <utility>

namespace annulus::mma {

// Calls use(FragmentThread of the strip, index of the strip) for each strip.
template <int strips, class Use> __device__ __forceinline__ void for_each_strip(const Use &use) {
    [&]<int... numbers>(std::integer_sequence<int, numbers...>) {
        (use(FragmentThread<strips, numbers>(), std::integral_constant<int, numbers>()), ...);
    }
    (std::make_integer_sequence<int, strips>());
}

// Return which row block the warp computes strips of, and the warp's first row in it.
template <int strips> __device__ __forceinline__ int row_block_of_warp() {
    return thread_of_block() / warp_threads / (4 / strips);
}
template <int strips> __device__ __forceinline__ int first_row_of_warp() {
    return thread_of_block() / warp_threads % (4 / strips) * strips * 16;
}

} // namespace annulus::mma
