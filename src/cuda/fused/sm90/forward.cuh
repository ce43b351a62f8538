// SPDX-License-Identifier: Apache-2.0
// The fused forward kernel: attention of all branches in one pass, for sm_90a.
//
// For each query, with S = Q K^T over the keys of all its branches, c = scale log2(e) and the multiplicity w of a key:
//
//     m = max(S + log2(w) / c),   l = sum 2^(c S + log2(w) - c m),   O = sum 2^(c S + log2(w) - c m) V / l
//     LSE = (c m + log2(l)) / log2(e)
//
// by the running softmax of Milakov and Gimelshein (2018): a step takes some more keys, and O and l are rescaled where
// m moves.
//
// Grid. As many blocks as the GPU has multiprocessors; each takes tiles (tile.cuh) until there are none left, the
// first two by its index, the others from a counter.
//
// Roles. Warpgroup 0 feeds: its warp 0 copies K and V by tensor maps, warp 1 finds tiles, warps 2 and 3 copy Q. The
// other warpgroups compute, a unit of 64 queries each.
//
// Shared memory, for each barrier who fills and who empties:
//
//     queries[query_slots]   units x 64 rows of Q      query_full: warps 2, 3     query_empty: consumers' warps
//     k, v[stages]           `step` rows of K, of V    k_full, v_full: copies     k_empty, v_empty: consumers
//     tiles[2]               what is to be done        tile_full: warp 1          tile_empty: all other warps
//
// Rings are never reset. A consumer stages O in its part of the queries' slot before it gives that back.
#pragma once

#include "cuda/device/warp.cuh"
#include "cuda/fused/math/store_rows.cuh"
#include "cuda/fused/sm90/forward_params.hpp"
#include "cuda/fused/sm90/forward_traits.hpp"
#include "cuda/fused/sm90/mbarrier.cuh"
#include "cuda/fused/sm90/tile_feed.cuh"
#include "cuda/fused/sm90/tma.cuh"
#include "cuda/fused/sm90/wgmma.cuh"

#include <bit>
#include <cstdint>
#include <numbers>

