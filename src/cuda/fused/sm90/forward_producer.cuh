// SPDX-License-Identifier: Apache-2.0
// The warps of the fused forward kernel that copy rows into shared memory.
#pragma once

#include "cuda/device/warp.cuh"
#include "cuda/fused/sm90/copy_permuted_rows.cuh"
#include "cuda/fused/sm90/forward_params.hpp"
#include "cuda/fused/sm90/forward_shared.cuh"
#include "cuda/fused/sm90/other_work.cuh"
#include "cuda/fused/sm90/tma.cuh"

#include <cstdint>

namespace annulus {

// Warp 0, one lane: copies K and V.

template <class Traits>
__device__ __forceinline__ void copy_kv_blocks(const ForwardParams &params, ForwardShared<Traits> &shared) {
    PipelineState<Traits::stages> stage;
    for (PipelineState<tile_slots> at;; ++at.count) {
        shared.tile_full[at.slot()].wait(at.parity_to_empty());
        const Tile<Traits::consumers> &tile = shared.tiles[at.slot()];
        const int ranges = tile.ranges;
        if (ranges < 0)
            return;
        const int batch = tile.batch, kv_head = tile.head / params.heads_of_kv_head;
        TileEndSignal<Traits> end(params, params.tiles_differ(), tile, shared.tile_ending[at.slot()], true);
        for (int i = 0; i < ranges; ++i) {
            const auto &range = tile.range[i];
            const CUtensorMap &k_map = params.k[range.map], &v_map = params.v[range.map];
            const auto place = range.place_in_map(params);
            for (int block = range.blocks - 1; block >= 0; --block, ++stage.count) {
                end.next_block();
                const auto copy = [&](const CUtensorMap &map, std::uint8_t *target, Mbarrier &full, Mbarrier &empty) {
                    empty.wait(stage.parity_to_fill());
                    full.arrive_expecting(Traits::stage_bytes);
#pragma unroll
                    for (int chunk = 0; chunk < Traits::chunks; ++chunk)
                        tma_load(shared_address(target) + chunk * Traits::range_block_rows * swizzled_row_bytes, map,
                                 full, chunk * 64, place.index + block * Traits::range_block_rows, place.residue,
                                 kv_head, batch);
                };
                const int s = stage.slot();
                copy(k_map, shared.k[s], shared.k_full[s], shared.k_empty[s]);
                copy(v_map, shared.v[s], shared.v_full[s], shared.v_empty[s]);
            }
        }
        shared.tile_empty[at.slot()].arrive();
    }
}

// Warps 0 and 3, if rows are permuted: each copies a half of each KV block, so that the block is there sooner.

template <class Traits>
__device__ __forceinline__ void copy_permuted_kv_blocks(const ForwardParams &params, ForwardShared<Traits> &shared,
                                                        int half) {
    using Element = typename Traits::Element;
    constexpr int own_rows = Traits::range_block_rows / 2;
    const std::uint32_t offset = half * own_rows * swizzled_row_bytes;
    CopiesInFlight copies;
    RowsOfRange<own_rows> rows_of_range;
    PipelineState<Traits::stages> stage;
    for (PipelineState<tile_slots> at;; ++at.count) {
        copies.wait(shared.tile_full[at.slot()], at.parity_to_empty());
        const Tile<Traits::consumers> &tile = shared.tiles[at.slot()];
        const int ranges = tile.ranges;
        if (ranges < 0)
            return copies.finish();
        const int batch = tile.batch, kv_head = tile.head / params.heads_of_kv_head;
        const auto *const k_row_0 = params.k_rows.first_row<const Element>(batch, kv_head);
        const auto *const v_row_0 = params.v_rows.first_row<const Element>(batch, kv_head);
        TileEndSignal<Traits> end(params, params.tiles_differ(), tile, shared.tile_ending[at.slot()], half == 0);
        for (int i = 0; i < ranges; ++i) {
            const auto &range = tile.range[i];
            int first = (range.blocks - 1) * Traits::range_block_rows + half * own_rows;
            rows_of_range.begin(params, range, first);
            for (; first >= 0; ++stage.count) {
                end.next_block();
                first -= Traits::range_block_rows;
                const auto own = rows_of_range.take(range, first);
                const auto copy = [&](const Element *row_0, std::int64_t distance, std::uint8_t *target, Mbarrier &full,
                                      Mbarrier &empty) {
                    copies.wait(empty, stage.parity_to_fill());
                    copy_permuted_rows<Traits::head_dim, Traits::range_block_rows>(
                        shared_address(target) + offset, row_0, distance, params.head_dim, own, [](int, int) {});
                    copies.add(full);
                };
                const int s = stage.slot();
                copy(k_row_0, params.k_rows.row, shared.k[s], shared.k_full[s], shared.k_empty[s]);
                copy(v_row_0, params.v_rows.row, shared.v[s], shared.v_full[s], shared.v_empty[s]);
            }
        }
        __syncwarp();
        if (threadIdx.x % warp_threads == 0)
            shared.tile_empty[at.slot()].arrive();
    }
}

// Warps 2 and 3: copy Q, every other few rows each. If rows are permuted, warp 2 copies Q alone.

template <class Traits>
__device__ __forceinline__ void copy_q_rows(const ForwardParams &params, const RowBlock &row_block,
                                            const typename Traits::Element *row_0, std::uint32_t target) {
    constexpr int parts = RowLanes<Traits::head_dim>::parts, lanes = RowLanes<Traits::head_dim>::lanes;
    constexpr int at_once = 2 * warp_threads / lanes; // rows that both warps copy at once
    const int part = static_cast<int>(threadIdx.x) % lanes;
    if (part >= parts)
        return;
    const int first_row = static_cast<int>(threadIdx.x) % (2 * warp_threads) / lanes;
    const int rows = part * 8 < params.head_dim ? row_block.rows : 0; // the other rows become zeros
    row_0 += part * 8 < params.head_dim ? part * 8 : 0;
    const auto *next = row_0 + (row_block.first + first_row * row_block.stride - params.q.start) * params.q.row;
    const std::int64_t distance = std::int64_t{at_once} * row_block.stride * params.q.row;
    target += swizzled_offset(row_block_rows, first_row, part);
    const auto copy = [&](const auto &is_present) {
#pragma unroll
        for (int i = 0; i < row_block_rows; i += at_once, next += distance) {
            const bool present = is_present(first_row + i);
            cp_async_16(swizzled_rows_further(target, i), present ? next : row_0, present);
        }
    };
    if (rows == row_block_rows)
        copy([](int) { return true; });
    else
        copy([&](int row) { return row < rows; });
}

template <class Traits, class OtherWork>
__device__ __forceinline__ void copy_q(const ForwardParams &params, ForwardShared<Traits> &shared,
                                       OtherWork do_other_work) {
    using Element = typename Traits::Element;
    const int lane = static_cast<int>(threadIdx.x) % warp_threads;
    for (PipelineState<tile_slots> at;; ++at.count) {
        const PipelineState<Traits::q_slots> slot{at.count};
        do_other_work.begin_tile();
        work_while_waiting(shared.tile_full[at.slot()], at.parity_to_empty(), do_other_work);
        const Tile<Traits::consumers> &tile = shared.tiles[at.slot()];
        if (tile.ranges < 0)
            return do_all(do_other_work);
        work_while_waiting(shared.q_empty[slot.slot()], slot.parity_to_fill(), do_other_work);
        const auto *const row_0 = params.q.first_row<const Element>(tile.batch, tile.head);
        for (int u = 0; u < Traits::consumers; ++u) {
            const RowBlock row_block = tile.row_block[u];
            const std::uint32_t target = shared_address(shared.q[slot.slot()]) + u * Traits::row_block_bytes;
            if (row_block.rows == 0)
                continue;
            if constexpr (Traits::is_permuted)
                copy_permuted_rows<Traits::head_dim, row_block_rows>(
                    target, row_0, params.q.row, params.head_dim, RowsOfLanes<row_block_rows>([&](int i) {
                        return params.query_row<Traits::order>(row_block.position(i));
                    }),
                    [](int, int) {});
            else
                copy_q_rows<Traits>(params, row_block, row_0, target);
        }
        cp_async_wait_all();
        fence_async_proxy();
        __syncwarp();
        if (lane == 0) {
            shared.q_full[slot.slot()].arrive();
            shared.tile_empty[at.slot()].arrive();
        }
    }
}

} // namespace annulus
