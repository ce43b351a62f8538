// SPDX-License-Identifier: Apache-2.0
// The fused backward kernels: gradients through all branches, for sm_90a.
//
// With S = Q K^T, c = scale log2(e), the multiplicity w of a pair, and the one LSE and delta = O . dO - dLSE of a query
// over all its branches (Dao et al., 2022):
//
//     P = 2^(c S + log2(w) - LSE log2(e)),   dP = dO V^T,   dS = P (dP - delta)
//     dQ = scale dS K,   dK = scale dS^T Q,   dV = P^T dO
//
// One kernel text, once with units of queries and runs of keys (dQ) and once the other way round (dK and dV; above 128
// columns apart from one another). The score rows of a unit are those of Q, or K, its value rows those of dO, or V; of
// a run the other ones. In these terms either kernel computes, transposed or not,
//
//     S = unit scores . run scores^T,   dP = unit values . run values^T
//     d(unit scores) = scale dS run scores,   d(unit values) = P run values
//
// P and dS stay in registers, where they are operands of the last products. S and dP are computed by both kernels: the
// price of sums that no two blocks share, so that nothing is added by atomics and every run gives the same bits. For a
// plan of one branch with 64 < D <= 128 the kernel of keys writes dS to memory as well, and kept_scores.cuh makes dQ of
// it.
//
// Grid and tiles as in forward.cuh. Roles: of the feeding warpgroup warp 0 copies the rows of runs by tensor maps, warp
// 1 finds tiles, warp 2 copies the score rows of units and warp 3 their value rows; where units are of keys, warp 1
// copies these (or 2, if dS is kept; for dV alone none) and warp 3 the statistics of runs.
//
// Shared memory, for each barrier who fills and who empties:
//
//     units_rows[unit_slots]  units x 64 rows of both  unit_full: their warps  unit_empty: consumers' warps
//     run_rows[stages]        `step` rows of both      run_full: copies        run_empty: consumers
//     lse_log2, delta[…]      of queries               with their rows
//     d_s[units]              an image on its way out: a warp's rows by the warp itself
//     tiles[2]                what is to be done       tile_full: warp 1       tile_empty: all other warps
//
// Rings are never reset. A consumer stages results in its part of the unit's slot before it gives that back. Named
// barriers 1, 2, … are those of one consumer each.
#pragma once

#include "cuda/device/warp.cuh"
#include "cuda/fused/math/store_rows.cuh"
#include "cuda/fused/sm90/backward_traits.hpp"
#include "cuda/fused/sm90/mbarrier.cuh"
#include "cuda/fused/sm90/tile_feed.cuh"
#include "cuda/fused/sm90/tma.cuh"
#include "cuda/fused/sm90/wgmma.cuh"

#include <bit>
#include <cstdint>

