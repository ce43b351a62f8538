// SPDX-License-Identifier: Apache-2.0
// The fused backward kernels: gradients through all branches, for sm_90a.
//
// With S = Q K^T, c = scale log2(e), the multiplicity w of a pair, and one LSE and one delta = O . dO - dLSE of a query
// over all its branches (Dao et al., 2022):
//
//     P = 2^(c S + log2(w) - LSE log2(e)),   dP = dO V^T,   dS = P (dP - delta)
//     dQ = scale dS K,   dK = scale dS^T Q,   dV = P^T dO
//
// One kernel text serves all: for dQ, row blocks are of queries and ranges of keys; for dK and dV it is the other way
// round. Above 128 columns, dK and dV have a kernel each. Each side has two matrices: queries have Q and dO, keys have
// K and V. In the code, `q_or_k` is Q or K, `v_or_d_o` is V or dO, of a row block or of a range. Every kernel computes,
// transposed or not,
//
//     S = row q_or_k . range q_or_k^T,   dP = row v_or_d_o . range v_or_d_o^T
//     d_q_or_k = scale dS range q_or_k,   d_v = P range v_or_d_o (for row blocks of keys)
//
// P and dS stay in registers, where they are operands of the last products. Both kernels compute S and dP. That is the
// price of sums that no two CTAs share at a time, so that every call gives the same bits. In launches over one branch
// with 64 < D <= 128 (stored_ds_plan.hpp says which), the kernel of keys also stores dS in memory. Between its tiles of
// keys it takes tiles of queries, for which it multiplies dS with K. stored_turns.hpp says in which order;
// stored_copies.cuh and stored_product.cuh do it.
//
// Grid and tiles are as in forward.cuh. A block of a range is a KV block for dQ, and a Q block for dK and dV.
//
// Roles. The consumers compute, as in forward.cuh. The producer's warps:
//
//     warp   row blocks of queries (dQ)                row blocks of keys (dK, dV)
//     0      copies ranges by tensor maps              copies ranges by tensor maps
//     1      finds tiles                               finds tiles, copies V of row blocks
//     2      copies Q of row blocks                    copies K of row blocks
//     3      copies dO, LSE, delta of row blocks       copies LSE, delta of ranges
//
// If dS is stored, warp 2 copies V, too. For dV alone, no warp copies V. While warps 1 and 2 wait, one or both of them
// clear rows that no row block has. Permuted rows are copied one by one. Warps 0 and 3 then copy a half of each block
// of ranges each, with LSE and delta. Warp 2 copies Q and dO of row blocks of queries.
//
// Shared memory, for each barrier who fills and who empties:
//
//     own_rows[row_block_slots]  row blocks          row_block_full: their warps  row_block_empty: consumers' warps
//     range_rows[stages]         a block             range_full: copies, warps    range_empty: consumers
//     lse_log2, delta[…]         of queries          with their rows
//     d_s[row blocks]            an image on its way out: a warp's rows by the warp itself
//     tiles[2]                   what is to be done  tile_full: warp 1            tile_empty: all other warps
//     in own_rows, range_rows    dS, and K           stored_full: warps 0 and 3   stored_empty: consumers
//
// Row blocks and blocks of ranges have both matrices. Warp 0 tells warp 1 by tile_ending that few blocks of a tile are
// left to be copied. Rings are never reset. A consumer stages results in its part of the row block's slot before it
// releases the slot. Each consumer has one of the named barriers 1, 2, ….
//
// By programmatic dependent launch, a launch may begin before the launch before it has ended (early_launch.cuh).
// Consumers then wait for the end of the launch before, and only then write or add results. Rows are cleared without
// waiting, since no other launch writes them.
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
        // A launch for dQ may begin before LSE and delta are there. The launch after it must not, since it reads them
        // without waiting. So it begins when all CTAs of this launch have waited.
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
    grid_dependency_wait(); // so that this launch ends after the launch before
}

} // namespace annulus