namespace annulus {

template <class Traits> struct ForwardShared {
    static constexpr bool of_keys = false;
    static constexpr int units = Traits::consumers, step = Traits::step;
    std::uint8_t queries[Traits::query_slots][Traits::consumers * Traits::unit_bytes];
    std::uint8_t k[Traits::stages][Traits::stage_bytes];
    std::uint8_t v[Traits::stages][Traits::stage_bytes];
    UnitTile<Traits::consumers> tiles[tile_slots];
    TileSearch search;
    Mbarrier tile_full[tile_slots], tile_empty[tile_slots];
    Mbarrier query_full[Traits::query_slots], query_empty[Traits::query_slots];
    Mbarrier k_full[Traits::stages], k_empty[Traits::stages], v_full[Traits::stages], v_empty[Traits::stages];

    __device__ __forceinline__ void init_barriers() {
        constexpr int consumer_warps = Traits::consumers * warpgroup_threads / warp_threads;
        for (int i = 0; i < tile_slots; ++i) {
            tile_full[i].init(1);
            tile_empty[i].init(consumer_warps + 3);
        }
        for (int i = 0; i < Traits::query_slots; ++i) {
            query_full[i].init(2);
            query_empty[i].init(consumer_warps);
        }
        for (int i = 0; i < Traits::stages; ++i) {
            k_full[i].init(1);
            v_full[i].init(1);
            k_empty[i].init(Traits::consumers);
            v_empty[i].init(Traits::consumers);
        }
        publish_barriers();
    }
};

__device__ __forceinline__ std::int64_t row_offset(const PassRows &rows, int batch, int head, int position) {
    return batch * rows.batch + head * rows.head + static_cast<std::int64_t>(position - rows.start) * rows.row;
}

// ---- Warp 0: K and V. One lane.

template <class Traits>
__device__ __forceinline__ void copy_keys(const ForwardParams &pass, ForwardShared<Traits> &shared) {
    PipelineState<Traits::stages> stage;
    for (PipelineState<tile_slots> at;; ++at.count) {
        shared.tile_full[at.slot()].wait(at.parity_to_empty());
        const UnitTile<Traits::consumers> &tile = shared.tiles[at.slot()];
        const int runs = tile.runs;
        if (runs < 0)
            return;
        const int batch = tile.batch, kv_head = tile.head / pass.heads_of_kv_head;
        for (int i = 0; i < runs; ++i) {
            const auto &run = tile.run[i];
            const CUtensorMap &k_map = pass.k[run.map], &v_map = pass.v[run.map];
            const int residue = run.residue, index = run.index;
            for (int step = run.steps - 1; step >= 0; --step, ++stage.count) {
                const auto copy = [&](const CUtensorMap &map, std::uint8_t *target, Mbarrier &full, Mbarrier &empty) {
                    empty.wait(stage.parity_to_fill());
                    full.arrive_expecting(Traits::stage_bytes);
#pragma unroll
                    for (int chunk = 0; chunk < Traits::chunks; ++chunk)
                        copy_box(shared_address(target) + chunk * Traits::step * swizzled_row_bytes, map, full,
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

// ---- Warps 2 and 3: Q, every other few rows each.

template <class Traits>
__device__ __forceinline__ void copy_queries(const ForwardParams &pass, ForwardShared<Traits> &shared) {
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
        const Element *const row_0 = static_cast<const Element *>(pass.q.data) + tile.batch * pass.q.batch +
                                     tile.head * pass.q.head + (part * 8 < pass.head_dim ? part * 8 : 0);
        for (int u = 0; u < Traits::consumers; ++u) {
            const Unit unit = tile.unit[u];
            const std::uint32_t target = shared_address(shared.queries[query.slot()]) + u * Traits::unit_bytes;
            const int rows = part * 8 < pass.head_dim ? unit.rows : 0; // the others are zeros
            // Of rows beyond the unit's last one these may be anything.
            const Element *next = row_0 + (unit.first + first_row * unit.stride - pass.q.start) * pass.q.row;
            const std::int64_t distance = std::int64_t{at_once} * unit.stride * pass.q.row;
            if (unit.rows > 0 && part < parts)
#pragma unroll 2
                for (int row = first_row; row < unit_rows; row += at_once, next += distance) {
                    const Element *const source =
                        pass.query_order ? row_0 + pass.query_row(unit.position(row)) * pass.q.row : next;
                    copy_16_bytes(target + swizzled_offset(unit_rows, row, part), row < rows ? source : row_0,
                                  row < rows);
                }
        }
        wait_for_copies();
        publish_to_async_proxy();
        __syncwarp();
        if (lane == 0) {
            shared.query_full[query.slot()].arrive();
            shared.tile_empty[at.slot()].arrive();
        }
    }
}

// ---- Consumers.

// Largest m, in units of log2, of which the difference to a score is rounded so little that 2^difference, which is
// about 1 where the score is m, keeps all digits in float16.
constexpr float largest_maximum = 1 << 27;

// Two rows a thread: row lane / 4 of its warp's 16, and 8 further; each lane has a part of their sums.
struct RunningSoftmax {
    float m[2], l[2];
    float scale[2] = {1, 1}; // of O by the last step

    __device__ __forceinline__ explicit RunningSoftmax(float padding_keys) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            m[r] = padding_keys > 0 ? 0 : -INFINITY;
            l[r] = threadIdx.x % 4 == 0 ? padding_keys : 0;
        }
    }

    // Scores become probabilities. `weight` is log2 of the multiplicity of the lane's two columns of eight. With
    // `may_be_hidden`, a row may have met no key yet.
    template <bool may_be_hidden, int count>
    __device__ __forceinline__ void step(float (&s)[count], float c, float inverse_c, const float (&weight)[2]) {
        float before[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float most[2] = {s[2 * r], s[2 * r + 1]};
#pragma unroll
            for (int i = 4; i < count; i += 4)
#pragma unroll
                for (int e = 0; e < 2; ++e)
                    most[e] = fmaxf(most[e], s[i + 2 * r + e]);
            before[r] = m[r];
            m[r] = max_of_row(
                fmaxf(before[r], fmaxf(fmaf(weight[0], inverse_c, most[0]), fmaf(weight[1], inverse_c, most[1]))));
        }
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const float top = may_be_hidden && m[r] == -INFINITY ? 0.f : m[r];
            scale[r] = exp2_fast((before[r] - top) * c);
            l[r] *= scale[r];
            const float shift[2] = {fmaf(-top, c, weight[0]), fmaf(-top, c, weight[1])};
#pragma unroll
            for (int i = 0; i < count; i += 4)
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    float &x = s[i + 2 * r + e];
                    x = exp2_fast(fmaf(x, c, shift[e]));
                    l[r] += x;
                }
        }
    }

    template <bool unless_one, int count> __device__ __forceinline__ void rescale(float (&o)[count]) const {
        if (unless_one && !__any_sync(~0u, scale[0] != 1.f || scale[1] != 1.f))
            return;
#pragma unroll
        for (int i = 0; i < count; ++i)
            o[i] *= scale[i >> 1 & 1];
    }
};

template <class Traits> class Consumer {
  public:
    __device__ __forceinline__ Consumer(const ForwardParams &pass, ForwardShared<Traits> &shared, int unit)
        : pass_(pass), shared_(shared), unit_(unit), leads_(threadIdx.x % warpgroup_threads == 0) {}

    __device__ __forceinline__ void run() {
        if (unit_ == Traits::consumers - 1)
            pass_turn();
        for (PipelineState<tile_slots> at;; ++at.count) {
            const PipelineState<Traits::query_slots> query{at.count};
            shared_.tile_full[at.slot()].wait(at.parity_to_empty());
            const UnitTile<Traits::consumers> &tile = shared_.tiles[at.slot()];
            if (tile.runs < 0)
                return;
            shared_.query_full[query.slot()].wait(query.parity_to_empty());
            attend(tile, query.slot());
            __syncwarp();
            if (thread_of_warpgroup() % warp_threads == 0) {
                shared_.query_empty[query.slot()].arrive();
                shared_.tile_empty[at.slot()].arrive();
            }
        }
    }

  private:
    using Element = typename Traits::Element;
    static constexpr int step = Traits::step;

    __device__ __forceinline__ void attend(const UnitTile<Traits::consumers> &tile, int query_slot) {
        const Unit &unit = tile.unit[unit_];
        const std::uint32_t queries = shared_address(shared_.queries[query_slot]) + unit_ * Traits::unit_bytes;
        const std::uint32_t q = operand_start(queries);
        const std::uint32_t k = operand_start(shared_address(shared_.k[0]));
        const std::uint32_t v = operand_start(shared_address(shared_.v[0]), step * swizzled_row_bytes);

        float o[Traits::head_dim / 2], s[step / 2];
        std::uint32_t p[step / 4];
#pragma unroll
        for (float &x : o)
            x = 0;
        RunningSoftmax softmax(unit.padding_keys);

        const auto multiply_keys = [&](int stage) { // S = Q K^T
            const std::uint32_t keys = k + stage * (Traits::stage_bytes / 16);
            pin(s);
            begin_products();
#pragma unroll
            for (int i = 0; i < Traits::head_dim / 16; ++i)
                ProductOfRows<Element, step>::run(
                    s, operand(q + ((i / 4) * unit_rows * swizzled_row_bytes + i % 4 * 32) / 16),
                    operand(keys + ((i / 4) * step * swizzled_row_bytes + i % 4 * 32) / 16), i != 0);
            commit_products();
        };
        const auto multiply_values = [&](int stage) { // O += P V
            const std::uint32_t values = v + stage * (Traits::stage_bytes / 16);
            pin(o);
            pin(p);
            begin_products();
#pragma unroll
            for (int i = 0; i < step / 16; ++i)
                ProductWithColumns<Element, Traits::head_dim>::run(o, p + 4 * i,
                                                                   operand(values + i * 16 * swizzled_row_bytes / 16));
            commit_products();
        };
        const auto pack = [&] {
#pragma unroll
            for (int i = 0; i < step / 4; ++i)
                p[i] = pack_two<Element>(s[2 * i], s[2 * i + 1]);
        };

        // log2 of the multiplicity of the thread's two columns of eight. Read at each step: registers are scarcer. Not
        // by log2_fast: the kernel of 128 columns would spill.
        float weight[2];
        const auto load_weights = [&](const UnitRun &own) {
            const int two = own.multiplicities[thread_of_warpgroup() % 4];
            weight[0] = __log2f(static_cast<float>(two % 16));
            weight[1] = __log2f(static_cast<float>(two / 16));
        };
        // Of the step whose first key is `first` of the run: keys that the thread's rows do not see get no probability.
        int visible[2]; // of the run
        const auto hide = [&](int first) {
            const int column = first + 2 * (thread_of_warpgroup() % 4);
#pragma unroll
            for (int i = 0; i < step / 2; ++i)
                if (column + 8 * (i / 4) + i % 2 >= visible[i / 2 % 2])
                    s[i] = -INFINITY;
        };
        // Rows of V behind the run's last key are others' keys: their probabilities are 0, but they may be infinite.
        const auto clear_values = [&](int keys) {
            if (keys >= step)
                return;
            shared_.v_full[stage_.slot()].wait(stage_.parity_to_empty());
            const std::uint32_t values = shared_address(shared_.v[stage_.slot()]);
            for (int i = thread_of_warpgroup() + keys * 8; i < step * 8; i += warpgroup_threads)
#pragma unroll
                for (int chunk = 0; chunk < Traits::chunks; ++chunk)
                    store_16_bytes(values + chunk * step * swizzled_row_bytes + i * 16, uint4{});
            publish_to_async_proxy();
            sync_warpgroup();
        };

        bool has_pending = false;
        // P of the step before, whose V comes one stage before this.
        const auto pending_stage = [&] { return PipelineState<Traits::stages>{stage_.count - 1}; };
        const auto finish_pending = [&] {
            if (!Traits::overlaps || !has_pending)
                return;
            const auto pending = pending_stage();
            shared_.v_full[pending.slot()].wait(pending.parity_to_empty());
            multiply_values(pending.slot());
            wait_for_products<0>();
            pin(o);
            pin(p);
            release(shared_.v_empty[pending.slot()]);
            has_pending = false;
        };
        const auto load_scores = [&] {
            shared_.k_full[stage_.slot()].wait(stage_.parity_to_empty());
            take_turn();
            multiply_keys(stage_.slot());
        };
        const auto start_step = [&](const UnitRun &own, bool hides, int first, int keys) {
            load_weights(own);
            load_scores();
            pass_turn();
            wait_for_products<0>();
            pin(s);
            release(shared_.k_empty[stage_.slot()]);
            if (hides) {
                hide(first);
                clear_values(keys);
            }
            softmax.template step<true>(s, pass_.scale_log2, pass_.inverse_scale_log2, weight);
            pack();
            softmax.template rescale<Traits::skips_rescaling>(o);
        };
        const auto take_step = [&](const UnitRun &own, auto hides, int first, int keys) {
            constexpr bool hiding = decltype(hides)::value;
            load_weights(own);
            load_scores();
            if constexpr (Traits::overlaps) {
                const auto pending = pending_stage();
                shared_.v_full[pending.slot()].wait(pending.parity_to_empty());
                multiply_values(pending.slot());
                pass_turn();
                wait_for_products<1>();
            } else {
                pass_turn();
                wait_for_products<0>();
            }
            pin(s);
            release(shared_.k_empty[stage_.slot()]);
            if constexpr (hiding)
                hide(first);
            softmax.template step<hiding>(s, pass_.scale_log2, pass_.inverse_scale_log2, weight);
            if constexpr (Traits::overlaps) {
                wait_for_products<0>();
                pin(o);
                pin(p);
                release(shared_.v_empty[pending_stage().slot()]);
            }
            if constexpr (hiding)
                clear_values(keys);
            pack();
            softmax.template rescale<Traits::skips_rescaling>(o);
            if constexpr (!Traits::overlaps) {
                shared_.v_full[stage_.slot()].wait(stage_.parity_to_empty());
                multiply_values(stage_.slot());
                wait_for_products<0>();
                pin(o);
                pin(p);
                release(shared_.v_empty[stage_.slot()]);
            }
            ++stage_.count;
        };

        for (int i = 0; i < tile.runs; ++i) {
            const Run<Traits::consumers> &run = tile.run[i];
            const UnitRun &own = run.unit[unit_];
            const int steps = own.steps, full = own.full;
            if (steps < run.steps) {
                finish_pending();
                sit_out(run.steps - steps);
            }
            if (steps == 0)
                continue;
            int at = steps - 1;
            if (at >= full) {
                const int thread = thread_of_warpgroup(), row = thread / warp_threads * 16 + thread % warp_threads / 4;
#pragma unroll
                for (int r = 0; r < 2; ++r)
                    visible[r] = pass_.causal ? run.template visible<false>(unit.position(row + 8 * r)) : run.count;
            }
            if (Traits::overlaps && !has_pending) {
                start_step(own, at >= full, at * step, run.count - at * step);
                has_pending = true;
                ++stage_.count;
                --at;
            }
#pragma unroll 1
            for (; at >= full; --at)
                take_step(own, std::true_type{}, at * step, run.count - at * step);
#pragma unroll 1
            for (; at >= 0; --at)
                take_step(own, std::false_type{}, 0, step);
        }
        finish_pending();
        // A turn without products: the others go on while this one writes.
        take_turn();
        pass_turn();
        if (unit.rows > 0)
            write(tile, queries, o, softmax);
    }

    __device__ __forceinline__ void sync_warpgroup() const {
        sync_threads(1 + unit_, warpgroup_threads);
    }

    // Consumers issue the products of a step one after the other, so that their softmaxes do not fall together.
    __device__ __forceinline__ void take_turn() const {
        if (Traits::takes_turns)
            sync_threads(1 + Traits::consumers + unit_, 2 * warpgroup_threads);
    }
    __device__ __forceinline__ void pass_turn() const {
        if (Traits::takes_turns)
            arrive_threads(1 + Traits::consumers + (unit_ + 1) % Traits::consumers, 2 * warpgroup_threads);
    }

    __device__ __forceinline__ void release(Mbarrier &empty) const {
        if (leads_)
            empty.arrive();
    }

    // Steps of the tile that are none of this unit's. The whole warpgroup must have seen a barrier's phase before the
    // stage is released: a warp left two phases behind would wait for a parity that came and went.
    __device__ __forceinline__ void sit_out(int steps) {
        for (; steps > 0; --steps, ++stage_.count) {
            const int s = stage_.slot();
            take_turn();
            pass_turn();
            shared_.k_full[s].wait(stage_.parity_to_empty());
            sync_warpgroup();
            release(shared_.k_empty[s]);
            shared_.v_full[s].wait(stage_.parity_to_empty());
            sync_warpgroup();
            release(shared_.v_empty[s]);
        }
    }

    // Whether the query at a position, of the unit, sees a key of the tile.
    __device__ __forceinline__ bool sees_keys(const UnitTile<Traits::consumers> &tile, int position) const {
        bool sees = false;
        for (int i = 0; i < tile.runs && !sees; ++i)
            sees = tile.run[i].unit[unit_].steps > 0 &&
                   (!pass_.causal || tile.run[i].template visible<false>(position) > 0);
        return sees;
    }

    template <int count>
    __device__ __forceinline__ void write(const UnitTile<Traits::consumers> &tile, std::uint32_t staging,
                                          float (&o)[count], const RunningSoftmax &softmax) {
        const Unit &unit = tile.unit[unit_];
        const int batch = tile.batch, head = tile.head;
        // Asked for anew: addresses that depend on it would be kept in registers during the steps.
        const int thread = thread_of_warpgroup(), lane = thread % warp_threads, warp = thread / warp_threads;
        float sum[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            sum[r] = sum_of_row(softmax.l[r]);
            const int row = warp * 16 + lane / 4 + 8 * r;
            if (sum[r] == 0.f && row < unit.rows)
                sum[r] = sum_of_none(sees_keys(tile, unit.position(row)));
            else if (fabsf(softmax.m[r] * pass_.scale_log2) >= largest_maximum)
                sum[r] = NAN;
        }
        if (pass_.has_nan)
            note_nonfinite(o, pass_.has_nan);
        const bool is_finished = pass_.finishes_rows && !pass_.summed.has(head, unit.first);
        if (pass_.sum_o && !pass_.takes_sums && !is_finished)
            add_to_sums(unit, batch, head, lane, warp, o, softmax, sum);
        else
            write_outputs(unit, batch, head, lane, warp, staging, o, softmax, sum);
    }

    template <int count>
    __device__ __forceinline__ void write_outputs(const Unit &unit, int batch, int head, int lane, int warp,
                                                  std::uint32_t staging, float (&o)[count],
                                                  const RunningSoftmax &softmax, float (&sum)[2]) {
        Element *const out = static_cast<Element *>(pass_.out.data) + row_offset(pass_.out, batch, head, unit.first);
        const std::int64_t row_distance = unit.stride * pass_.out.row;
        const auto row_at = [&](int row) { return out + row * row_distance; };
        float top[2], inverse[2];
#pragma unroll
        for (int r = 0; r < 2; ++r)
            top[r] = softmax.m[r] * pass_.scale_log2;
        if (pass_.takes_sums)
            take_sums(unit, batch, head, o, top, sum);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            inverse[r] = sum[r] == 0.f ? inverse_sum(sum[r]) : __frcp_rn(sum[r]);
            const int row = warp * 16 + lane / 4 + 8 * r;
            if (pass_.lse.data && lane % 4 == 0 && row < unit.rows)
                static_cast<float *>(pass_.lse.data)[row_offset(pass_.lse, batch, head, unit.position(row))] =
                    sum[r] == 0.f ? inverse[r] - INFINITY : (top[r] + __log2f(sum[r])) * std::numbers::ln2_v<float>;
        }
        sync_warpgroup(); // no warp's products read Q any more
        stage_rows<Element>(staging, o, inverse[0], inverse[1]);
        store_rows<Element, Traits::head_dim>(staging, unit.rows, pass_.head_dim, row_at);
        if (pass_.finishes_rows && lane < 16 && warp * 16 + lane < unit.rows)
            pass_.sum_state[sum_row(unit, batch, head, warp * 16 + lane)] = finished_state();
    }

    // O, its maximum and its sum with those that the pass before has left, of other keys.
    template <int count>
    __device__ __forceinline__ void take_sums(const Unit &unit, int batch, int head, float (&o)[count], float (&top)[2],
                                              float (&sum)[2]) const {
        const int thread = thread_of_warpgroup(), lane = thread % warp_threads, warp = thread / warp_threads;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int row = warp * 16 + lane / 4 + 8 * r;
            if (row >= unit.rows || !pass_.summed.has(head, unit.position(row)))
                continue;
            const std::int64_t index = sum_row(unit, batch, head, row);
            const float2 before = pass_.sum_state[index];
            const float own = sum[r] == 0.f ? -INFINITY : top[r];
            if (before.y == 0.f) { // no key that counts; of NaN alone the maximum is - infinity, too
                if (sum[r] == 0.f)
                    sum[r] = sum_of_none(std::signbit(sum[r]) || std::signbit(before.y));
                continue;
            }
            top[r] = fmaxf(before.x, own);
            const float factor = exp2f(own - top[r]), factor_before = exp2f(before.x - top[r]);
            sum[r] = sum[r] * factor + before.y * factor_before;
            add_sums<count>(o, r, factor, factor_before, pass_.sum_o + index * pass_.head_dim, pass_.head_dim);
        }
    }

