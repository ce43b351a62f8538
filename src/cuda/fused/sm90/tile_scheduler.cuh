// SPDX-License-Identifier: Apache-2.0
// The tile scheduler of the fused kernels: a warp of the producer that finds tiles.
#pragma once

#include "cuda/fused/schedule/find_tile.cuh"
#include "cuda/fused/sm90/mbarrier.cuh"
#include "cuda/fused/sm90/other_work.cuh"

#include <utility>

namespace annulus {

constexpr int tile_slots = 2;

// Tells the tile scheduler that the current tile comes to its end. A warp that copies the blocks of ranges gives this
// signal. The next tile is then found before consumers need it. Taken earlier, it might be a long tile that waits here
// when other CTAs have none left. If tiles do not differ, the next tile is taken at once.
template <class Traits> class TileEndSignal {
  public:
    // Only one of several warps `signals`.
    template <class Tile>
    __device__ __forceinline__ TileEndSignal(const TileGrid &grid, bool tiles_differ, const Tile &tile,
                                             Mbarrier &ending, bool signals)
        : ending_(ending), signals_(signals && threadIdx.x % warp_threads == 0),
          last_blocks_(grid.branch_count > 1 ? 4 * last_blocks_of_one_branch : last_blocks_of_one_branch) {
        if (signals_ && tiles_differ)
            for (int i = 0; i < tile.ranges; ++i)
                remaining_ += tile.range[i].blocks;
        if (remaining_ < last_blocks_)
            signal();
    }
    // For use before each block.
    __device__ __forceinline__ void next_block() {
        if (remaining_-- == last_blocks_)
            signal();
    }

  private:
    // The signal is given when this many blocks are left. They take some 25,000 cycles of the matrix units. That is
    // several times the time to find a tile of one branch and to copy its rows. With more branches, it is four times
    // that.
    static constexpr int last_blocks_of_one_branch = 1024 / Traits::head_dim * 128 / Traits::range_block_rows;

    __device__ __forceinline__ void signal() {
        if (signals_)
            ending_.arrive();
    }

    Mbarrier &ending_;
    const bool signals_;
    const int last_blocks_;
    int remaining_ = 0;
};

// Finds tiles, by one warp. When slot `at` of the ring is free and the tile before comes to its end, take(at) finds the
// next tile, or returns false if none is left. use(at) is called after consumers were told of the tile.
template <class Shared, class Take, class Use, class OtherWork>
__device__ __forceinline__ void find_tiles_by(Shared &shared, const Take &take, const Use &use,
                                              OtherWork &do_other_work) {
    for (PipelineState<tile_slots> at;; ++at.count) {
        do_other_work.begin_tile();
        work_while_waiting(shared.tile_empty[at.slot()], at.parity_to_fill(), do_other_work);
        if (at.count > 0) {
            const PipelineState<tile_slots> before{at.count - 1};
            work_while_waiting(shared.tile_ending[before.slot()], before.parity_to_empty(), do_other_work);
        }
        const bool is_last = !take(at);
        if (threadIdx.x % warp_threads == 0) {
            if (is_last)
                shared.tiles[at.slot()].ranges = -1;
            shared.tile_full[at.slot()].arrive();
        }
        if (is_last)
            break;
        use(at);
    }
    do_all(do_other_work);
}

// Takes a tile from the grid's counter, and returns how many were taken before. A whole warp calls it.
__device__ __forceinline__ unsigned take_next(const TileGrid &grid) {
    unsigned taken = 0;
    if (threadIdx.x % warp_threads == 0)
        taken = atomicAdd(grid.next_tile, 1);
    return __shfl_sync(~0u, taken, 0);
}

// Finds the tiles of a grid: the first one by the CTA's index, each further one from the counter. before_counting() is
// called each time before the counter is read.
template <class Shared, class BeforeCounting, class Use, class OtherWork>
__device__ __forceinline__ void find_tiles(const TileGrid &grid, Shared &shared, const BeforeCounting &before_counting,
                                           const Use &use, OtherWork do_other_work) {
    shared.search.start(static_cast<int>(threadIdx.x) % warp_threads);
    bool is_first = true;
    const auto next = [&] {
        if (std::exchange(is_first, false))
            return blockIdx.x;
        before_counting();
        return gridDim.x + take_next(grid);
    };
    const auto take = [&](const PipelineState<tile_slots> &at) {
        unsigned id = next();
        while (id < grid.tiles && !find_tile<Shared::rows_are_keys, Shared::range_block_rows>(grid, shared.search, id,
                                                                                              shared.tiles[at.slot()]))
            id = next();
        return id < grid.tiles;
    };
    find_tiles_by(shared, take, use, do_other_work);
}

} // namespace annulus
