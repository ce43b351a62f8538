// SPDX-License-Identifier: Apache-2.0
// The strips of a warp: 16 rows each of one row block.
#pragma once

#include "cuda/device/warp.cuh"
#include "cuda/fused/math/fragment.cuh"
#include "cuda/fused/schedule/tile_grid.hpp"

#include <type_traits>
#include <utility>

namespace annulus::mma {

// use(FragmentThread of the strip, its number) for each.
template <int strips, class Use> __device__ __forceinline__ void for_each_strip(const Use &use) {
    [&]<int... numbers>(std::integer_sequence<int, numbers...>) {
        (use(FragmentThread<strips, numbers>(), std::integral_constant<int, numbers>()), ...);
    }
    (std::make_integer_sequence<int, strips>());
}

// Which row block the warp computes strips of, and which of its rows is the first.
template <int strips> __device__ __forceinline__ int row_block_of_warp() {
    return thread_of_block() / warp_threads / (4 / strips);
}
template <int strips> __device__ __forceinline__ int first_row_of_warp() {
    return thread_of_block() / warp_threads % (4 / strips) * strips * 16;
}

} // namespace annulus::mma
