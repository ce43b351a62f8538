// SPDX-License-Identifier: Apache-2.0
// Shared memory of the fused backward kernels. backward.cuh tells who fills and who empties each barrier.
#pragma once

#include "cuda/fused/math/stored_tile.cuh"
#include "cuda/fused/schedule/tile.cuh"
#include "cuda/fused/schedule/tile_search.cuh"
#include "cuda/fused/sm90/backward_traits.hpp"
#include "cuda/fused/sm90/mbarrier.cuh"
#include "cuda/fused/sm90/tile_scheduler.cuh"

#include <cstddef>
#include <cstdint>

namespace annulus {

template <class Traits> struct BackwardShared {
    static constexpr bool rows_are_keys = Traits::rows_are_keys;
    static constexpr bool may_have_sequences = !Traits::stores_d_s; // grids may be over several sequences
    static constexpr int row_blocks = Traits::consumers, range_block_rows = Traits::range_block_rows;

    // For dV alone, V of row blocks is not needed.
    struct RowBlocks {
        std::uint8_t q_or_k[row_blocks * Traits::row_block_bytes],
            v_or_d_o[Traits::has_d_q_or_k ? row_blocks * Traits::row_block_bytes : 1024];
    } own_rows[Traits::row_block_slots];
    struct RangeRows {
        std::uint8_t q_or_k[Traits::stage_bytes], v_or_d_o[Traits::stage_bytes];
    } range_rows[Traits::stages];
    std::uint8_t d_s[Traits::stores_d_s ? row_blocks : 1][Traits::stores_d_s ? StoredDs::image_bytes : 1024];
    StoredDs::Halves images[row_blocks]; // where the row blocks' images are in global memory
    // LSE and delta of the queries of a stage, or of a tile's row blocks.
    static constexpr int statistic_slots = rows_are_keys ? Traits::stages : Traits::row_block_slots;
    static constexpr int statistics = rows_are_keys ? range_block_rows : row_blocks * row_block_rows;
    float lse_log2[statistic_slots][statistics], delta[statistic_slots][statistics];
    Tile<row_blocks> tiles[tile_slots];
    // If dS is stored: what a tile does (stored_turns.hpp), and a tile of queries for which dS is multiplied.
    StoredTurn turns[tile_slots];
    StoredTile stored_tiles[tile_slots];
    unsigned stored_stages_before[tile_slots]; // stages of all tiles before
    Mbarrier stored_full[Traits::stored_stages], stored_empty[Traits::stored_stages];
    TileSearch search;
    int pieces_begun; // how many pieces of rows to clear the CTA has begun
    Mbarrier tile_full[tile_slots], tile_ending[tile_slots], tile_empty[tile_slots];
    Mbarrier row_block_full[Traits::row_block_slots], row_block_empty[Traits::row_block_slots];
    Mbarrier range_full[Traits::stages], range_empty[Traits::stages];

    // Return the place of a tile's stages of dS, and of its blocks of K. One is the slot of the tile's row blocks, the
    // other one the ranges' stages.
    static constexpr int stored_stage_bytes = Traits::stored_row_blocks * StoredDs::half_bytes; // of one consumer
    static constexpr int stored_images_bytes = Traits::stored_stages * stored_stage_bytes;      // of one consumer
    static constexpr int stored_key_blocks = 4;
    static constexpr std::size_t bytes_for_images =
        Traits::stored_d_s_is_in_ranges ? sizeof(range_rows) : sizeof(RowBlocks);
    static constexpr std::size_t bytes_for_keys =
        Traits::stored_d_s_is_in_ranges ? sizeof(RowBlocks) : sizeof(range_rows);
    static_assert(!Traits::stores_d_s || (Traits::consumers * stored_images_bytes <= bytes_for_images &&
                                          stored_key_blocks * Traits::row_block_bytes <= bytes_for_keys));
    __device__ __forceinline__ std::uint32_t stored_images(int slot) const {
        return Traits::stored_d_s_is_in_ranges ? shared_address(range_rows) : shared_address(&own_rows[slot]);
    }
    __device__ __forceinline__ std::uint32_t stored_keys(int slot) const {
        return Traits::stored_d_s_is_in_ranges ? shared_address(&own_rows[slot]) : shared_address(range_rows);
    }
    // Returns where half image i of a stage lies. Each consumer has its half images of all stages together.
    __device__ __forceinline__ static int stored_image_offset(int stage, int i) {
        return i / Traits::stored_row_blocks * stored_images_bytes + stage * stored_stage_bytes +
               i % Traits::stored_row_blocks * StoredDs::half_bytes;
    }
    // Returns where the 64 rows of K of a stage lie. Two stages, one after the other, share them.
    __device__ __forceinline__ static int stored_keys_offset(unsigned stage_count) {
        return static_cast<int>(stage_count / 2 % stored_key_blocks) * Traits::row_block_bytes;
    }
    // Returns where a consumer stages dQ of the first of its row blocks; the next one follows at a distance. Nothing
    // else uses the place until the tile ends: neither other consumers, as they use K, nor the next tile's ranges, as
    // they use the ranges' stages.
    static constexpr int stored_results_distance = Traits::stored_d_s_is_in_ranges ? 0 : Traits::row_block_bytes;
    __device__ __forceinline__ std::uint32_t stored_results(int slot, int consumer) const {
        return Traits::stored_d_s_is_in_ranges ? shared_address(d_s[consumer])
                                               : stored_images(slot) + consumer * stored_images_bytes;
    }

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
        for (int i = 0; i < Traits::stored_stages; ++i) {
            stored_full[i].init(Traits::is_permuted ? 2 : 1);
            stored_empty[i].init(row_blocks);
        }
        publish_barriers();
    }
};

} // namespace annulus
