// SPDX-License-Identifier: Apache-2.0
// Shared memory of the fused backward kernels; backward.cuh tells who fills and who empties what.
#pragma once

#include "cuda/fused/schedule/tile.cuh"
#include "cuda/fused/schedule/tile_search.cuh"
#include "cuda/fused/sm90/backward_traits.hpp"
#include "cuda/fused/sm90/mbarrier.cuh"
#include "cuda/fused/sm90/tile_feed.cuh"

#include <cstdint>

namespace annulus {

template <class Traits> struct BackwardShared {
    static constexpr bool of_keys = Traits::of_keys;
    static constexpr int units = Traits::consumers, step = Traits::step;

    // For dV alone the value rows of units are not needed.
    struct Units {
        std::uint8_t scores[units * Traits::unit_bytes],
            values[Traits::has_d_scores ? units * Traits::unit_bytes : 1024];
    } units_rows[Traits::unit_slots];
    struct RunRows {
        std::uint8_t scores[Traits::stage_bytes], values[Traits::stage_bytes];
    } run_rows[Traits::stages];
    std::uint8_t d_s[Traits::keeps_d_s ? units : 1][Traits::keeps_d_s ? StoredDs::image_bytes : 1024];
    std::uint8_t *images[units]; // in global memory
    // Of queries: those of a stage, or of a tile's units.
    static constexpr int statistic_slots = of_keys ? Traits::stages : Traits::unit_slots;
    static constexpr int statistics = of_keys ? step : units * unit_rows;
    float lse_log2[statistic_slots][statistics], delta[statistic_slots][statistics];
    UnitTile<units> tiles[tile_slots];
    TileSearch search;
    Mbarrier tile_full[tile_slots], tile_empty[tile_slots];
    Mbarrier unit_full[Traits::unit_slots], unit_empty[Traits::unit_slots];
    Mbarrier run_full[Traits::stages], run_empty[Traits::stages];

    __device__ __forceinline__ void init_barriers() {
        constexpr int consumer_warps = units * warpgroup_threads / warp_threads;
        for (int i = 0; i < tile_slots; ++i) {
            tile_full[i].init(1);
            tile_empty[i].init(consumer_warps + 3);
        }
        for (int i = 0; i < Traits::unit_slots; ++i) {
            unit_full[i].init(Traits::has_d_scores ? 2 : 1);
            unit_empty[i].init(consumer_warps);
        }
        for (int i = 0; i < Traits::stages; ++i) {
            run_full[i].init(1 + (of_keys ? warp_threads : 0));
            run_empty[i].init(units);
        }
        publish_barriers();
    }
};

} // namespace annulus
