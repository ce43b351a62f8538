// SPDX-License-Identifier: Apache-2.0
// The fused forward kernel: attention of all branches in one launch, for sm_90a.
//
// For each query, over the keys of all its branches, with S = Q K^T, c = scale log2(e) and a key's multiplicity w:
//
//     m = max(S + log2(w) / c),   l = sum 2^(c S + log2(w) - c m),   O = sum 2^(c S + log2(w) - c m) V / l
//     LSE = (c m + log2(l)) / log2(e)
//
// It uses the running softmax of Milakov and Gimelshein (2018): with each KV block, O and l are rescaled if m moves. m
// need not be the largest score: any number near it serves as well. So a KV block that hides no keys is processed with
// the m of the blocks before (reuses_maxima). Its largest score is searched for only if the sum of its probabilities
// shows that m is too small. Then its S is computed once more. For this, a block of K is held until its probabilities
// are there.
//
// Words. A row block is 64 queries, the Q tile of one warpgroup. A range is the keys of a branch that a row block
// meets, one arithmetic progression. A KV block is the keys of a range that one stage of the pipeline holds
// (schedule/). Rows along a curve are called permuted.
//
// CTAs. One for each multiprocessor of the GPU. Each takes tiles (find_tile.cuh) until none are left: the first
// one by its index, each further one from a counter (tile_scheduler.cuh).
//
// Roles. Warpgroup 0 is the producer. Its warp 0 copies K and V by tensor maps, warp 1 is the tile scheduler, warps 2
// and 3 copy Q. While warps 1, 2 and 3 wait, they clear rows that attend to nothing. Permuted rows are copied one by
// one: warps 0 and 3 copy a half of each KV block each, warp 2 copies Q, and warps 1 and 2 clear rows. The other
// warpgroups are consumers; each computes a row block of 64 queries.
//
// Shared memory, and the barriers of each ring: who arrives when a slot is full, and who when it is empty:
//
//     q[q_slots]             row blocks of Q      q_full: warps 2 and 3             q_empty: consumers' warps
//     k, v[stages]           a block of K, of V   k_full, v_full: tensor copies     k_empty, v_empty: consumers' warps
//     tiles[2]               what is to be done   tile_full: warp 1                 tile_empty: all other warps
//
// Warp 0 tells warp 1 by tile_ending that few KV blocks of a tile are left to be copied. Rings are never reset. A
// consumer stages O in its part of the slot of Q before it releases the slot. By programmatic dependent launch, a
// launch may begin before the launch before it has ended (early_launch.cuh). Consumers then wait for the end of the
// launch before, and only then write results.
#pragma once

#include "cuda/device/early_launch.cuh"
#include "cuda/device/warp.cuh"
#include "cuda/fused/sm90/clear_rows.cuh"
#include "cuda/fused/sm90/forward_consumer.cuh"
#include "cuda/fused/sm90/forward_params.hpp"
#include "cuda/fused/sm90/forward_producer.cuh"
#include "cuda/fused/sm90/forward_shared.cuh"
#include "cuda/fused/sm90/forward_traits.hpp"
#include "cuda/fused/sm90/setmaxnreg.cuh"
#include "cuda/fused/sm90/tile_scheduler.cuh"

#include <cstdint>

namespace annulus {

template <class Traits>
__global__ void __launch_bounds__(Traits::threads, 1) forward_kernel(const __grid_constant__ ForwardParams params) {
    extern __shared__ __align__(1024) std::uint8_t memory[];
    ForwardShared<Traits> &shared = *reinterpret_cast<ForwardShared<Traits> *>(memory);
    if (threadIdx.x == 0) {
        shared.init();
        launch_dependents();
    }
    __syncthreads();
    const int warp = uniform(static_cast<int>(threadIdx.x) / warp_threads);
    if (warp < 4) {
        warpgroup_reg_dealloc<Traits::Registers::producer>();
        if (warp == 1) {
            find_tiles(
                params, shared, [] {}, [](const PipelineState<tile_slots> &) {},
                RowClearer<Traits>(params, shared.pieces_begun));
        } else if constexpr (Traits::is_permuted) {
            if (warp == 2)
                copy_q(params, shared, RowClearer<Traits>(params, shared.pieces_begun));
            else
                copy_permuted_kv_blocks(params, shared, warp == 3);
        } else if (warp == 0) {
            if (threadIdx.x == 0)
                copy_kv_blocks(params, shared);
        } else {
            copy_q(params, shared, RowClearer<Traits>(params, shared.pieces_begun));
        }
    } else {
        warpgroup_reg_alloc<Traits::Registers::consumer>();
        ForwardConsumer<Traits>(params, shared, warp / 4 - 1).run();
        do_all(RowClearer<Traits>(params, shared.pieces_begun));
    }
    grid_dependency_wait(); // so that this launch ends after the launch before
}

} // namespace annulus