    __device__ __forceinline__ std::int64_t sum_row(const Unit &unit, int batch, int head, int row) const {
        return (std::int64_t{batch} * pass_.all_heads + head) * pass_.sum_rows - pass_.first_sum +
               pass_.query_row(unit.position(row));
    }

    // O and (m, l) are added to those of other keys: with M the larger m, 2^(m - M) O + 2^(m' - M) O'.
    template <int count>
    __device__ __forceinline__ void add_to_sums(const Unit &unit, int batch, int head, int lane, int warp,
                                                const float (&o)[count], const RunningSoftmax &softmax,
                                                const float (&sum)[2]) {
        std::int64_t index[2];
        float2 before[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            index[r] = sum_row(unit, batch, head, warp * 16 + lane / 4 + 8 * r);
            before[r] = pass_.sets_sums ? float2{-INFINITY, 0} : pass_.sum_state[index[r]];
        }
        __syncwarp(); // all four lanes of a row have read what one of them overwrites
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            // Of a row that sees no key O may be NaN all the same: 0 times infinities of hidden rows.
            const bool has_keys = sum[r] != 0.f;
            if (warp * 16 + lane / 4 + 8 * r >= unit.rows || !(has_keys || std::signbit(sum[r]) || pass_.sets_sums))
                continue;
            const float own_m = has_keys ? softmax.m[r] * pass_.scale_log2 : -INFINITY;
            const float m = fmaxf(before[r].x, own_m);
            const float own_factor = own_m == -INFINITY ? 0.f : exp2f(own_m - m);
            const float factor = before[r].x == -INFINITY ? 0.f : exp2f(before[r].x - m);
            float2 *const sums = reinterpret_cast<float2 *>(pass_.sum_o + index[r] * pass_.head_dim);
#pragma unroll
            for (int i = 0; i < count / 4; ++i) {
                const int column = 8 * i + 2 * (lane % 4);
                if (column >= pass_.head_dim)
                    break;
                float2 two{0, 0};
                if (has_keys)
                    two = {o[4 * i + 2 * r] * own_factor, o[4 * i + 2 * r + 1] * own_factor};
                if (!pass_.sets_sums) {
                    const float2 old = sums[column / 2];
                    two = {fmaf(old.x, factor, two.x), fmaf(old.y, factor, two.y)};
                }
                sums[column / 2] = two;
            }
            if (lane % 4 == 0) {
                const float all = before[r].y * factor + sum[r] * own_factor;
                pass_.sum_state[index[r]] = {
                    m, all == 0.f ? sum_of_none(std::signbit(before[r].y) || std::signbit(sum[r])) : all};
            }
        }
    }

    const ForwardParams &pass_;
    ForwardShared<Traits> &shared_;
    const int unit_;
    const bool leads_;
    PipelineState<Traits::stages> stage_;
};

template <class Traits>
__global__ void __launch_bounds__(Traits::threads, 1) forward_kernel(const __grid_constant__ ForwardParams pass) {
    extern __shared__ __align__(1024) std::uint8_t memory[];
    ForwardShared<Traits> &shared = *reinterpret_cast<ForwardShared<Traits> *>(memory);
    if (threadIdx.x == 0)
        shared.init_barriers();
    __syncthreads();
    const int warp = uniform(static_cast<int>(threadIdx.x) / warp_threads);
    if (warp < 4) {
        shrink_registers<Traits::Registers::feeder>();
        if (warp == 0) {
            if (threadIdx.x == 0)
                copy_keys(pass, shared);
        } else if (warp == 1) {
            find_tiles(pass, shared, [](const PipelineState<tile_slots> &) {});
        } else {
            copy_queries(pass, shared);
        }
    } else {
        grow_registers<Traits::Registers::consumer>();
        Consumer<Traits>(pass, shared, warp / 4 - 1).run();
    }
}

} // namespace annulus
