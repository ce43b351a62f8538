// SPDX-License-Identifier: Apache-2.0
// Which tiles a CTA takes.
#pragma once

#include "cuda/fused/schedule/find_tile.cuh"

namespace annulus::mma {

// By one warp, before the first tile and from then on: the next tile of the CTA, its ranges -1 if there is none left.
// The first one by the CTA's index, the others from a counter.
template <class Shared>
__device__ __forceinline__ void find_next_tile(const TileGrid &grid, Shared &shared, bool is_first) {
    const int lane = static_cast<int>(threadIdx.x) % warp_threads;
    const auto next = [&] {
        unsigned taken = 0;
        if (lane == 0)
            taken = gridDim.x + atomicAdd(grid.next_tile, 1);
        return __shfl_sync(~0u, taken, 0);
    };
    if (is_first)
        shared.search.start(lane);
    unsigned id = is_first ? blockIdx.x : next();
    while (id < grid.tiles &&
           !find_tile<Shared::of_keys, Shared::range_block_rows, true>(grid, shared.search, id, shared.tile))
        id = next();
    if (id >= grid.tiles && lane == 0)
        shared.tile.ranges = -1;
}

// use() for each tile of the CTA, while it is in `shared`.
template <class Shared, class Use>
__device__ __forceinline__ void for_each_tile(const TileGrid &grid, Shared &shared, const Use &use) {
    for (bool is_first = true;; is_first = false) {
        if (threadIdx.x < warp_threads)
            find_next_tile(grid, shared, is_first);
        __syncthreads();
        if (shared.tile.ranges < 0)
            return;
        use();
        __syncthreads(); // nothing of the tile is read any more
    }
}

} // namespace annulus::mma
