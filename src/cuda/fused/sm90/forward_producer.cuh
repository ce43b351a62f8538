// SPDX-License-Identifier: Apache-2.0
// The warps of the fused forward kernel that copy rows into shared memory.
#pragma once

#include "cuda/device/warp.cuh"
#include "cuda/fused/sm90/forward_params.hpp"
#include "cuda/fused/sm90/forward_shared.cuh"
#include "cuda/fused/sm90/tma.cuh"

#include <bit>
#include <cstdint>

namespace annulus {

// Warp 0: K and V. One lane.

template <class Traits>
__device__ __forceinline__ void copy_keys(const ForwardParams &params, ForwardShared<Traits> &shared) {
    PipelineState<Traits::stages> stage;
    for (PipelineState<tile_slots> at;; ++at.count) {
        shared.tile_full[at.slot()].wait(at.parity_to_empty());
        const UnitTile<Traits::consumers> &tile = shared.tiles[at.slot()];
        const int runs = tile.runs;
        if (runs < 0)
            return;
        const int batch = tile.batch, kv_head = tile.head / params.heads_of_kv_head;
        for (int i = 0; i < runs; ++i) {
            const auto &run = tile.run[i];
            const CUtensorMap &k_map = params.k[run.map], &v_map = params.v[run.map];
            const int residue = run.residue, index = run.index;
            for (int step = run.steps - 1; step >= 0; --step, ++stage.count) {
                const auto copy = [&](const CUtensorMap &map, std::uint8_t *target, Mbarrier &full, Mbarrier &empty) {
                    empty.wait(stage.parity_to_fill());
                    full.arrive_expecting(Traits::stage_bytes);
#pragma unroll
                    for (int chunk = 0; chunk < Traits::chunks; ++chunk)
                        tma_load(shared_address(target) + chunk * Traits::step * swizzled_row_bytes, map, full,
                                 chunk * 64, index + step * Traits::step, residue, kv_head, batch);
                };
                const int s = stage.slot();
                copy(k_map, shared.k[s], shared.k_full[s], shared.k_empty[s]);
                copy(v_map, shared.v[s], shared.v_full[s], shared.v_empty[s]);
            }
        }
        shared.tile_empty[at.slot()].arrive();
    }
}

// Warps 2 and 3: Q, every other few rows each.

template <class Traits>
__device__ __forceinline__ void copy_queries(const ForwardParams &params, ForwardShared<Traits> &shared) {
    using Element = typename Traits::Element;
    constexpr int parts = Traits::head_dim / 8;                                          // of 16 bytes, of a row
    constexpr int lanes = static_cast<int>(std::bit_ceil(static_cast<unsigned>(parts))); // of a row
    constexpr int at_once = 2 * warp_threads / lanes;                                    // rows, of both warps
    const int lane = static_cast<int>(threadIdx.x) % warp_threads;
    const int part = lane % lanes, first_row = static_cast<int>(threadIdx.x) % (2 * warp_threads) / lanes;
    for (PipelineState<tile_slots> at;; ++at.count) {
        const PipelineState<Traits::query_slots> query{at.count};
        shared.tile_full[at.slot()].wait(at.parity_to_empty());
        const UnitTile<Traits::consumers> &tile = shared.tiles[at.slot()];
        if (tile.runs < 0)
            return;
        shared.query_empty[query.slot()].wait(query.parity_to_fill());
        const Element *const row_0 = static_cast<const Element *>(params.q.data) + tile.batch * params.q.batch +
                                     tile.head * params.q.head + (part * 8 < params.head_dim ? part * 8 : 0);
        for (int u = 0; u < Traits::consumers; ++u) {
            const Unit unit = tile.unit[u];
            const std::uint32_t target = shared_address(shared.queries[query.slot()]) + u * Traits::unit_bytes;
            const int rows = part * 8 < params.head_dim ? unit.rows : 0; // the others are zeros
            // Of rows beyond the unit's last one these may be anything.
            const Element *next = row_0 + (unit.first + first_row * unit.stride - params.q.start) * params.q.row;
            const std::int64_t distance = std::int64_t{at_once} * unit.stride * params.q.row;
            if (unit.rows > 0 && part < parts)
#pragma unroll 2
                for (int row = first_row; row < unit_rows; row += at_once, next += distance) {
                    const Element *const source =
                        params.query_order ? row_0 + params.query_row(unit.position(row)) * params.q.row : next;
                    cp_async_16(target + swizzled_offset(unit_rows, row, part), row < rows ? source : row_0,
                                row < rows);
                }
        }
        cp_async_wait_all();
        fence_async_proxy();
        __syncwarp();
        if (lane == 0) {
            shared.query_full[query.slot()].arrive();
            shared.tile_empty[at.slot()].arrive();
        }
    }
}

} // namespace annulus
