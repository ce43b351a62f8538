// SPDX-License-Identifier: Apache-2.0
// The warps of the fused backward kernels that copy rows into shared memory.
#pragma once

#include "cuda/device/warp.cuh"
#include "cuda/fused/sm90/backward_params.hpp"
#include "cuda/fused/sm90/backward_shared.cuh"
#include "cuda/fused/sm90/copy_permuted_rows.cuh"
#include "cuda/fused/sm90/other_work.cuh"
#include "cuda/fused/sm90/stored_copies.cuh"
#include "cuda/fused/sm90/tma.cuh"

#include <cstdint>

namespace annulus {

// Goes through the blocks of all tiles, in the order in which consumers do, and calls
// - wait(barrier, parity) for each tile,
// - begin(tile, range, first) for each range,
// - use(tile, range, first, place in the ring) for each block, which waits until the stage is empty,
// - use_stored(place of the tile, place of the next block) for tiles that multiply stored dS.
//
// `first` is the index of a block's first row in the range. One of the warps `signals` that a tile comes to its end.
template <class Traits, class Wait, class Begin, class Use, class UseStored>
__device__ __forceinline__ void for_each_block(const BackwardParams &params, BackwardShared<Traits> &shared,
                                               bool signals, const Wait &wait, const Begin &begin, const Use &use,
                                               const UseStored &use_stored) {
    PipelineState<Traits::stages> stage;
    const auto release_tile = [&](const PipelineState<tile_slots> &at) {
        __syncwarp(__activemask());
        if (threadIdx.x % warp_threads == 0)
            shared.tile_empty[at.slot()].arrive();
    };
    for (PipelineState<tile_slots> at;; ++at.count) {
        wait(shared.tile_full[at.slot()], at.parity_to_empty());
        const Tile<Traits::consumers> &tile = shared.tiles[at.slot()];
        const int ranges = tile.ranges;
        if (ranges < 0)
            return;
        if (Traits::stores_d_s && shared.turns[at.slot()].multiplies) {
            use_stored(at, stage);
            release_tile(at);
            continue;
        }
        TileEndSignal<Traits> end(params, Traits::stores_d_s || params.tiles_differ(), tile,
                                  shared.tile_ending[at.slot()], signals);
        for (int i = 0; i < ranges; ++i) {
            const auto &range = tile.range[i];
            const auto first = [&](int block) {
                return Traits::rows_are_keys ? range.count - (block + 1) * Traits::range_block_rows
                                             : block * Traits::range_block_rows;
            };
            begin(tile, range, first(range.blocks - 1));
            for (int block = range.blocks - 1; block >= 0; --block, ++stage.count) {
                end.next_block();
                use(tile, range, first(block), stage);
            }
        }
        release_tile(at);
    }
}

struct JustWait {
    __device__ __forceinline__ void operator()(const Mbarrier &barrier, unsigned parity) const { barrier.wait(parity); }
};
struct JustBegin {
    template <class Tile, class Range>
    __device__ __forceinline__ void operator()(const Tile &, const Range &, int) const {}
};

// Warp 0, one lane: copies ranges.
template <class Traits>
__device__ __forceinline__ void copy_ranges(const BackwardParams &params, BackwardShared<Traits> &shared) {
    typename Range<Traits::consumers>::PlaceInMap range_place{};
    const auto copy_block = [&](const auto &tile, const auto &range, int first, const auto &place) {
        const int head = Traits::rows_are_keys ? tile.head : tile.head / params.heads_of_kv_head;
        const int stage = place.slot();
        shared.range_empty[stage].wait(place.parity_to_fill());
        Mbarrier &full = shared.range_full[stage];
        full.arrive_expecting(2 * Traits::stage_bytes);
        const auto copy = [&](const CUtensorMap &map, std::uint8_t *target) {
#pragma unroll
            for (int chunk = 0; chunk < Traits::chunks; ++chunk)
                tma_load(shared_address(target) + chunk * Traits::range_block_rows * swizzled_row_bytes, map, full,
                         chunk * 64, range_place.index + first, range_place.residue, head, tile.batch);
        };
        copy(params.range_q_or_k[range.map], shared.range_rows[stage].q_or_k);
        copy(params.range_v_or_d_o[range.map], shared.range_rows[stage].v_or_d_o);
    };
    StoredCopies<Traits> stored(params, shared, 0);
    const auto begin = [&](const auto &, const auto &range, int) {
        range_place = range.place_in_map(params); // once a range: with each block it would take time
        stored.wait_until_stages_are_free(JustWait());
    };
    const auto copy_stored = [&](const auto &at, const auto &stage) { stored.copy(at, stage); };
    for_each_block<Traits>(params, shared, true, JustWait(), begin, copy_block, copy_stored);
}

// Warp 3: copies LSE and delta of ranges of queries.
template <class Traits>
__device__ __forceinline__ void copy_statistics(const BackwardParams &params, BackwardShared<Traits> &shared) {
    const auto copy_block = [&](const auto &tile, const auto &range, int first, const auto &place) {
        const int stage = place.slot();
        shared.range_empty[stage].wait(place.parity_to_fill());
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
    };
    StoredCopies<Traits> stored(params, shared, 1);
    const auto copy_stored = [&](const auto &at, const auto &stage) {
        if (threadIdx.x % warp_threads == 0)
            stored.copy(at, stage);
        __syncwarp();
    };
    for_each_block<Traits>(params, shared, false, JustWait(), JustBegin(), copy_block, copy_stored);
}

template <int row_blocks>
__device__ __forceinline__ void copy_statistic_of_row(const BackwardParams &params, const Tile<row_blocks> &tile,
                                                      int row, float *lse_log2, float *delta) {
    const std::int64_t source = (std::int64_t{tile.batch} * params.all_heads + tile.head) * params.statistic_rows + row;
    cp_async_4(shared_address(lse_log2), params.lse_log2 + source, true);
    cp_async_4(shared_address(delta), params.delta + source, true);
}

// Warps 0 and 3, if rows are permuted: each copies a half of each block of ranges. If blocks have few rows, one copies
// `q_or_k` and the other `v_or_d_o`. LSE and delta come with `v_or_d_o`.
template <class Traits>
__device__ __forceinline__ void copy_permuted_ranges(const BackwardParams &params, BackwardShared<Traits> &shared,
                                                     int part) {
    using Element = typename Traits::Element;
    constexpr int block_rows = Traits::range_block_rows;
    constexpr bool by_halves = block_rows >= 2 * warp_threads;
    constexpr int own_rows = by_halves ? block_rows / 2 : block_rows;
    const int own_first = by_halves ? part * own_rows : 0;
    CopiesInFlight copies;
    RowsOfRange<own_rows> rows_of_range;
    const Element *q_or_k_row_0 = nullptr, *v_or_d_o_row_0 = nullptr; // of the range's head
    const auto wait = [&](const Mbarrier &barrier, unsigned parity) { copies.wait(barrier, parity); };
    StoredCopies<Traits> stored(params, shared, part);
    const auto copy_stored = [&](const auto &at, const auto &stage) { stored.copy_permuted_rows(at, stage, copies); };
    const auto begin = [&](const auto &tile, const auto &range, int first) {
        stored.wait_until_stages_are_free(wait);
        const int head = Traits::rows_are_keys ? tile.head : tile.head / params.heads_of_kv_head;
        q_or_k_row_0 = params.range_q_or_k_rows.first_row<const Element>(tile.batch, head);
        v_or_d_o_row_0 = params.range_v_or_d_o_rows.first_row<const Element>(tile.batch, head);
        rows_of_range.begin(params, range, first + own_first);
    };
    const auto copy_block = [&](const auto &tile, const auto &range, int first, const auto &place) {
        const auto own =
            rows_of_range.take(range, first + own_first + (Traits::rows_are_keys ? block_rows : -block_rows));
        const int stage = place.slot();
        wait(shared.range_empty[stage], place.parity_to_fill());
        auto &target = shared.range_rows[stage];
        const auto copy = [&](std::uint8_t *rows, const Element *row_0, std::int64_t distance, const auto &beside_row) {
            copy_permuted_rows<Traits::head_dim, block_rows>(shared_address(rows) + own_first * swizzled_row_bytes,
                                                             row_0, distance, params.head_dim, own, beside_row);
        };
        if (by_halves || part == 0)
            copy(target.q_or_k, q_or_k_row_0, params.range_q_or_k_rows.row, [](int, int) {});
        if (by_halves || part == 1)
            copy(target.v_or_d_o, v_or_d_o_row_0, params.range_v_or_d_o_rows.row, [&](int i, int row) {
                if constexpr (Traits::rows_are_keys)
                    copy_statistic_of_row(params, tile, row, &shared.lse_log2[stage][own_first + i],
                                          &shared.delta[stage][own_first + i]);
            });
        copies.add(shared.range_full[stage]);
    };
    for_each_block<Traits>(params, shared, part == 0, wait, begin, copy_block, copy_stored);
    copies.finish();
}

template <int row_blocks>
__device__ __forceinline__ void copy_row_block_statistics(const BackwardParams &params, const Tile<row_blocks> &tile,
                                                          float *lse_log2, float *delta) {
    const std::int64_t offset = (std::int64_t{tile.batch} * params.all_heads + tile.head) * params.statistic_rows;
    for (int i = static_cast<int>(threadIdx.x) % warp_threads; i < row_blocks * row_block_rows; i += warp_threads) {
        const RowBlock &row_block = tile.row_block[i / row_block_rows];
        const bool present = i % row_block_rows < row_block.rows;
        const std::int64_t source =
            offset + (present ? params.row_of<RowOrder::linear>(row_block.position(i % row_block_rows)) : 0);
        cp_async_4(shared_address(lse_log2 + i), params.lse_log2 + source, present);
        cp_async_4(shared_address(delta + i), params.delta + source, present);
    }
}

// Copies `q_or_k` of a tile's row blocks, or `v_or_d_o` with LSE and delta. Each takes a warp of its own: one warp
// would take longer for the row blocks of a tile with few blocks than those blocks take.
template <class Traits, bool is_q_or_k, class OtherWork>
__device__ __forceinline__ void copy_rows_of_row_blocks(const BackwardParams &params, BackwardShared<Traits> &shared,
                                                        const PipelineState<tile_slots> &at,
                                                        OtherWork &&do_other_work) {
    using Element = typename Traits::Element;
    constexpr int parts = RowLanes<Traits::head_dim>::parts, lanes = RowLanes<Traits::head_dim>::lanes;
    constexpr bool has_statistics = !is_q_or_k && !Traits::rows_are_keys;
    const int lane = static_cast<int>(threadIdx.x) % warp_threads, part = lane % lanes;
    const PipelineState<Traits::row_block_slots> slot{at.count};
    const Tile<Traits::consumers> &tile = shared.tiles[at.slot()];
    work_while_waiting(shared.row_block_empty[slot.slot()], slot.parity_to_fill(), do_other_work);
    auto &own_rows = shared.own_rows[slot.slot()];
    const std::uint32_t target = shared_address(is_q_or_k ? own_rows.q_or_k : own_rows.v_or_d_o);
    const TensorRows &rows = is_q_or_k ? params.row_q_or_k : params.row_v_or_d_o;
    const int head = Traits::rows_are_keys ? tile.head / params.heads_of_kv_head : tile.head;
    const auto *const row_0 = rows.first_row<const Element>(tile.batch, head);
    for (int u = 0; u < Traits::consumers; ++u) {
        const RowBlock row_block = tile.row_block[u];
        if constexpr (Traits::is_permuted) {
            const auto copy_statistic = [&](int i, int row) {
                if constexpr (has_statistics)
                    copy_statistic_of_row(params, tile, row, &shared.lse_log2[slot.slot()][u * row_block_rows + i],
                                          &shared.delta[slot.slot()][u * row_block_rows + i]);
            };
            const auto row_of = [&](int i) { return params.row_of<Traits::order>(row_block.position(i)); };
            if (row_block.rows > 0)
                copy_permuted_rows<Traits::head_dim, row_block_rows>(
                    target + u * Traits::row_block_bytes, row_0, rows.row, params.head_dim,
                    RowsOfLanes<row_block_rows>(row_of), copy_statistic);
        } else {
            const Element *const own_row_0 = row_0 + (part * 8 < params.head_dim ? part * 8 : 0);
            const int present = part * 8 < params.head_dim ? row_block.rows : 0; // the other rows become zeros
            if (row_block.rows == 0 || part >= parts)
                continue;
#pragma unroll(is_q_or_k ? 2 : 1)
            for (int row = lane / lanes; row < row_block_rows; row += warp_threads / lanes)
                cp_async_16(target + u * Traits::row_block_bytes + swizzled_offset(row_block_rows, row, part),
                            own_row_0 + params.row_of<Traits::order>(row_block.position(row)) * rows.row,
                            row < present);
        }
    }
    if constexpr (has_statistics && !Traits::is_permuted)
        copy_row_block_statistics(params, tile, shared.lse_log2[slot.slot()], shared.delta[slot.slot()]);
    cp_async_wait_all();
    fence_async_proxy();
    __syncwarp();
    if (lane == 0)
        shared.row_block_full[slot.slot()].arrive();
}

// Warp 2, and warp 3 if row blocks are of queries: copies row blocks. Warp 2 copies both matrices in two cases: if dS
// is stored, since the compiler would spill otherwise, and if rows are permuted, since warp 3 copies ranges then.
template <class Traits, bool is_q_or_k, class OtherWork>
__device__ __forceinline__ void copy_row_blocks(const BackwardParams &params, BackwardShared<Traits> &shared,
                                                OtherWork do_other_work) {
    for (PipelineState<tile_slots> at;; ++at.count) {
        do_other_work.begin_tile();
        work_while_waiting(shared.tile_full[at.slot()], at.parity_to_empty(), do_other_work);
        if (shared.tiles[at.slot()].ranges < 0)
            return do_all(do_other_work);
        if (Traits::stores_d_s && shared.turns[at.slot()].multiplies) {
            hand_slot_to_stored_d_s(shared, at, do_other_work);
        } else {
            copy_rows_of_row_blocks<Traits, is_q_or_k>(params, shared, at, do_other_work);
            if constexpr (Traits::stores_d_s || (is_q_or_k && !Traits::rows_are_keys && Traits::is_permuted))
                copy_rows_of_row_blocks<Traits, !is_q_or_k>(params, shared, at, do_other_work);
        }
        if (threadIdx.x % warp_threads == 0)
            shared.tile_empty[at.slot()].arrive();
    }
}

} // namespace annulus
