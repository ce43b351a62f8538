// SPDX-License-Identifier: Apache-2.0
// What the feeding warpgroups of the fused kernels have in common: finding tiles.
#pragma once

#include "cuda/fused/schedule/find_tile.cuh"
#include "cuda/fused/sm90/mbarrier.cuh"
#include "cuda/fused/sm90/other_work.cuh"

namespace annulus {

constexpr int tile_slots = 2;

// One warp: which tiles are next. The first ones by the CTA's index: CTAs look for them all at once, and which of
// them a counter would give a long one is chance. The others from a counter, as slots become free. use(place in the
// ring) for each.
template <class Shared, class Use, class OtherWork>
__device__ __forceinline__ void find_tiles(const TileGrid &grid, Shared &shared, const Use &use,
                                           OtherWork do_other_work) {
    const int lane = static_cast<int>(threadIdx.x) % warp_threads;
    shared.search.start(lane);
    unsigned found = 0;
    const auto next = [&] {
        const unsigned round = found++;
        if (round < tile_slots)
            return blockIdx.x + round * gridDim.x;
        unsigned taken = 0;
        if (lane == 0)
            taken = atomicAdd(grid.next_tile, 1);
        return tile_slots * gridDim.x + __shfl_sync(~0u, taken, 0);
    };
    for (PipelineState<tile_slots> at;; ++at.count) {
        wait_working(shared.tile_empty[at.slot()], at.parity_to_fill(), do_other_work);
        Tile<Shared::row_blocks> &tile = shared.tiles[at.slot()];
        unsigned id = next();
        while (id < grid.tiles &&
               !find_tile<Shared::of_keys, Shared::range_block_rows, Shared::several>(grid, shared.search, id, tile))
            id = next();
        const bool is_last = id >= grid.tiles;
        if (lane == 0) {
            if (is_last)
                tile.ranges = -1;
            shared.tile_full[at.slot()].arrive();
        }
        if (is_last)
            break;
        use(at);
    }
    do_all(do_other_work);
}

} // namespace annulus
