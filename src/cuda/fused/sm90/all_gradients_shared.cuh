// SPDX-License-Identifier: Apache-2.0
// Shared memory of the kernel of all gradients. all_gradients.cuh tells who fills and who empties each barrier.
#pragma once

#include "cuda/fused/schedule/query_sums.hpp"
#include "cuda/fused/schedule/tile.cuh"
#include "cuda/fused/sm90/all_gradients_traits.hpp"
#include "cuda/fused/sm90/mbarrier.cuh"
#include "cuda/fused/sm90/tile_scheduler.cuh"

#include <cstdint>

namespace annulus {

template <class Traits> struct AllGradientsShared {
    using OwnTile = Tile<Traits::consumers, 1>;
    static constexpr int d_q_buffers = Traits::d_q_buffers;

    struct KeyRows {
        std::uint8_t k[Traits::consumers * Traits::row_block_bytes], v[Traits::consumers * Traits::row_block_bytes];
    } key_rows[Traits::row_block_slots];
    struct QueryRows {
        std::uint8_t q[Traits::stage_bytes], d_o[Traits::stage_bytes];
    } query_rows[Traits::stages];
    std::uint8_t d_s[Traits::stages][Traits::consumers][Traits::d_s_bytes]; // images of 64 keys and 64 queries
    float lse_log2[Traits::stages][Traits::range_block_rows], delta[Traits::stages][Traits::range_block_rows];
    OwnTile tiles[tile_slots];
    SummingTile summing_tiles[tile_slots];
    struct Turn {
        float *sum;
        bool is_first;
    } turns[d_q_buffers];
    int pieces_begun; // how many pieces of rows to clear the CTA has begun
    Mbarrier tile_full[tile_slots], tile_ending[tile_slots], tile_empty[tile_slots];
    Mbarrier k_full[Traits::row_block_slots], k_empty[Traits::row_block_slots];
    Mbarrier v_full[Traits::row_block_slots], v_empty[Traits::row_block_slots];
    Mbarrier q_full[Traits::stages], q_empty[Traits::stages];
    Mbarrier d_o_full[Traits::stages], d_o_empty[Traits::stages];
    Mbarrier d_s_full[Traits::stages], d_s_empty[Traits::stages];
    Mbarrier d_q_full[d_q_buffers], turn_full[d_q_buffers];

    __device__ __forceinline__ void init() {
        pieces_begun = 0;
        constexpr int consumer_warps = Traits::consumer_warps;
        for (int i = 0; i < tile_slots; ++i) {
            tile_full[i].init(1);
            tile_ending[i].init(1);
            tile_empty[i].init(consumer_warps + 1 + d_q_buffers);
        }
        for (int i = 0; i < Traits::row_block_slots; ++i) {
            for (Mbarrier *const full : {&k_full[i], &v_full[i]})
                full->init(1);
            for (Mbarrier *const empty : {&k_empty[i], &v_empty[i]})
                empty->init(consumer_warps);
        }
        for (int i = 0; i < Traits::stages; ++i) {
            for (Mbarrier *const full : {&q_full[i], &d_o_full[i]})
                full->init(Traits::is_permuted ? 1 : 1 + warp_threads);
            for (Mbarrier *const empty : {&q_empty[i], &d_o_empty[i]})
                empty->init(Traits::consumers);
        }
        for (int i = 0; i < Traits::stages; ++i) {
            d_s_full[i].init(consumer_warps);
            d_s_empty[i].init(Traits::consumers);
        }
        for (int i = 0; i < d_q_buffers; ++i) {
            d_q_full[i].init(consumer_warps);
            turn_full[i].init(1);
        }
        publish_barriers();
    }
};

} // namespace annulus
