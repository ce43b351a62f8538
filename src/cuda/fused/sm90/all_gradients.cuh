// SPDX-License-Identifier: Apache-2.0
// The fused backward kernel that finds dQ, dK and dV over one branch in five products, for sm_90a. The formulas are
// those of backward.cuh.
//
// Grid and tiles. CTAs are persistent and take KV tiles of 128 keys in the order of query_sums.hpp. A tile meets the Q
// blocks of its segment from the first queries to the last. S and dP are computed transposed, their rows are keys:
//
//     S^T = K Q^T,   dP^T = V dO^T,   dV += P^T dO,   dK += dS^T Q,   dQ += dS K
//
// P^T and dS^T stay in registers, where they are operands of dV and dK. dS^T also goes to shared memory, for dQ. The
// product dS K of a block is computed one block later, so that one consumer may be ahead of the other by a block. It is
// added to a float32 sum in memory, when it is the tile's turn. When all tiles have added, write_query_sums.cuh makes
// dQ of the sums.
//
// Roles. Each of two consumers has 64 keys of a tile. For dQ, each has 64 queries or 64 columns, and all keys. The
// producer's warps:
//
//     warp 0       copies Q, dO, LSE, delta of Q blocks: by tensor maps or, if rows are permuted, one by one
//     warp 1       finds tiles, copies K and V of tiles, and clears rows that no row block has while it waits
//     warps 2, 3   send products for dQ, every second one each
//
// Shared memory, for each barrier who fills and who empties:
//
//     key_rows[row_block_slots]   K, V of a tile   k_full, v_full: warp 1   k_empty, v_empty: consumers' warps
//     query_rows[stages]          Q of a block     q_full: warp 0           q_empty: consumers
//                                 dO of a block    d_o_full: warp 0         d_o_empty: consumers
//     lse_log2, delta[stages]     of queries       LSE with Q, delta with dO
//     d_s[stages]                 dS of a block    d_s_full: consumers       d_s_empty: consumers
//     d_q[2]                      dS K of a block  d_q_full: consumers      d_q_empty: warps 2, 3
//     tiles[2]                    what to do       tile_full: warp 1        tile_empty: all other warps
//
// Warp 0 tells warp 1 by tile_ending that few blocks of a tile are left to be copied. Rings are never reset. A consumer
// stages dK and dV in its part of V before it releases V.
#pragma once

#include "cuda/device/warp.cuh"
#include "cuda/fused/sm90/all_gradients_consumer.cuh"
#include "cuda/fused/sm90/all_gradients_producer.cuh"
#include "cuda/fused/sm90/all_gradients_shared.cuh"
#include "cuda/fused/sm90/all_gradients_traits.hpp"
#include "cuda/fused/sm90/backward_params.hpp"
#include "cuda/fused/sm90/clear_rows.cuh"
#include "cuda/fused/sm90/setmaxnreg.cuh"

#include <cstdint>

namespace annulus {

template <class Traits>
__global__ void __launch_bounds__(Traits::threads, 1)
    all_gradients_kernel(const __grid_constant__ BackwardParams params) {
    extern __shared__ __align__(1024) std::uint8_t memory[];
    AllGradientsShared<Traits> &shared = *reinterpret_cast<AllGradientsShared<Traits> *>(memory);
    if (threadIdx.x == 0)
        shared.init();
    __syncthreads();
    const int warp = uniform(static_cast<int>(threadIdx.x) / warp_threads);
    if (warp < 4) {
        warpgroup_reg_dealloc<Traits::Registers::producer>();
        if (warp == 0) {
            if constexpr (Traits::is_permuted)
                copy_permuted_queries<Traits>(params, shared);
            else
                copy_queries<Traits>(params, shared);
        } else if (warp == 1) {
            if constexpr (Traits::finder_clears)
                KeyTileFinder<Traits>(params, shared).run(RowClearer<Traits>(params, shared.pieces_begun));
            else
                KeyTileFinder<Traits>(params, shared).run(NoOtherWork());
        } else {
            QuerySumSender<Traits>(params, shared, warp - 2).run();
        }
    } else {
        warpgroup_reg_alloc<Traits::Registers::consumer>();
        AllGradientsConsumer<Traits>(params, shared, warp / 4 - 1).run();
        do_all(RowClearer<Traits>(params, shared.pieces_begun));
    }
}

} // namespace annulus
