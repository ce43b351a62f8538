// SPDX-License-Identifier: Apache-2.0
// The tile scheduler: which tiles a CTA takes.
#pragma once

#include "cuda/fused/math/stored_tile.cuh"
#include "cuda/fused/schedule/find_tile.cuh"

namespace annulus::mma {

// The current tile, the next one, and the one before, which slower warps may still be writing.
constexpr int tile_slots = 3;

// Takes the number of a tile from a counter. One thread calls it.
__device__ __forceinline__ unsigned take_number(const TileGrid &grid) {
    return gridDim.x + atomicAdd(grid.next_tile, 1);
}

// Finds the next tile of the CTA, with -1 ranges if none is left. A whole warp calls it. Lane 0 has the tile's number,
// which may be beyond the last tile. It is not inlined: warps that compute would have to spill registers for it. All
// warps wait for it, so one branch in one sequence has code of its own, which is a few times faster.
template <class Shared, class Work, class OwnTile>
__device__ __noinline__ void find_next_tile(const Work &work, Shared &shared, OwnTile &tile, unsigned number) {
    constexpr bool rows_are_keys = Shared::rows_are_keys;
    constexpr int range_block_rows = Shared::range_block_rows;
    const int lane = static_cast<int>(threadIdx.x) % warp_threads;
    unsigned id = __shfl_sync(~0u, number, 0);
    const auto find = [&] {
        if constexpr (Shared::stores_d_s) {
            return find_storing_tile<range_block_rows>(work, id, tile);
        } else {
            if (work.has_one_class() && !work.sequences)
                return find_tile_of_branch<rows_are_keys, range_block_rows>(work, id, tile);
            return find_tile_of_branches<rows_are_keys, range_block_rows, Sequences::either>(work, shared.search, id,
                                                                                             tile);
        }
    };
    while (id < work.tiles && !find()) {
        if (lane == 0)
            id = take_number(work);
        id = __shfl_sync(~0u, id, 0);
    }
    if (id >= work.tiles && lane == 0)
        tile.ranges = -1;
}

// The tiles of a CTA: the first one by the CTA's index, each further one from the counter.
template <class Shared, class Work> class TileScheduler {
  public:
    __device__ __forceinline__ TileScheduler(const Work &work, Shared &shared) : work_(work), shared_(shared) {
        if (threadIdx.x < warp_threads)
            shared_.search.start(static_cast<int>(threadIdx.x));
        if (threadIdx.x == 0)
            shared_.tiles[0] = {};
        __syncthreads();
    }

    // Calls use(tile, next) for each tile, and before them for an empty tile.
    template <class Use> __device__ __forceinline__ void for_each(const Use &use) {
        while (shared_.tiles[slot_].ranges >= 0) {
            const int next = slot_ == tile_slots - 1 ? 0 : slot_ + 1;
            use(shared_.tiles[slot_], shared_.tiles[next]);
            slot_ = next;
        }
    }

    // Takes the next tile's number, which arrives some time later.
    __device__ __forceinline__ void take_next() {
        if (threadIdx.x == 0 && number_ != none)
            number_ = take_number(work_);
    }
    // Finds the next tile. A barrier must come before anyone reads the tile.
    template <class OwnTile> __device__ __forceinline__ void find_next(OwnTile &next) {
        if (threadIdx.x < warp_threads)
            find_next_tile(work_, shared_, next, number_ == none ? blockIdx.x : number_);
        number_ = 0;
    }
    // Moves `at` to the next block of the tile, and calls copy(tile, at). Behind the last block, it calls copy() for
    // the next tile's first block.
    template <class OwnTile, class Cursor, class Copy>
    __device__ __forceinline__ void copy_next(const OwnTile &tile, const OwnTile &next, Cursor &at, const Copy &copy) {
        at.advance(tile);
        if (at.is_last(tile) && !at.is_over(tile))
            take_next();
        const bool goes_on = !at.is_over(tile);
        const OwnTile &source_tile = goes_on ? tile : next;
        if (const Cursor to = goes_on ? at : Cursor(next); !to.is_over(source_tile))
            copy(source_tile, to);
    }

  private:
    static constexpr unsigned none = ~0u;
    const Work &work_;
    Shared &shared_;
    int slot_ = 0;
    unsigned number_ = none; // in thread 0
};

} // namespace annulus::mma
