// SPDX-License-Identifier: Apache-2.0
// The producer's warps of the kernel of all gradients: they find tiles, copy rows into shared memory, and send products
// for dQ to memory.
#pragma once

#include "cuda/device/warp.cuh"
#include "cuda/fused/schedule/find_summing_tile.cuh"
#include "cuda/fused/sm90/all_gradients_shared.cuh"
#include "cuda/fused/sm90/backward_params.hpp"
#include "cuda/fused/sm90/copy_permuted_rows.cuh"
#include "cuda/fused/sm90/other_work.cuh"
#include "cuda/fused/sm90/tile_scheduler.cuh"
#include "cuda/fused/sm90/tma.cuh"

#include <cstdint>

namespace annulus {

// Warp 1: finds tiles, and copies their K and V. It takes all tiles from the counter, in the order in which they add
// to sums of dQ.
template <class Traits> class KeyTileFinder {
  public:
    __device__ __forceinline__ KeyTileFinder(const BackwardParams &params, AllGradientsShared<Traits> &shared)
        : params_(params), shared_(shared) {}

    // Does other work while it waits for tiles to come to their end.
    template <class OtherWork> __device__ __forceinline__ void run(OtherWork do_other_work) const {
        const auto take = [&](const PipelineState<tile_slots> &at) { return find_next(at.slot()); };
        const auto copy = [&](const PipelineState<tile_slots> &at) { copy_keys(at); };
        find_tiles_by(shared_, take, copy, do_other_work);
    }

  private:
    using Element = typename Traits::Element;

    __device__ __forceinline__ bool find_next(int slot) const {
        const QuerySums &sums = params_.query_sums;
        for (;;) {
            const unsigned number = take_next(params_);
            if (number >= static_cast<unsigned>(sums.count()))
                return false;
            if (find_summing_tile<Traits::range_block_rows>(params_, sums, static_cast<int>(number),
                                                            shared_.tiles[slot], shared_.summing_tiles[slot]))
                return true;
        }
    }

    __device__ __forceinline__ void copy_keys(const PipelineState<tile_slots> &at) const {
        const PipelineState<Traits::row_block_slots> slot{at.count};
        const int i = slot.slot();
        const auto &tile = shared_.tiles[at.slot()];
        shared_.k_empty[i].wait(slot.parity_to_fill());
        copy_rows(tile, shared_.key_rows[i].k, params_.row_q_or_k, shared_.k_full[i]);
        shared_.v_empty[i].wait(slot.parity_to_fill());
        copy_rows(tile, shared_.key_rows[i].v, params_.row_v_or_d_o, shared_.v_full[i]);
    }

    // Copies the rows of a tile. Rows that the tile lacks become zeros, since all keys of a tile add to dQ.
    __device__ __forceinline__ void copy_rows(const Tile<Traits::consumers, 1> &tile, std::uint8_t *rows,
                                              const TensorRows &source, Mbarrier &full) const {
        constexpr int parts = RowLanes<Traits::head_dim>::parts, lanes = RowLanes<Traits::head_dim>::lanes;
        const int lane = thread_of_block() % warp_threads, part = lane % lanes; // read anew for fewer registers
        const bool has_part = part * 8 < params_.head_dim;
        const auto *const row_0 = source.first_row<const Element>(tile.batch, tile.head / params_.heads_of_kv_head) +
                                  (has_part ? part * 8 : 0);
        std::uint32_t target = shared_address(rows);
#pragma unroll 1
        for (int u = 0; u < Traits::consumers && part < parts; ++u, target += Traits::row_block_bytes) {
            const RowBlock &row_block = tile.row_block[u];
#pragma unroll 2
            for (int row = lane / lanes; row < row_block_rows; row += warp_threads / lanes) {
                const bool present = row < row_block.rows;
                const int number = present ? params_.row_of<Traits::order>(row_block.position(row)) : 0;
                cp_async_16(target + swizzled_offset(row_block_rows, row, part), row_0 + number * source.row,
                            present && has_part);
            }
        }
        cp_async_wait_all();
        fence_async_proxy();
        __syncwarp();
        if (thread_of_block() % warp_threads == 0)
            full.arrive();
    }

    const BackwardParams &params_;
    AllGradientsShared<Traits> &shared_;
};

// Calls use(tile, number of its blocks, place of the tile) for each tile, in order, until there is no more tile. A
// whole warp calls it.
template <class Traits, class Wait, class Use>
__device__ __forceinline__ void for_each_tile(AllGradientsShared<Traits> &shared, const Wait &wait, const Use &use) {
    for (PipelineState<tile_slots> at;; ++at.count) {
        wait(shared.tile_full[at.slot()], at.parity_to_empty());
        const Tile<Traits::consumers, 1> &tile = shared.tiles[at.slot()];
        if (tile.ranges < 0)
            return;
        use(tile, tile.ranges > 0 ? tile.range[0].blocks : 0, at);
        __syncwarp();
        if (thread_of_block() % warp_threads == 0)
            shared.tile_empty[at.slot()].arrive();
    }
}

// Warp 0: copies Q, dO, LSE and delta of Q blocks, from the last queries to the first.
template <class Traits>
__device__ __forceinline__ void copy_queries(const BackwardParams &params, AllGradientsShared<Traits> &shared) {
    constexpr int rows = Traits::range_block_rows;
    PipelineState<Traits::stages> stage;
    const auto wait = [](const Mbarrier &barrier, unsigned parity) { barrier.wait(parity); };
    for_each_tile<Traits>(shared, wait, [&](const auto &tile, int blocks, const PipelineState<tile_slots> &at) {
        const auto &range = tile.range[0];
        TileEndSignal<Traits> end(params, params.tiles_differ(), tile, shared.tile_ending[at.slot()],
                                  params.query_sums.wave == 0);
        const std::int64_t statistics =
            (std::int64_t{tile.batch} * params.all_heads + tile.head) * params.statistic_rows + range.first -
            params.first_range_row;
        const int first_step = shared.summing_tiles[at.slot()].first_step(params.query_sums.wave, blocks);
        int first = range.count - (blocks - first_step) * rows; // index of the block's first row in the range
#pragma unroll 1
        for (int step = 0; step < blocks; ++step, first += rows, ++stage.count) {
            if (first >= range.count)
                first -= blocks * rows;
            end.next_block();
            const int slot = stage.slot();
            const auto copy = [&](const CUtensorMap &map, std::uint8_t *target, const float *statistic,
                                  float *statistic_target, const Mbarrier &empty, Mbarrier &full) {
                empty.wait(stage.parity_to_fill());
                if (thread_of_block() % warp_threads == 0) {
                    full.arrive_expecting(Traits::stage_bytes);
#pragma unroll
                    for (int chunk = 0; chunk < Traits::chunks; ++chunk)
                        tma_load(shared_address(target) + chunk * rows * swizzled_row_bytes, map, full, chunk * 64,
                                 range.index + first, range.residue, tile.head, tile.batch);
                }
#pragma unroll 1
                for (int j = thread_of_block() % warp_threads; j < rows; j += warp_threads) {
                    const bool present = first + j >= 0;
                    const std::int64_t source = present ? statistics + std::int64_t{first + j} * range.stride : 0;
                    cp_async_4(shared_address(statistic_target + j), statistic + source, present);
                }
                full.arrive_after_cp_async();
            };
            // Consumers release dO before Q.
            copy(params.range_v_or_d_o[range.map], shared.query_rows[slot].d_o, params.delta, shared.delta[slot],
                 shared.d_o_empty[slot], shared.d_o_full[slot]);
            copy(params.range_q_or_k[range.map], shared.query_rows[slot].q, params.lse_log2, shared.lse_log2[slot],
                 shared.q_empty[slot], shared.q_full[slot]);
        }
        if (params.query_sums.wave != 0 && thread_of_block() % warp_threads == 0)
            shared.tile_ending[at.slot()].arrive();
    });
}

// Does the same if rows are permuted.
template <class Traits>
__device__ __forceinline__ void copy_permuted_queries(const BackwardParams &params,
                                                      AllGradientsShared<Traits> &shared) {
    using Element = typename Traits::Element;
    constexpr int rows = Traits::range_block_rows;
    PipelineState<Traits::stages> stage;
    CopiesInFlight copies;
    const auto wait = [&](const Mbarrier &barrier, unsigned parity) { copies.wait(barrier, parity); };
    for_each_tile<Traits>(shared, wait, [&](const auto &tile, int blocks, const PipelineState<tile_slots> &at) {
        const auto &range = tile.range[0];
        TileEndSignal<Traits> end(params, params.tiles_differ(), tile, shared.tile_ending[at.slot()], true);
        if (blocks == 0)
            return;
        const std::int64_t statistics =
            (std::int64_t{tile.batch} * params.all_heads + tile.head) * params.statistic_rows;
        RowsOfRange<rows> rows_of_range;
        int first = range.count - blocks * rows; // index of the block's first row in the range
        rows_of_range.begin(params, range, first);
#pragma unroll 1
        for (; first < range.count; ++stage.count) {
            end.next_block();
            const int slot = stage.slot();
            first += rows;
            const RowsOfLanes<rows> own = rows_of_range.take(range, first);
            const auto copy = [&](const TensorRows &source, std::uint8_t *target, const float *statistic,
                                  float *statistic_target, const Mbarrier &empty, Mbarrier &full) {
                wait(empty, stage.parity_to_fill());
                copy_permuted_rows<Traits::head_dim, rows>(
                    shared_address(target), source.first_row<const Element>(tile.batch, tile.head), source.row,
                    params.head_dim, own, [&](int j, int row) {
                        cp_async_4(shared_address(statistic_target + j), statistic + statistics + row, true);
                    });
                copies.add(full);
            };
            copy(params.range_q_or_k_rows, shared.query_rows[slot].q, params.lse_log2, shared.lse_log2[slot],
                 shared.q_empty[slot], shared.q_full[slot]);
            copy(params.range_v_or_d_o_rows, shared.query_rows[slot].d_o, params.delta, shared.delta[slot],
                 shared.d_o_empty[slot], shared.d_o_full[slot]);
        }
    });
    copies.finish();
}

// Warps 2 and 3: each sends every second product for dQ, from a buffer of its own. So a warp may wait for its turn
// while the other warp's product is on its way. The first tile to add to a Q block stores its product.
template <class Traits> class QuerySumSender {
  public:
    __device__ __forceinline__ QuerySumSender(const BackwardParams &params, AllGradientsShared<Traits> &shared,
                                              int buffer)
        : params_(params), shared_(shared), buffer_(buffer) {}

    __device__ __forceinline__ void run() const {
        unsigned blocks_before = 0; // blocks of the tiles before
        const auto wait = [](const Mbarrier &barrier, unsigned parity) { barrier.wait(parity); };
        for_each_tile<Traits>(shared_, wait, [&](const auto &tile, int blocks, const PipelineState<tile_slots> &at) {
            if (thread_of_block() % warp_threads == 0)
                send(tile, shared_.summing_tiles[at.slot()], blocks, blocks_before);
            blocks_before += static_cast<unsigned>(blocks);
        });
    }

  private:
    using OwnTile = Tile<Traits::consumers, 1>;
    static constexpr int d_q_buffers = Traits::d_q_buffers;
    static constexpr int prefetched_blocks = 4; // how far ahead; a multiple of the number of buffers

    __device__ __forceinline__ void send(const OwnTile &tile, const SummingTile &summing, int blocks,
                                         unsigned blocks_before) const {
        const int first = static_cast<int>((blocks_before + static_cast<unsigned>(buffer_)) % d_q_buffers);
        const int wave = params_.query_sums.wave, first_step = summing.first_step(wave, blocks);
        const std::int64_t first_block = params_.query_sums.block(summing.cell, blocks - 1);
        const bool prefetches = wave == 0 && summing.may_be_first_to_run && summing.later_tiles > 0;
        if (prefetches)
#pragma unroll 1
            for (int i = first; i < min(prefetched_blocks, blocks); i += d_q_buffers)
                prefetch(first_block - i);
#pragma unroll 1
        for (int i = first; i < blocks; i += d_q_buffers) {
            if (prefetches && i + prefetched_blocks < blocks)
                prefetch(first_block - i - prefetched_blocks);
            const PipelineState<d_q_buffers> place{blocks_before + static_cast<unsigned>(i)};
            const int at = first_step + i, step = at < blocks ? at : at - blocks;
            const int turn = wave ? summing.ring_turn(wave, blocks, step)
                                  : turn_of(params_, tile, summing, Traits::range_block_rows, blocks - 1 - step);
            add(first_block - step, turn, place);
        }
    }

    __device__ __forceinline__ void prefetch(std::int64_t block) const {
        bulk_prefetch(params_.query_sums.sum(block), Traits::sum_bytes);
    }

    __device__ __forceinline__ void add(std::int64_t block, int turn, const PipelineState<d_q_buffers> &place) const {
        unsigned *const added = params_.query_sums.added + block;
        if (turn > 0) {
            unsigned before;
            do
                asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(before) : "l"(added) : "memory");
#ifdef NOTURNS
            while (false);
#else
            while (before < static_cast<unsigned>(turn));
#endif
            asm volatile("fence.acq_rel.gpu;" ::: "memory");
        }
        shared_.turns[buffer_] = {params_.query_sums.sum(block), turn == 0};
        shared_.turn_full[buffer_].arrive();
        shared_.d_q_full[buffer_].wait(place.parity_to_empty());
#ifndef NOTURNS
        asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(added), "r"(turn + 1) : "memory");
#endif
    }

    const BackwardParams &params_;
    AllGradientsShared<Traits> &shared_;
    const int buffer_;
};

} // namespace annulus
