// SPDX-License-Identifier: Apache-2.0
// What the feeding warpgroups of the fused kernels have in common: finding tiles.
#pragma once

#include "cuda/fused/schedule/find_tile.cuh"
#include "cuda/fused/sm90/mbarrier.cuh"
#include "cuda/fused/sm90/other_work.cuh"

#include <utility>

namespace annulus {

constexpr int tile_slots = 2;

// Of a warp that copies the blocks of ranges: tells the one that finds tiles when the tile at hand comes to its end.
// The next one is found then before consumers need it. Taken earlier it might be a long one that waits here when other
// CTAs have none left; where tiles are alike it is taken at once.
template <class Traits> class EndOfTile {
  public:
    // Of several warps one `tells`.
    template <class Tile>
    __device__ __forceinline__ EndOfTile(const TileGrid &grid, const Tile &tile, Mbarrier &ending, bool tells)
        : ending_(ending), tells_(tells && threadIdx.x % warp_threads == 0),
          last_blocks_(grid.branch_count > 1 ? 4 * last_blocks_of_one_branch : last_blocks_of_one_branch) {
        if (tells_ && grid.tiles_differ())
            for (int i = 0; i < tile.ranges; ++i)
                left_ += tile.range[i].blocks;
        if (left_ < last_blocks_)
            tell();
    }
    // Before each block.
    __device__ __forceinline__ void next_block() {
        if (left_-- == last_blocks_)
            tell();
    }

  private:
    // Some 25,000 cycles of the matrix units, several times what it takes to find a tile of one branch and to copy its
    // rows; of more branches four times that.
    static constexpr int last_blocks_of_one_branch = 1024 / Traits::head_dim * 128 / Traits::range_block_rows;

    __device__ __forceinline__ void tell() {
        if (tells_)
            ending_.arrive();
    }

    Mbarrier &ending_;
    const bool tells_;
    const int last_blocks_;
    int left_ = 0;
};

// One warp: which tiles are next. The first one by the CTA's index, the others from a counter, as slots become free and
// the tile before comes to its end. use(place in the ring) for each.
template <class Shared, class Use, class OtherWork>
__device__ __forceinline__ void find_tiles(const TileGrid &grid, Shared &shared, const Use &use,
                                           OtherWork do_other_work) {
    const int lane = static_cast<int>(threadIdx.x) % warp_threads;
    shared.search.start(lane);
    bool is_first = true;
    const auto next = [&] {
        if (std::exchange(is_first, false))
            return blockIdx.x;
        unsigned taken = 0;
        if (lane == 0)
            taken = atomicAdd(grid.next_tile, 1);
        return gridDim.x + __shfl_sync(~0u, taken, 0);
    };
    for (PipelineState<tile_slots> at;; ++at.count) {
        do_other_work.begin_tile();
        wait_working(shared.tile_empty[at.slot()], at.parity_to_fill(), do_other_work);
        if (at.count > 0) {
            const PipelineState<tile_slots> before{at.count - 1};
            wait_working(shared.tile_ending[before.slot()], before.parity_to_empty(), do_other_work);
        }
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
