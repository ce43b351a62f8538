// SPDX-License-Identifier: Apache-2.0
// What the feeding warpgroups of the fused kernels have in common: finding tiles.
#pragma once

#include "cuda/fused/tile.cuh"
#include "cuda/prim/barrier.cuh"

namespace annulus {

constexpr int tile_slots = 2;

// One beyond `by_index` tiles of every block.
__device__ __forceinline__ unsigned next_tile(const TilePass &pass, unsigned by_index) {
    unsigned taken = 0;
    if (threadIdx.x % warp_threads == 0)
        taken = atomicAdd(pass.next_tile, 1);
    return by_index * gridDim.x + __shfl_sync(~0u, taken, 0);
}

// One warp: which tiles are next, the first by the block's index, the others from a counter. Keys: the second by the
// index, too; blocks look for it all at once, and which of them the counter would give a long one is chance.
template <class Shared> __device__ __forceinline__ void find_tiles(const TilePass &pass, Shared &shared) {
    const int lane = static_cast<int>(threadIdx.x) % warp_threads;
    constexpr unsigned by_index = Shared::of_keys ? 2 : 1;
    bool is_first = true;
    const auto next = [&] {
        if (by_index == 2 && is_first) {
            is_first = false;
            return blockIdx.x + gridDim.x;
        }
        return next_tile(pass, by_index);
    };
    unsigned id = blockIdx.x;
    for (RingPlace<tile_slots> at;; ++at.count) {
        shared.tile_empty[at.slot()].wait(at.parity_to_fill());
        UnitTile<Shared::units> &tile = shared.tiles[at.slot()];
        while (id < pass.tiles && !find_tile<Shared::of_keys, Shared::step>(pass, shared.branches, id, tile))
            id = next();
        const bool is_last = id >= pass.tiles;
        if (lane == 0) {
            if (is_last)
                tile.runs = -1;
            shared.tile_full[at.slot()].arrive();
        }
        if (is_last)
            return;
        id = next();
    }
}

} // namespace annulus
