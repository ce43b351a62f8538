// SPDX-License-Identifier: Apache-2.0
// The warps of the fused backward kernels that copy rows into shared memory.
#pragma once

#include "cuda/device/warp.cuh"
#include "cuda/fused/sm90/backward_params.hpp"
#include "cuda/fused/sm90/backward_shared.cuh"
#include "cuda/fused/sm90/tma.cuh"

#include <bit>
#include <cstdint>

namespace annulus {

// What these warps have in common: they go through the blocks of all tiles, as consumers do.
// use(tile, range, index of the block's first row in the range, stage) for each block.
template <class Traits, class Use>
__device__ __forceinline__ void for_each_block(BackwardShared<Traits> &shared, Use use) {
    PipelineState<Traits::stages> stage;
    for (PipelineState<tile_slots> at;; ++at.count) {
        shared.tile_full[at.slot()].wait(at.parity_to_empty());
        const Tile<Traits::consumers> &tile = shared.tiles[at.slot()];
        const int ranges = tile.ranges;
        if (ranges < 0)
            return;
        for (int i = 0; i < ranges; ++i) {
            const auto &range = tile.range[i];
            for (int block = range.blocks - 1; block >= 0; --block, ++stage.count) {
                shared.range_empty[stage.slot()].wait(stage.parity_to_fill());
                use(tile, range,
                    Traits::of_keys ? range.count - (block + 1) * Traits::range_block_rows
                                    : block * Traits::range_block_rows,
                    stage.slot());
            }
        }
        __syncwarp(__activemask());
        if (threadIdx.x % warp_threads == 0)
            shared.tile_empty[at.slot()].arrive();
    }
}

// Warp 0, one lane.
template <class Traits>
__device__ __forceinline__ void copy_ranges(const BackwardParams &params, BackwardShared<Traits> &shared) {
    for_each_block<Traits>(shared, [&](const auto &tile, const auto &range, int first, int stage) {
        const int head = Traits::of_keys ? tile.head : tile.head / params.heads_of_kv_head;
        Mbarrier &full = shared.range_full[stage];
        full.arrive_expecting(2 * Traits::stage_bytes);
        const auto copy = [&](const CUtensorMap &map, std::uint8_t *target) {
#pragma unroll
            for (int chunk = 0; chunk < Traits::chunks; ++chunk)
                tma_load(shared_address(target) + chunk * Traits::range_block_rows * swizzled_row_bytes, map, full,
                         chunk * 64, range.index + first, range.residue, head, tile.batch);
        };
        copy(params.range_scores[range.map], shared.range_rows[stage].scores);
        copy(params.range_values[range.map], shared.range_rows[stage].values);
    });
}

// Warp 3.
template <class Traits>
__device__ __forceinline__ void copy_statistics(const BackwardParams &params, BackwardShared<Traits> &shared) {
    for_each_block<Traits>(shared, [&](const auto &tile, const auto &range, int first, int stage) {
        const std::int64_t offset = (std::int64_t{tile.batch} * params.all_heads + tile.head) * params.statistic_rows +
                                    range.first - params.first_range_row;
        for (int i = static_cast<int>(threadIdx.x) % warp_threads; i < Traits::range_block_rows; i += warp_threads) {
            const int row = first + i;
            const bool present = row >= 0 && row < range.count;
            const std::int64_t source = offset + (present ? std::int64_t{row} * range.stride : 0);
            cp_async_4(shared_address(&shared.lse_log2[stage][i]), params.lse_log2 + source, present);
            cp_async_4(shared_address(&shared.delta[stage][i]), params.delta + source, present);
        }
        shared.range_full[stage].arrive_after_cp_async();
    });
}

template <int row_blocks>
__device__ __forceinline__ void copy_row_block_statistics(const BackwardParams &params, const Tile<row_blocks> &tile,
                                                          float *lse_log2, float *delta) {
    const std::int64_t offset = (std::int64_t{tile.batch} * params.all_heads + tile.head) * params.statistic_rows;
    for (int i = static_cast<int>(threadIdx.x) % warp_threads; i < row_blocks * row_block_rows; i += warp_threads) {
        const RowBlock &row_block = tile.row_block[i / row_block_rows];
        const bool present = i % row_block_rows < row_block.rows;
        const std::int64_t source = offset + (present ? params.row_of(row_block.position(i % row_block_rows)) : 0);
        cp_async_4(shared_address(lse_log2 + i), params.lse_log2 + source, present);
        cp_async_4(shared_address(delta + i), params.delta + source, present);
    }
}

// The score rows of a tile's row blocks, or their value rows and statistics. By a warp each: the rows of a tile with
// few blocks take one warp longer than its blocks.
template <class Traits, bool of_scores>
__device__ __forceinline__ void copy_rows_of_row_blocks(const BackwardParams &params, BackwardShared<Traits> &shared,
                                                        const PipelineState<tile_slots> &at) {
    using Element = typename Traits::Element;
    constexpr int parts = Traits::head_dim / 8;                                          // of 16 bytes, of a row
    constexpr int lanes = static_cast<int>(std::bit_ceil(static_cast<unsigned>(parts))); // of a row
    const int lane = static_cast<int>(threadIdx.x) % warp_threads, part = lane % lanes;
    const PipelineState<Traits::row_block_slots> slot{at.count};
    const Tile<Traits::consumers> &tile = shared.tiles[at.slot()];
    shared.row_block_empty[slot.slot()].wait(slot.parity_to_fill());
    auto &target = shared.own_rows[slot.slot()];
    const std::uint32_t targets = shared_address(of_scores ? target.scores : target.values);
    const TensorRows &rows = of_scores ? params.row_scores : params.row_values;
    const int head = Traits::of_keys ? tile.head / params.heads_of_kv_head : tile.head;
    const Element *const row_0 = static_cast<const Element *>(rows.data) + tile.batch * rows.batch + head * rows.head +
                                 (part * 8 < params.head_dim ? part * 8 : 0);
    for (int u = 0; u < Traits::consumers; ++u) {
        const RowBlock row_block = tile.row_block[u];
        const int present = part * 8 < params.head_dim ? row_block.rows : 0; // the others are zeros
        if (row_block.rows == 0 || part >= parts)
            continue;
#pragma unroll(of_scores ? 2 : 1)
        for (int row = lane / lanes; row < row_block_rows; row += warp_threads / lanes)
            cp_async_16(targets + u * Traits::row_block_bytes + swizzled_offset(row_block_rows, row, part),
                        row_0 + params.row_of(row_block.position(row)) * rows.row, row < present);
    }
    if constexpr (!of_scores && !Traits::of_keys)
        copy_row_block_statistics(params, tile, shared.lse_log2[slot.slot()], shared.delta[slot.slot()]);
    cp_async_wait_all();
    fence_async_proxy();
    __syncwarp();
    if (lane == 0)
        shared.row_block_full[slot.slot()].arrive();
}

// Warp 2, and warp 3 for row blocks of queries. Where dS is stored, warp 2 copies all rows: the compiler would spill
// otherwise.
template <class Traits, bool of_scores>
__device__ __forceinline__ void copy_row_blocks(const BackwardParams &params, BackwardShared<Traits> &shared) {
    for (PipelineState<tile_slots> at;; ++at.count) {
        shared.tile_full[at.slot()].wait(at.parity_to_empty());
        if (shared.tiles[at.slot()].ranges < 0)
            return;
        copy_rows_of_row_blocks<Traits, of_scores>(params, shared, at);
        if constexpr (Traits::keeps_d_s)
            copy_rows_of_row_blocks<Traits, !of_scores>(params, shared, at);
        if (threadIdx.x % warp_threads == 0)
            shared.tile_empty[at.slot()].arrive();
    }
}

} // namespace annulus
