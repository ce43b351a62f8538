// SPDX-License-Identifier: Apache-2.0
// Shared memory of the fused backward kernels. backward.cuh tells who fills and who empties each barrier.
#pragma once

#include "cuda/fused/schedule/tile.cuh"
#include "cuda/fused/schedule/tile_search.cuh"
#include "cuda/fused/sm90/backward_traits.hpp"
#include "cuda/fused/sm90/mbarrier.cuh"
#include "cuda/fused/sm90/tile_scheduler.cuh"

#include <cstdint>

namespace annulus {

template <class Traits> struct BackwardShared {
    static constexpr bool rows_are_keys = Traits::rows_are_keys;
    static constexpr int row_blocks = Traits::consumers, range_block_rows = Traits::range_block_rows;

    // For dV alone, V of row blocks is not needed.
    struct RowBlocks {
        std::uint8_t q_or_k[row_blocks * Traits::row_block_bytes],
            v_or_d_o[Traits::has_d_q_or_k ? row_blocks * Traits::row_block_bytes : 1024];
    } own_rows[Traits::row_block_slots];
    struct RangeRows {
        std::uint8_t q_or_k[Traits::stage_bytes], v_or_d_o[Traits::stage_bytes];
    } range_rows[Traits::stages];
    // LSE and delta of the queries of a stage, or of a tile's row blocks.
    static constexpr int statistic_slots = rows_are_keys ? Traits::stages : Traits::row_block_slots;
    static constexpr int statistics = rows_are_keys ? range_block_rows : row_blocks * row_block_rows;
    float lse_log2[statistic_slots][statistics], delta[statistic_slots][statistics];
    Tile<row_blocks> tiles[tile_slots];
    TileSearch search;
    int pieces_begun; // how many pieces of rows to clear the CTA has begun
    Mbarrier tile_full[tile_slots], tile_ending[tile_slots], tile_empty[tile_slots];
    Mbarrier row_block_full[Traits::row_block_slots], row_block_empty[Traits::row_block_slots];
    Mbarrier range_full[Traits::stages], range_empty[Traits::stages];

    __device__ __forceinline__ void init() {
        pieces_begun = 0;
        constexpr int consumer_warps = Traits::consumer_warps;
        for (int i = 0; i < tile_slots; ++i) {
            tile_full[i].init(1);
            tile_ending[i].init(1);
            tile_empty[i].init(consumer_warps + 3);
        }
        for (int i = 0; i < Traits::row_block_slots; ++i) {
            row_block_full[i].init(Traits::has_d_q_or_k ? 2 : 1);
            row_block_empty[i].init(consumer_warps);
        }
        for (int i = 0; i < Traits::stages; ++i) {
            range_full[i].init(Traits::is_permuted ? 2 : 1 + (rows_are_keys ? warp_threads : 0));
            range_empty[i].init(row_blocks);
        }
        publish_barriers();
    }
};

} // namespace annulus