namespace annulus {

template <class Traits> struct BackwardShared {
    static constexpr bool of_keys = Traits::of_keys;
    static constexpr int units = Traits::consumers, step = Traits::step;

    // For dV alone the value rows of units are not needed.
    struct Units {
        std::uint8_t scores[units * Traits::unit_bytes],
            values[Traits::has_d_scores ? units * Traits::unit_bytes : 1024];
    } units_rows[Traits::unit_slots];
    struct RunRows {
        std::uint8_t scores[Traits::stage_bytes], values[Traits::stage_bytes];
    } run_rows[Traits::stages];
    std::uint8_t d_s[Traits::keeps_d_s ? units : 1][Traits::keeps_d_s ? StoredDs::image_bytes : 1024];
    std::uint8_t *images[units]; // in global memory
    // Of queries: those of a stage, or of a tile's units.
    static constexpr int statistic_slots = of_keys ? Traits::stages : Traits::unit_slots;
    static constexpr int statistics = of_keys ? step : units * unit_rows;
    float lse_log2[statistic_slots][statistics], delta[statistic_slots][statistics];
    UnitTile<units> tiles[tile_slots];
    TileSearch search;
    Mbarrier tile_full[tile_slots], tile_empty[tile_slots];
    Mbarrier unit_full[Traits::unit_slots], unit_empty[Traits::unit_slots];
    Mbarrier run_full[Traits::stages], run_empty[Traits::stages];

    __device__ __forceinline__ void init_barriers() {
        constexpr int consumer_warps = units * warpgroup_threads / warp_threads;
        for (int i = 0; i < tile_slots; ++i) {
            tile_full[i].init(1);
            tile_empty[i].init(consumer_warps + 3);
        }
        for (int i = 0; i < Traits::unit_slots; ++i) {
            unit_full[i].init(Traits::has_d_scores ? 2 : 1);
            unit_empty[i].init(consumer_warps);
        }
        for (int i = 0; i < Traits::stages; ++i) {
            run_full[i].init(1 + (of_keys ? warp_threads : 0));
            run_empty[i].init(units);
        }
        publish_barriers();
    }
};

// ---- What the feeding warps have in common: they go through the steps of all tiles, as consumers do.

// use(tile, run, index of the step's first row in the run, stage) for each step.
template <class Traits, class Use>
__device__ __forceinline__ void for_each_step(BackwardShared<Traits> &shared, Use use) {
    PipelineState<Traits::stages> stage;
    for (PipelineState<tile_slots> at;; ++at.count) {
        shared.tile_full[at.slot()].wait(at.parity_to_empty());
        const UnitTile<Traits::consumers> &tile = shared.tiles[at.slot()];
        const int runs = tile.runs;
        if (runs < 0)
            return;
        for (int i = 0; i < runs; ++i) {
            const auto &run = tile.run[i];
            for (int step = run.steps - 1; step >= 0; --step, ++stage.count) {
                shared.run_empty[stage.slot()].wait(stage.parity_to_fill());
                use(tile, run, Traits::of_keys ? run.count - (step + 1) * Traits::step : step * Traits::step,
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
__device__ __forceinline__ void copy_runs(const BackwardParams &pass, BackwardShared<Traits> &shared) {
    for_each_step<Traits>(shared, [&](const auto &tile, const auto &run, int first, int stage) {
        const int head = Traits::of_keys ? tile.head : tile.head / pass.heads_of_kv_head;
        Mbarrier &full = shared.run_full[stage];
        full.arrive_expecting(2 * Traits::stage_bytes);
        const auto copy = [&](const CUtensorMap &map, std::uint8_t *target) {
#pragma unroll
            for (int chunk = 0; chunk < Traits::chunks; ++chunk)
                copy_box(shared_address(target) + chunk * Traits::step * swizzled_row_bytes, map, full, chunk * 64,
                         run.index + first, run.residue, head, tile.batch);
        };
        copy(pass.run_scores[run.map], shared.run_rows[stage].scores);
        copy(pass.run_values[run.map], shared.run_rows[stage].values);
    });
}

// Warp 3.
template <class Traits>
__device__ __forceinline__ void copy_statistics(const BackwardParams &pass, BackwardShared<Traits> &shared) {
    for_each_step<Traits>(shared, [&](const auto &tile, const auto &run, int first, int stage) {
        const std::int64_t offset =
            (std::int64_t{tile.batch} * pass.all_heads + tile.head) * pass.statistic_rows + run.first - pass.run_start;
        for (int i = static_cast<int>(threadIdx.x) % warp_threads; i < Traits::step; i += warp_threads) {
            const int row = first + i;
            const bool present = row >= 0 && row < run.count;
            const std::int64_t source = offset + (present ? std::int64_t{row} * run.stride : 0);
            copy_4_bytes(shared_address(&shared.lse_log2[stage][i]), pass.lse_log2 + source, present);
            copy_4_bytes(shared_address(&shared.delta[stage][i]), pass.delta + source, present);
        }
        shared.run_full[stage].arrive_after_copies();
    });
}

template <int units>
__device__ __forceinline__ void copy_unit_statistics(const BackwardParams &pass, const UnitTile<units> &tile,
                                                     float *lse_log2, float *delta) {
    const std::int64_t offset = (std::int64_t{tile.batch} * pass.all_heads + tile.head) * pass.statistic_rows;
    for (int i = static_cast<int>(threadIdx.x) % warp_threads; i < units * unit_rows; i += warp_threads) {
        const Unit &unit = tile.unit[i / unit_rows];
        const bool present = i % unit_rows < unit.rows;
        const std::int64_t source = offset + (present ? pass.unit_row(unit.position(i % unit_rows)) : 0);
        copy_4_bytes(shared_address(lse_log2 + i), pass.lse_log2 + source, present);
        copy_4_bytes(shared_address(delta + i), pass.delta + source, present);
    }
}

// The score rows of a tile's units, or their value rows and statistics. By a warp each: the rows of a tile with few
// steps take one warp longer than its steps.
template <class Traits, bool of_scores>
__device__ __forceinline__ void copy_rows_of_units(const BackwardParams &pass, BackwardShared<Traits> &shared,
                                                   const PipelineState<tile_slots> &at) {
    using Element = typename Traits::Element;
    constexpr int parts = Traits::head_dim / 8;                                          // of 16 bytes, of a row
    constexpr int lanes = static_cast<int>(std::bit_ceil(static_cast<unsigned>(parts))); // of a row
    const int lane = static_cast<int>(threadIdx.x) % warp_threads, part = lane % lanes;
    const PipelineState<Traits::unit_slots> slot{at.count};
    const UnitTile<Traits::consumers> &tile = shared.tiles[at.slot()];
    shared.unit_empty[slot.slot()].wait(slot.parity_to_fill());
    auto &target = shared.units_rows[slot.slot()];
    const std::uint32_t targets = shared_address(of_scores ? target.scores : target.values);
    const PassRows &rows = of_scores ? pass.unit_scores : pass.unit_values;
    const int head = Traits::of_keys ? tile.head / pass.heads_of_kv_head : tile.head;
    const Element *const row_0 = static_cast<const Element *>(rows.data) + tile.batch * rows.batch + head * rows.head +
                                 (part * 8 < pass.head_dim ? part * 8 : 0);
    for (int u = 0; u < Traits::consumers; ++u) {
        const Unit unit = tile.unit[u];
        const int present = part * 8 < pass.head_dim ? unit.rows : 0; // the others are zeros
        if (unit.rows == 0 || part >= parts)
            continue;
#pragma unroll(of_scores ? 2 : 1)
        for (int row = lane / lanes; row < unit_rows; row += warp_threads / lanes)
            copy_16_bytes(targets + u * Traits::unit_bytes + swizzled_offset(unit_rows, row, part),
                          row_0 + pass.unit_row(unit.position(row)) * rows.row, row < present);
    }
    if constexpr (!of_scores && !Traits::of_keys)
        copy_unit_statistics(pass, tile, shared.lse_log2[slot.slot()], shared.delta[slot.slot()]);
    wait_for_copies();
    publish_to_async_proxy();
    __syncwarp();
    if (lane == 0)
        shared.unit_full[slot.slot()].arrive();
}

// Warp 2, and warp 3 for units of queries. Where dS is kept, warp 2 copies all rows: the compiler would spill
// otherwise.
template <class Traits, bool of_scores>
__device__ __forceinline__ void copy_units(const BackwardParams &pass, BackwardShared<Traits> &shared) {
    for (PipelineState<tile_slots> at;; ++at.count) {
        shared.tile_full[at.slot()].wait(at.parity_to_empty());
        if (shared.tiles[at.slot()].runs < 0)
            return;
        copy_rows_of_units<Traits, of_scores>(pass, shared, at);
        if constexpr (Traits::keeps_d_s)
            copy_rows_of_units<Traits, !of_scores>(pass, shared, at);
        if (threadIdx.x % warp_threads == 0)
            shared.tile_empty[at.slot()].arrive();
    }
}

// ---- Consumers.

template <class Traits> class GradientConsumer {
  public:
    __device__ __forceinline__ GradientConsumer(const BackwardParams &pass, BackwardShared<Traits> &shared, int unit)
        : pass_(pass), shared_(shared), unit_(unit) {}

    __device__ __forceinline__ void run() {
        for (PipelineState<tile_slots> at;; ++at.count) {
            const PipelineState<Traits::unit_slots> slot{at.count};
            shared_.tile_full[at.slot()].wait(at.parity_to_empty());
            const UnitTile<Traits::consumers> &tile = shared_.tiles[at.slot()];
            if (tile.runs < 0)
                break;
            shared_.unit_full[slot.slot()].wait(slot.parity_to_empty());
            find_gradients(tile, slot.slot());
            __syncwarp();
            if (thread_of_warpgroup() % warp_threads == 0) {
                shared_.unit_empty[slot.slot()].arrive();
                shared_.tile_empty[at.slot()].arrive();
            }
        }
        if (Traits::keeps_d_s && thread_of_warpgroup() % warp_threads == 0)
            wait_for_stores();
    }

  private:
    using Element = typename Traits::Element;
    static constexpr int step = Traits::step;
    static constexpr int columns = Traits::head_dim;
    static constexpr int units_bytes = Traits::consumers * Traits::unit_bytes;

    __device__ __forceinline__ void find_gradients(const UnitTile<Traits::consumers> &tile, int slot) {
        const Unit &unit = tile.unit[own_unit()];
        const std::uint32_t own_rows = shared_address(shared_.units_rows[slot].scores) + unit_ * Traits::unit_bytes;
        const std::uint32_t own_value_rows = Traits::has_d_scores ? own_rows + units_bytes : own_rows;
        const std::uint32_t own_scores = operand_start(own_rows), own_values = operand_start(own_value_rows);
        // Read along their rows, and across them.
        const std::uint32_t scores =
            operand_start(shared_address(shared_.run_rows[0].scores), step * swizzled_row_bytes);
        constexpr std::uint32_t to_values = Traits::stage_bytes / 16, stage_distance = 2 * to_values;
        const std::uint32_t values = scores + to_values;

        float d_scores[Traits::has_d_scores ? columns / 2 : 1], d_values[Traits::has_d_values ? columns / 2 : 1];
        float s[step / 2], d_p[Traits::has_d_scores ? step / 2 : 1];
        std::uint32_t p[step / 4], d_s[Traits::has_d_scores ? step / 4 : 1];
#pragma unroll
        for (float &x : d_scores)
            x = 0;
#pragma unroll
        for (float &x : d_values)
            x = 0;

        const auto multiply_rows = [&](float(&result)[step / 2], std::uint32_t left, std::uint32_t run, int stage) {
            const std::uint32_t right = run + stage * stage_distance;
            pin(result);
            begin_products();
#pragma unroll
            for (int i = 0; i < columns / 16; ++i)
                ProductOfRows<Element, step>::run(
                    result, operand(left + ((i / 4) * unit_rows * swizzled_row_bytes + i % 4 * 32) / 16),
                    operand(right + ((i / 4) * step * swizzled_row_bytes + i % 4 * 32) / 16), i != 0);
            commit_products();
        };
        const auto add_product = [&](auto &sum, std::uint32_t(&factors)[step / 4], std::uint32_t run, int stage) {
            const std::uint32_t right = run + stage * stage_distance;
            pin(sum);
            pin(factors);
            begin_products();
#pragma unroll
            for (int i = 0; i < step / 16; ++i)
                ProductWithColumns<Element, columns>::run(sum, factors + 4 * i,
                                                          operand(right + i * 16 * swizzled_row_bytes / 16));
            commit_products();
        };

        // Of a step: which of the thread's scores are hidden. As many rows of it are seen from the end that steps count
        // from.
        struct Mask {
            int pair = 2 * (thread_of_warpgroup() % 4); // the thread's two columns of eight
            int seen[2] = {};
            __device__ __forceinline__ bool is_hidden(int i) const {
                const int column = pair + 8 * (i / 4) + i % 2;
                return Traits::of_keys ? column < step - seen[i / 2 % 2] : column >= seen[i / 2 % 2];
            }
        };
        const auto find_mask = [&](auto may_hide, const Run<Traits::consumers> &run, int at) {
            Mask mask;
            if constexpr (decltype(may_hide)::value)
#pragma unroll
                for (int r = 0; r < 2; ++r)
                    mask.seen[r] =
                        (pass_.causal ? run.template visible<Traits::of_keys>(unit.position(row_of_thread(r)))
                                      : run.count) -
                        at * step;
            return mask;
        };
        const auto start_products = [&] {
            const int stage = stage_.slot();
            wait_for_run();
            multiply_rows(s, own_scores, scores, stage);
            if constexpr (Traits::has_d_scores)
                multiply_rows(d_p, own_values, values, stage);
            look_ahead();
        };
        // log2 of the multiplicities of the thread's two columns of eight, in a run.
        const auto load_weights = [&](const Run<Traits::consumers> &run, int pair, float(&weight)[2]) {
            const int two = run.unit[own_unit()].multiplicities[pair / 2];
            weight[0] = log2_fast(static_cast<float>(two % 16));
            weight[1] = log2_fast(static_cast<float>(two / 16));
        };
        // Units of queries: LSE or delta of the thread's rows.
        const auto load_rows = [&](const float *statistic, float(&of_rows)[2]) {
            if constexpr (!Traits::of_keys)
#pragma unroll
                for (int r = 0; r < 2; ++r)
                    of_rows[r] = statistic[own_unit() * unit_rows + row_of_thread(r)];
        };
        // Kept, where there are registers left for them.
        [[maybe_unused]] float kept_weight[2] = {}, kept_lse[2], kept_delta[2];
        if constexpr (Traits::overlaps) {
            load_rows(shared_.lse_log2[slot], kept_lse);
            load_rows(shared_.delta[slot], kept_delta);
        }
        // S becomes P.
        const auto find_probabilities = [&](auto may_hide, const Mask &mask, const Run<Traits::consumers> &run,
                                            int stage) {
            float weight[2];
            [[maybe_unused]] float lse[2];
            if constexpr (Traits::overlaps) {
                weight[0] = kept_weight[0], weight[1] = kept_weight[1];
                lse[0] = kept_lse[0], lse[1] = kept_lse[1];
            } else {
                load_weights(run, mask.pair, weight);
                load_rows(shared_.lse_log2[slot], lse);
            }
#pragma unroll
            for (int i = 0; i < step / 2; i += 4) {
                float shift[4]; // of two rows and two columns
                if constexpr (Traits::of_keys) {
                    const float2 two = load_8_bytes(shared_address(&shared_.lse_log2[stage][mask.pair + 2 * i]));
                    shift[0] = shift[2] = weight[0] - two.x;
                    shift[1] = shift[3] = weight[1] - two.y;
                } else {
#pragma unroll
                    for (int e = 0; e < 4; ++e)
                        shift[e] = weight[e % 2] - lse[e / 2];
                }
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const float x = exp2_fast(fmaf(s[i + e], pass_.scale_log2, shift[e]));
                    s[i + e] = decltype(may_hide)::value && mask.is_hidden(i + e) ? 0.f : x;
                }
            }
        };
        // store(first of two columns, their dS) for P and dP.
        const auto find_d_s = [&](auto may_hide, const Mask &mask, int stage, auto store) {
            [[maybe_unused]] float delta[2];
            if constexpr (Traits::overlaps)
                delta[0] = kept_delta[0], delta[1] = kept_delta[1];
            else
                load_rows(shared_.delta[slot], delta);
#pragma unroll
            for (int i = 0; i < step / 2; i += 4) {
                float2 of_columns;
                if constexpr (Traits::of_keys)
                    of_columns = load_8_bytes(shared_address(&shared_.delta[stage][mask.pair + 2 * i]));
#pragma unroll
                for (int r = 0; r < 2; ++r) {
                    const int j = i + 2 * r;
                    if constexpr (!Traits::of_keys)
                        of_columns = {delta[r], delta[r]};
                    float2 two{s[j], s[j + 1]};
                    if constexpr (Traits::rounds_first)
                        two = unpack_two<Element>(p[j / 2]);
                    two = {two.x * (d_p[j] - of_columns.x), two.y * (d_p[j + 1] - of_columns.y)};
                    if constexpr (decltype(may_hide)::value) // a hidden row's dP may be anything
                        two = {mask.is_hidden(j) ? 0.f : two.x, mask.is_hidden(j + 1) ? 0.f : two.y};
                    store(j, two);
                }
            }
        };
        const auto pack = [&](std::uint32_t(&packed)[step / 4], const float(&x)[step / 2]) {
#pragma unroll
            for (int i = 0; i < step / 4; ++i)
                packed[i] = pack_two<Element>(x[2 * i], x[2 * i + 1]);
        };

        const auto take_step = [&](const Run<Traits::consumers> &run, auto may_hide, int at) {
            const int stage = stage_.slot();
            start_products();
            const Mask mask = find_mask(may_hide, run, at);
            wait_for_products<Traits::has_d_scores>();
            pin(s);
            find_probabilities(may_hide, mask, run, stage);
            if constexpr (Traits::has_d_values)
                pack(p, s);
            if constexpr (decltype(may_hide)::value)
                clear_strangers(run.count - at * step, stage);
            if constexpr (Traits::has_d_scores) {
                wait_for_products<0>();
                pin(d_p);
            }
            if constexpr (Traits::has_d_values)
                add_product(d_values, p, values, stage);
            if constexpr (Traits::has_d_scores) {
                find_d_s(may_hide, mask, stage,
                         [&](int j, const float2 &two) { d_s[j / 2] = pack_two<Element>(two.x, two.y); });
                if constexpr (Traits::keeps_d_s)
                    stage_d_s(d_s);
                add_product(d_scores, d_s, scores, stage);
                if constexpr (Traits::keeps_d_s)
                    store_d_s(run.count / step - 1 - at);
            }
            wait_for_products<0>();
            if constexpr (Traits::has_d_values) {
                pin(d_values);
                pin(p);
            }
            if constexpr (Traits::has_d_scores) {
                pin(d_scores);
                pin(d_s);
            }
            release(stage);
            ++stage_.count;
        };

        // Units of queries: the last product of a step comes with the first ones of the next. It has dS of the step
        // before, whose rows come one stage before this.
        bool has_pending = false;
        const auto pending_stage = [&] { return PipelineState<Traits::stages>{stage_.count - 1}.slot(); };
        const auto end_pending = [&] {
            wait_for_products<0>();
            pin(d_scores);
            pin(d_s);
            release(pending_stage());
        };
        const auto finish_pending = [&] {
            if constexpr (Traits::overlaps)
                if (has_pending) {
                    add_product(d_scores, d_s, scores, pending_stage());
                    end_pending();
                    has_pending = false;
                }
        };
        const auto take_overlapped_step = [&](const Run<Traits::consumers> &run, auto may_hide, auto is_first, int at) {
            if constexpr (Traits::overlaps) {
                constexpr int pending_products = decltype(is_first)::value ? 0 : 1;
                const int stage = stage_.slot();
                start_products();
                if constexpr (pending_products > 0)
                    add_product(d_scores, d_s, scores, pending_stage());
                const Mask mask = find_mask(may_hide, run, at);
                wait_for_products<pending_products + 1>();
                pin(s);
                find_probabilities(may_hide, mask, run, stage);
                wait_for_products<pending_products>();
                pin(d_p);
                find_d_s(may_hide, mask, stage, [&](int j, const float2 &two) {
                    d_p[j] = two.x;
                    d_p[j + 1] = two.y;
                });
                if constexpr (pending_products > 0)
                    end_pending();
                if constexpr (decltype(may_hide)::value)
                    clear_strangers(run.count - at * step, stage);
                pack(d_s, d_p);
                ++stage_.count;
            }
        };

        if (Traits::keeps_d_s && uniform(tile.runs) > 0 && uniform(unit.rows) > 0)
            find_images(tile);
        // Bounds of loops that the compiler knows to be uniform: it then takes the stage for uniform, too, and
        // addresses of operands need not pass through vector registers.
        const int runs = uniform(tile.runs);
        for (int i = 0; i < runs; ++i) {
            const auto &run = tile.run[i];
            const UnitRun &own = run.unit[own_unit()];
            const int full = uniform(own.full), steps = uniform(own.steps), all_steps = uniform(run.steps);
            int at = steps - 1;
            if constexpr (Traits::overlaps) {
                load_weights(run, Mask().pair, kept_weight);
                if (steps < all_steps) {
                    finish_pending();
                    sit_out(all_steps - steps);
                }
                if (at < 0)
                    continue;
                if (!has_pending) {
                    take_overlapped_step(run, std::true_type{}, std::true_type{}, at--);
                    has_pending = true;
                }
#pragma unroll 1
                for (; at >= full; --at)
                    take_overlapped_step(run, std::true_type{}, std::false_type{}, at);
#pragma unroll 1
                for (; at >= 0; --at)
                    take_overlapped_step(run, std::false_type{}, std::false_type{}, at);
            } else {
                sit_out(all_steps - steps);
#pragma unroll 1
                for (; at >= full; --at)
                    take_step(run, std::true_type{}, at);
#pragma unroll 1
                for (; at >= 0; --at)
                    take_step(run, std::false_type{}, at);
            }
        }
        if constexpr (Traits::overlaps)
            finish_pending();
        if (unit.rows == 0 || (pass_.skips_empty && !meets_any(tile)))
            return;
        sync_warpgroup(); // no warp's products read the unit's rows any more
        if constexpr (Traits::has_d_scores)
            write(unit, tile, d_scores, pass_.scale, own_rows, pass_.d_scores, pass_.sum_d_scores);
        if constexpr (Traits::has_d_values)
            write(unit, tile, d_values, 1.f, own_value_rows, pass_.d_values, pass_.sum_d_values);
    }

    // A unit of keys that does not may have its rows in common with one that does: nothing must be added to them.
    __device__ __forceinline__ static bool meets_any(const UnitTile<Traits::consumers> &tile) {
        bool any = false;
        for (int i = 0; i < tile.runs; ++i)
            any |= tile.run[i].unit[own_unit()].steps > 0;
        return any;
    }

    // unit_ where it need not be uniform. Asked for anew, like the thread's number: what depends on it would be kept in
    // registers.
    __device__ __forceinline__ static int own_unit() {
        return warpgroup_of_thread() - 1;
    }

    // Row r of the thread's two.
    __device__ __forceinline__ static int row_of_thread(int r) {
        const int thread = thread_of_warpgroup();
        return thread / warp_threads * 16 + thread % warp_threads / 4 + 8 * r;
    }

    // Of a step that has but `present` rows of the run the others, which are others' rows: their probabilities are 0,
    // but they may be infinite.
    __device__ __forceinline__ void clear_strangers(int present, int stage) {
        if (present >= step)
            return;
        const int first = Traits::of_keys ? 0 : present, last = Traits::of_keys ? step - present : step;
        const std::uint32_t targets[2] = {shared_address(shared_.run_rows[stage].scores),
                                          shared_address(shared_.run_rows[stage].values)};
        for (int i = first * 8 + thread_of_warpgroup(); i < last * 8; i += warpgroup_threads)
#pragma unroll
            for (int chunk = 0; chunk < Traits::chunks; ++chunk)
#pragma unroll
                for (const std::uint32_t target : targets)
                    store_16_bytes(target + chunk * step * swizzled_row_bytes + i * 16, uint4{});
        publish_to_async_proxy();
        sync_warpgroup();
    }

    // Where the images of the unit begin. Keys and queries are the same positions.
    __device__ __forceinline__ void find_images(const UnitTile<Traits::consumers> &tile) {
        const Run<Traits::consumers> &run = tile.run[0];
        const int keys = (tile.unit[own_unit()].first - run.first) / run.stride / unit_rows;
        const int segment = pass_.branches[0].length.quotient(run.first);
        if (thread_of_warpgroup() == 0)
            shared_.images[own_unit()] = pass_.kept.image(tile.batch, tile.head, segment, keys);
        sync_warpgroup();
    }

    // A step is an image, a warp's 16 rows are next to one another. dS stays in registers, too, for the product that
    // reads it.
    __device__ __forceinline__ void stage_d_s(const std::uint32_t (&d_s)[step / 4]) const {
        static_assert(step == unit_rows);
        if (thread_of_warpgroup() % warp_threads == 0)
            wait_until_stores_were_read();
        __syncwarp();
        stage_pairs(shared_address(shared_.d_s[own_unit()]), d_s);
    }
    // Once the product has been issued, beside which the fence and the copy then come.
    __device__ __forceinline__ void store_d_s(int queries) const {
        const int lane = thread_of_warpgroup() % warp_threads;
        const int warp = uniform(thread_of_warpgroup() / warp_threads);
        const std::uint32_t image = shared_address(shared_.d_s[unit_]);
        publish_to_async_proxy();
        __syncwarp();
        constexpr int bytes = StoredDs::image_bytes / 4;
        if (lane == 0)
            store_bytes(shared_.images[unit_] + (queries * 4 + warp) * bytes, image + warp * bytes, bytes);
    }

    // For the rows of the step at hand. Asking takes a while, so that it is done a step before: after waiting for that
    // one, since the phase before the one asked for must have been seen to end.
    __device__ __forceinline__ void wait_for_run() const {
        if (!is_full_)
            shared_.run_full[stage_.slot()].wait(stage_.parity_to_empty());
    }
    __device__ __forceinline__ void look_ahead() {
        const PipelineState<Traits::stages> next{stage_.count + 1};
        is_full_ = shared_.run_full[next.slot()].has_ended(next.parity_to_empty());
    }

    __device__ __forceinline__ void sync_warpgroup() const {
        sync_threads(1 + own_unit(), warpgroup_threads);
    }

    __device__ __forceinline__ void release(int stage) const {
        if (thread_of_warpgroup() == 0)
            shared_.run_empty[stage].arrive();
    }

    // Steps of the tile that are none of this unit's. The whole warpgroup must have seen a barrier's phase before the
    // stage is released: a warp left two phases behind would wait for a parity that came and went.
    __device__ __forceinline__ void sit_out(int steps) {
        for (; steps > 0; --steps, ++stage_.count) {
            const int stage = stage_.slot();
            wait_for_run();
            look_ahead();
            sync_warpgroup();
            release(stage);
        }
    }

    template <int count>
    __device__ __forceinline__ void write(const Unit &unit, const UnitTile<Traits::consumers> &tile, float (&x)[count],
                                          float factor, std::uint32_t staging, const PassRows &rows, float *sums) {
#pragma unroll
        for (float &element : x)
            element *= factor;
        const int head = Traits::of_keys ? tile.head / pass_.heads_of_kv_head : tile.head;
        if (pass_.has_nan)
            note_nonfinite(x, pass_.has_nan);
        const bool is_finished = pass_.finishes_rows && !pass_.summed.has(tile.head, unit.first);
        if (sums && !pass_.takes_sums && !is_finished)
            return add_to_sums(unit, tile.batch, head, x, sums);
        if (pass_.takes_sums)
            take_sums(unit, tile, x, sums + sum_row(tile.batch, head) * pass_.head_dim);
        write_rows(unit, tile.batch, head, x, staging, rows);
    }

    template <int count>
    __device__ __forceinline__ void write_rows(const Unit &unit, int batch, int head, const float (&x)[count],
                                               std::uint32_t staging, const PassRows &rows) const {
        Element *const row_0 = static_cast<Element *>(rows.data) + batch * rows.batch + head * rows.head;
        const auto row_at = [&](int row) { return row_0 + pass_.unit_row(unit.position(row)) * rows.row; };
        stage_rows<Element>(staging, x, 1.f, 1.f);
        store_rows<Element, columns>(staging, unit.rows, pass_.head_dim, row_at);
    }

    // The first row of a head in the sums.
    __device__ __forceinline__ std::int64_t sum_row(int batch, int head) const {
        const int heads = Traits::of_keys ? pass_.all_heads / pass_.heads_of_kv_head : pass_.all_heads;
        return (std::int64_t{batch} * heads + head) * pass_.sum_rows - pass_.first_sum;
    }

    // Adds what the pass before has left of the rows.
    template <int count>
    __device__ __forceinline__ void take_sums(const Unit &unit, const UnitTile<Traits::consumers> &tile,
                                              float (&x)[count], const float *sums) const {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int row = row_of_thread(r);
            if (row < unit.rows && pass_.summed.has(tile.head, unit.position(row)))
                add_sums<count>(x, r, 1, 1, sums + std::int64_t{pass_.unit_row(unit.position(row))} * pass_.head_dim,
                                pass_.head_dim);
        }
    }

    template <int count>
    __device__ __forceinline__ void add_to_sums(const Unit &unit, int batch, int head, const float (&x)[count],
                                                float *sums) const {
        const std::int64_t first = sum_row(batch, head);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int row = row_of_thread(r);
            if (row >= unit.rows)
                continue;
            const std::int64_t index = first + pass_.unit_row(unit.position(row));
            float2 *const of_row = reinterpret_cast<float2 *>(sums + index * pass_.head_dim);
#pragma unroll
            for (int i = 0; i < count / 4; ++i) {
                const int column = 8 * i + 2 * (thread_of_warpgroup() % 4);
                if (column >= pass_.head_dim)
                    break;
                float2 two{x[4 * i + 2 * r], x[4 * i + 2 * r + 1]};
                if (!pass_.sets_sums) {
                    const float2 before = of_row[column / 2];
                    two = {before.x + two.x, before.y + two.y};
                }
                of_row[column / 2] = two;
            }
        }
    }

    const BackwardParams &pass_;
    BackwardShared<Traits> &shared_;
    const int unit_; // of the tile
    PipelineState<Traits::stages> stage_;
    bool is_full_ = false; // the stage at hand, as looked up a step before
};

template <class Traits>
__global__ void __launch_bounds__(Traits::threads, 1) backward_kernel(const __grid_constant__ BackwardParams pass) {
    extern __shared__ __align__(1024) std::uint8_t memory[];
    BackwardShared<Traits> &shared = *reinterpret_cast<BackwardShared<Traits> *>(memory);
    if (threadIdx.x == 0)
        shared.init_barriers();
    __syncthreads();
    const int warp = uniform(static_cast<int>(threadIdx.x) / warp_threads);
    if (warp < 4) {
        shrink_registers<Traits::Registers::feeder>();
        if (warp == 0) {
            if (threadIdx.x == 0)
                copy_runs(pass, shared);
        } else if (warp == 1) {
            find_tiles(pass, shared, [&](const PipelineState<tile_slots> &at) {
                if constexpr (Traits::of_keys && Traits::has_d_scores && !Traits::keeps_d_s)
                    copy_rows_of_units<Traits, false>(pass, shared, at);
            });
        } else if (warp == 2) {
            copy_units<Traits, true>(pass, shared);
        } else if constexpr (Traits::of_keys) {
            copy_statistics(pass, shared);
        } else {
            copy_units<Traits, false>(pass, shared);
        }
    } else {
        grow_registers<Traits::Registers::consumer>();
        GradientConsumer<Traits>(pass, shared, warp / 4 - 1).run();
    }
}

} // namespace annulus
