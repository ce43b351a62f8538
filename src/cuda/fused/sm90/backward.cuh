// SPDX-License-Identifier: Apache-2.0
// The fused backward kernels: gradients through all branches, for sm_90a.
//
// With S = Q K^T, c = scale log2(e), the multiplicity w of a pair, and the one LSE and delta = O . dO - dLSE of a query
// over all its branches (Dao et al., 2022):
//
//     P = 2^(c S + log2(w) - LSE log2(e)),   dP = dO V^T,   dS = P (dP - delta)
//     dQ = scale dS K,   dK = scale dS^T Q,   dV = P^T dO
//
// One kernel text, once with row blocks of queries and ranges of keys (dQ) and once the other way round (dK and dV;
// above 128 columns apart from one another). The score rows of a row block are those of Q, or K, its value rows those
// of dO, or V; of a range the other ones. In these terms either kernel computes, transposed or not,
//
//     S = row scores . range scores^T,   dP = row values . range values^T
//     d(row scores) = scale dS range scores,   d(row values) = P range values
//
// P and dS stay in registers, where they are operands of the last products. S and dP are computed by both kernels: the
// price of sums that no two CTAs share at a time, so that every call gives the same bits. For plans of one branch with
// 64 < D <= 128 (stored_ds_plan.hpp says which) the kernel of keys writes dS to memory as well, and between its tiles
// of keys takes tiles of queries, for which it multiplies dS with K (stored_turns.hpp says in which order,
// stored_copies.cuh and stored_product.cuh do it).
//
// Grid and tiles as in forward.cuh. Roles: of the feeding warpgroup warp 0 copies the rows of ranges by tensor maps,
// warp 1 finds tiles, warp 2 copies the score rows of row blocks and warp 3 their value rows; where row blocks are of
// keys, warp 1 copies these (or 2, if dS is stored; for dV alone none) and warp 3 the statistics of ranges. Warps 1 and
// 2, or one of them, clear rows that no row block has meanwhile. Along a curve rows are copied one by one: a half of
// each block of ranges, statistics included, by warps 0 and 3 each; of row blocks of queries all rows by warp 2.
//
// Shared memory, for each barrier who fills and who empties:
//
//     own_rows[row_block_slots]  row blocks of both  row_block_full: their warps  row_block_empty: consumers' warps
//     range_rows[stages]         a block of both     range_full: copies, warps    range_empty: consumers
//     lse_log2, delta[…]         of queries          with their rows
//     d_s[row blocks]            an image on its way out: a warp's rows by the warp itself
//     tiles[2]                   what is to be done  tile_full: warp 1            tile_empty: all other warps
//     in own_rows, range_rows    dS, and K           stored_full: warps 0 and 3   stored_empty: consumers
//
// Warp 0 tells warp 1 by tile_ending that few blocks of a tile are left to be copied. Rings are never reset. A consumer
// stages results in its part of the row block's slot before it gives that back. Named barriers 1, 2, … are those of one
// consumer each.
//
// A launch may begin before the one before has ended (early_launch.cuh): then consumers wait for that before they write
// or add results. Rows are cleared meanwhile, which no other launch writes.
#pragma once

#include "cuda/device/early_launch.cuh"
#include "cuda/device/warp.cuh"
#include "cuda/fused/sm90/backward_consumer.cuh"
#include "cuda/fused/sm90/backward_params.hpp"
#include "cuda/fused/sm90/backward_producer.cuh"
#include "cuda/fused/sm90/backward_shared.cuh"
#include "cuda/fused/sm90/backward_traits.hpp"
#include "cuda/fused/sm90/clear_rows.cuh"
#include "cuda/fused/sm90/setmaxnreg.cuh"
#include "cuda/fused/sm90/tile_scheduler.cuh"

#include <cstdint>

namespace annulus {

template <class Traits>
__global__ void __launch_bounds__(Traits::threads, 1) backward_kernel(const __grid_constant__ BackwardParams params) {
    extern __shared__ __align__(1024) std::uint8_t memory[];
    BackwardShared<Traits> &shared = *reinterpret_cast<BackwardShared<Traits> *>(memory);
    if (threadIdx.x == 0)
        shared.init();
    __syncthreads();
    const int warp = uniform(static_cast<int>(threadIdx.x) / warp_threads);
    if (warp < 4) {
        warpgroup_reg_dealloc<Traits::Registers::producer>();
        // A launch for dQ may begin before LSE and delta are there. One after it, which reads them without waiting,
        // may not: it begins when all CTAs of this one have waited.
        if (!Traits::rows_are_keys && warp >= 2)
            grid_dependency_wait();
        if (warp == 2)
            launch_dependents();
        if (Traits::is_permuted && (warp == 0 || warp == 3)) {
            copy_permuted_ranges(params, shared, warp == 3);
        } else if (warp == 0) {
            if (threadIdx.x == 0)
                copy_ranges(params, shared);
        } else if (warp == 1) {
            const auto before_counting = [] {
                if constexpr (!Traits::rows_are_keys)
                    grid_dependency_wait(); // the counter of tiles is set with LSE and delta
            };
            const auto copy_v = [&](const PipelineState<tile_slots> &at) {
                if constexpr (Traits::rows_are_keys && Traits::has_d_q_or_k && !Traits::stores_d_s)
                    copy_rows_of_row_blocks<Traits, false>(params, shared, at, NoOtherWork());
            };
            if constexpr (Traits::stores_d_s)
                find_stored_tiles(params, shared);
            else if constexpr (Traits::finder_clears)
                find_tiles(params, shared, before_counting, copy_v, RowClearer<Traits>(params, shared.pieces_begun));
            else
                find_tiles(params, shared, before_counting, copy_v, NoOtherWork());
        } else if (warp == 2) {
            if constexpr (Traits::copier_clears)
                copy_row_blocks<Traits, true>(params, shared, RowClearer<Traits>(params, shared.pieces_begun));
            else
                copy_row_blocks<Traits, true>(params, shared, NoOtherWork());
        } else if constexpr (Traits::rows_are_keys) {
            copy_statistics(params, shared);
        } else {
            copy_row_blocks<Traits, false>(params, shared, NoOtherWork());
        }
    } else {
        warpgroup_reg_alloc<Traits::Registers::consumer>();
        BackwardConsumer<Traits>(params, shared, warp / 4 - 1).run();
        do_all(RowClearer<Traits>(params, shared.pieces_begun));
    }
    grid_dependency_wait(); // so that this one ends after it
}

} // namespace annulus
