// SPDX-License-Identifier: Apache-2.0
// The warpgroups of the fused forward kernel that compute, a unit of 64 queries each.
#pragma once

#include "cuda/device/warp.cuh"
#include "cuda/fused/math/forward_epilogue.cuh"
#include "cuda/fused/math/scores.cuh"
#include "cuda/fused/math/softmax.cuh"
#include "cuda/fused/sm90/forward_params.hpp"
#include "cuda/fused/sm90/forward_shared.cuh"
#include "cuda/fused/sm90/products.cuh"
#include "cuda/fused/sm90/tma.cuh"

#include <cstdint>

namespace annulus {

template <class Traits> class ForwardConsumer {
  public:
    __device__ __forceinline__ ForwardConsumer(const ForwardParams &params, ForwardShared<Traits> &shared, int unit)
        : params_(params), shared_(shared), unit_(unit), leads_(threadIdx.x % warpgroup_threads == 0) {}

    __device__ __forceinline__ void run() {
        if (unit_ == Traits::consumers - 1)
            pass_turn();
        for (PipelineState<tile_slots> at;; ++at.count) {
            const PipelineState<Traits::query_slots> query{at.count};
            shared_.tile_full[at.slot()].wait(at.parity_to_empty());
            const Tile &tile = shared_.tiles[at.slot()];
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
    using Tile = UnitTile<Traits::consumers>;
    using TileRun = Run<Traits::consumers>;
    static constexpr int step = Traits::step, columns = Traits::head_dim;

    // What a thread holds during a tile.
    struct Registers {
        const std::uint32_t q, k, v; // descriptors
        float o[columns / 2], s[step / 2];
        std::uint32_t p[step / 4];
        RunningSoftmax softmax;
        float weight[2];          // log2 of the multiplicities of its two columns of eight
        int visible[2];           // how many keys of the run its rows see, where some are hidden
        bool has_pending = false; // P of the step before, whose V comes one stage before the one at hand

        __device__ __forceinline__ Registers(ForwardShared<Traits> &shared, std::uint32_t queries, float padding_keys)
            : q(smem_descriptor_start(queries)), k(smem_descriptor_start(shared_address(shared.k[0]))),
              v(smem_descriptor_start(shared_address(shared.v[0]), step * swizzled_row_bytes)), softmax(padding_keys) {
            clear(o);
        }
    };

    __device__ __forceinline__ void attend(const Tile &tile, int query_slot) {
        const Unit &unit = tile.unit[unit_];
        const std::uint32_t queries = shared_address(shared_.queries[query_slot]) + unit_ * Traits::unit_bytes;
        Registers x(shared_, queries, unit.padding_keys);
        for (int i = 0; i < tile.runs; ++i) {
            const TileRun &run = tile.run[i];
            const UnitRun &own = run.unit[unit_];
            const int steps = own.steps, full = own.full;
            if (steps < run.steps) {
                finish_pending(x);
                sit_out(run.steps - steps);
            }
            if (steps == 0)
                continue;
            int at = steps - 1;
            if (at >= full)
                find_visible(x, run, unit);
            if (Traits::overlaps && !x.has_pending) {
                start_step(x, own, at >= full, at * step, run.count - at * step);
                --at;
            }
#pragma unroll 1
            for (; at >= full; --at)
                take_step<true>(x, own, at * step, run.count - at * step);
#pragma unroll 1
            for (; at >= 0; --at)
                take_step<false>(x, own, 0, step);
        }
        finish_pending(x);
        // A turn without products: the others go on while this one writes.
        take_turn();
        pass_turn();
        if (unit.rows > 0)
            ForwardEpilogue<Element, columns, Traits::consumers>(params_, tile, unit_, queries).write(x.o, x.softmax);
    }

    // The first step with which none overlaps: S, then P, whose product with V is left to the next step.
    __device__ __forceinline__ void start_step(Registers &x, const UnitRun &own, bool hides, int first, int keys) {
        load_weights(x, own);
        multiply_keys(x);
        pass_turn();
        wgmma_wait<0>();
        fence_registers(x.s);
        release(shared_.k_empty[stage_.slot()]);
        if (hides) {
            hide_keys(x, first);
            clear_values(keys);
        }
        x.softmax.template step<true>(x.s, params_.scale_log2, params_.inverse_scale_log2, x.weight);
        pack<Element>(x.p, x.s);
        x.softmax.template rescale<Traits::skips_rescaling>(x.o);
        x.has_pending = true;
        ++stage_.count;
    }

    // `keys` keys of a run from its key `first` on. Where steps overlap, the products are S of this step and P V of the
    // one before.
    template <bool hides>
    __device__ __forceinline__ void take_step(Registers &x, const UnitRun &own, int first, int keys) {
        load_weights(x, own);
        multiply_keys(x);
        if constexpr (Traits::overlaps)
            multiply_values(x, pending_stage());
        pass_turn();
        wgmma_wait<Traits::overlaps>();
        fence_registers(x.s);
        release(shared_.k_empty[stage_.slot()]);
        if constexpr (hides)
            hide_keys(x, first);
        x.softmax.template step<hides>(x.s, params_.scale_log2, params_.inverse_scale_log2, x.weight);
        if constexpr (Traits::overlaps)
            end_values(x, pending_stage());
        if constexpr (hides)
            clear_values(keys);
        pack<Element>(x.p, x.s);
        x.softmax.template rescale<Traits::skips_rescaling>(x.o);
        if constexpr (!Traits::overlaps) {
            multiply_values(x, stage_);
            end_values(x, stage_);
        }
        ++stage_.count;
    }

    __device__ __forceinline__ void finish_pending(Registers &x) {
        if (!Traits::overlaps || !x.has_pending)
            return;
        const Stage pending = pending_stage();
        multiply_values(x, pending);
        end_values(x, pending);
        x.has_pending = false;
    }

    using Stage = PipelineState<Traits::stages>;
    __device__ __forceinline__ Stage pending_stage() const {
        return Stage{stage_.count - 1};
    }

    // S = Q K^T
    __device__ __forceinline__ void multiply_keys(Registers &x) {
        shared_.k_full[stage_.slot()].wait(stage_.parity_to_empty());
        take_turn();
        multiply_rows<Element, columns, step>(x.s, x.q, x.k + stage_.slot() * (Traits::stage_bytes / 16));
    }
    // O += P V
    __device__ __forceinline__ void multiply_values(Registers &x, const Stage &stage) {
        shared_.v_full[stage.slot()].wait(stage.parity_to_empty());
        add_product<Element, columns, step>(x.o, x.p, x.v + stage.slot() * (Traits::stage_bytes / 16));
    }
    __device__ __forceinline__ void end_values(Registers &x, const Stage &stage) {
        wgmma_wait<0>();
        fence_registers(x.o);
        fence_registers(x.p);
        release(shared_.v_empty[stage.slot()]);
    }

    // Read at each step: registers are scarcer. Not by log2_fast: the kernel of 128 columns would spill.
    __device__ __forceinline__ static void load_weights(Registers &x, const UnitRun &own) {
        annulus::load_weights(own, FragmentThread().column(), x.weight, [](float count) { return __log2f(count); });
    }

    __device__ __forceinline__ void find_visible(Registers &x, const TileRun &run, const Unit &unit) const {
        const FragmentThread own;
#pragma unroll
        for (int r = 0; r < 2; ++r)
            x.visible[r] = params_.causal ? run.template visible<false>(unit.position(own.row(r))) : run.count;
    }
    __device__ __forceinline__ static void hide_keys(Registers &x, int first) {
        hide<step>(x.s, {first + FragmentThread().column(), {x.visible[0], x.visible[1]}});
    }

    // Rows of V behind the run's last key are rows of other segments or classes: their probabilities are 0, but their
    // elements may be infinite.
    __device__ __forceinline__ void clear_values(int keys) const {
        if (keys >= step)
            return;
        shared_.v_full[stage_.slot()].wait(stage_.parity_to_empty());
        const std::uint32_t values = shared_address(shared_.v[stage_.slot()]);
        for (int i = thread_of_warpgroup() + keys * 8; i < step * 8; i += warpgroup_threads)
#pragma unroll
            for (int chunk = 0; chunk < Traits::chunks; ++chunk)
                store_16_bytes(values + chunk * step * swizzled_row_bytes + i * 16, uint4{});
        fence_async_proxy();
        sync_warpgroup(unit_);
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
            sync_warpgroup(unit_);
            release(shared_.k_empty[s]);
            shared_.v_full[s].wait(stage_.parity_to_empty());
            sync_warpgroup(unit_);
            release(shared_.v_empty[s]);
        }
    }

    const ForwardParams &params_;
    ForwardShared<Traits> &shared_;
    const int unit_;
    const bool leads_;
    PipelineState<Traits::stages> stage_;
};

} // namespace annulus
