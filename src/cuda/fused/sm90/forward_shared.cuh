// SPDX-License-Identifier: Apache-2.0
// Shared memory of the fused forward kernel. forward.cuh tells who fills and who empties each barrier.
#pragma once

#include "cuda/fused/schedule/tile.cuh"
#include "cuda/fused/schedule/tile_search.cuh"
#include "cuda/fused/sm90/mbarrier.cuh"
#include "cuda/fused/sm90/tile_scheduler.cuh"

#include <cstdint>

namespace annulus {

template <class Traits> struct ForwardShared {
    static constexpr bool rows_are_keys = false;
    static constexpr bool may_have_sequences = true; // grids may be over several sequences
    static constexpr int row_blocks = Traits::consumers, range_block_rows = Traits::range_block_rows;
    std::uint8_t q[Traits::q_slots][Traits::consumers * Traits::row_block_bytes];
    std::uint8_t k[Traits::stages][Traits::stage_bytes];
    std::uint8_t v[Traits::stages][Traits::stage_bytes];
    Tile<Traits::consumers> tiles[tile_slots];
    TileSearch search;
    int pieces_begun; // how many pieces of rows to clear the CTA has begun
    Mbarrier tile_full[tile_slots], tile_ending[tile_slots], tile_empty[tile_slots];
    Mbarrier q_full[Traits::q_slots], q_empty[Traits::q_slots];
    Mbarrier k_full[Traits::stages], k_empty[Traits::stages], v_full[Traits::stages], v_empty[Traits::stages];

    __device__ __forceinline__ void init() {
        pieces_begun = 0;
        constexpr int consumer_warps = Traits::consumers * warpgroup_threads / warp_threads;
        for (int i = 0; i < tile_slots; ++i) {
            tile_full[i].init(1);
            tile_ending[i].init(1);
            tile_empty[i].init(consumer_warps + 3);
        }
        for (int i = 0; i < Traits::q_slots; ++i) {
            q_full[i].init(Traits::is_permuted ? 1 : 2);
            q_empty[i].init(consumer_warps);
        }
        for (int i = 0; i < Traits::stages; ++i) {
            k_full[i].init(Traits::is_permuted ? 2 : 1);
            v_full[i].init(Traits::is_permuted ? 2 : 1);
            k_empty[i].init(consumer_warps);
            v_empty[i].init(consumer_warps);
        }
        publish_barriers();
    }
};

} // namespace annulus
