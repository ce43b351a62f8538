// SPDX-License-Identifier: Apache-2.0
// Which tiles a CTA takes.
#pragma once

#include "cuda/fused/schedule/find_tile.cuh"

namespace annulus::mma {

// The tile at hand, the next one, and the one before, which slower warps may still be writing.
constexpr int tile_slots = 3;

// By one warp: the next tile of the CTA, its ranges -1 if there is none left. The first one by the CTA's index, the
// others from a counter.
template <class Shared, class OwnTile>
__device__ __noinline__ void find_next_tile(const TileGrid &grid, Shared &shared, OwnTile &tile, bool is_first) {
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
           !find_tile<Shared::of_keys, Shared::range_block_rows, true>(grid, shared.search, id, tile))
        id = next();
    if (id >= grid.tiles && lane == 0)
        tile.ranges = -1;
}

// use(tile, next, find_next) for each tile of the CTA, after one of no head that has nothing. find_next() finds the
// next tile by one warp; there must be a barrier behind it before `next` is looked at.
template <class Shared, class Use>
__device__ __forceinline__ void for_each_tile(const TileGrid &grid, Shared &shared, const Use &use) {
    if (threadIdx.x == 0) {
        shared.tiles[0] = {};
        shared.tiles[0].head = -1;
    }
    __syncthreads();
    for (int slot = 0; shared.tiles[slot].ranges >= 0;) {
        const int next = slot == tile_slots - 1 ? 0 : slot + 1;
        use(shared.tiles[slot], shared.tiles[next], [&] {
            if (threadIdx.x < warp_threads)
                find_next_tile(grid, shared, shared.tiles[next], shared.tiles[slot].head < 0);
        });
        slot = next;
    }
}

} // namespace annulus::mma
