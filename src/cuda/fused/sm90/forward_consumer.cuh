// SPDX-License-Identifier: Apache-2.0
// The warpgroups of the fused forward kernel that compute, a row block of 64 queries each.
#pragma once

#include "cuda/device/early_launch.cuh"
#include "cuda/device/warp.cuh"
#include "cuda/fused/math/forward_epilogue.cuh"
#include "cuda/fused/math/scores.cuh"
#include "cuda/fused/math/softmax.cuh"
#include "cuda/fused/math/warp_products.cuh"
#include "cuda/fused/sm90/forward_params.hpp"
#include "cuda/fused/sm90/forward_shared.cuh"
#include "cuda/fused/sm90/products.cuh"
#include "cuda/fused/sm90/tma.cuh"

#include <cstdint>

namespace annulus {

template <class Traits> class ForwardConsumer {
  public:
    __device__ __forceinline__ ForwardConsumer(const ForwardParams &params, ForwardShared<Traits> &shared,
                                               int row_block)
        : params_(params), shared_(shared), row_block_(row_block) {}

    __device__ __forceinline__ void run() {
        if (row_block_ == Traits::consumers - 1)
            pass_turn();
        for (PipelineState<tile_slots> at;; ++at.count) {
            const PipelineState<Traits::query_slots> query{at.count};
            shared_.tile_full[at.slot()].wait(at.parity_to_empty());
            const OwnTile &tile = shared_.tiles[at.slot()];
            if (tile.ranges < 0)
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
    using OwnTile = Tile<Traits::consumers>;
    using OwnRange = Range<Traits::consumers>;
    static constexpr int range_block_rows = Traits::range_block_rows, columns = Traits::head_dim;

    // What a thread holds during a tile.
    struct Registers {
        const std::uint32_t q, k, v; // descriptors
        float o[columns / 2], s[range_block_rows / 2];
        std::uint32_t p[range_block_rows / 4];
        RunningSoftmax softmax;
        float weight[2]; // log2 of the multiplicities of its two columns of eight
        int visible[2];  // how many keys of the range its rows see, where some are hidden

        __device__ __forceinline__ Registers(ForwardShared<Traits> &shared, std::uint32_t queries, float padding_keys)
            : q(smem_descriptor_start(queries)), k(smem_descriptor_start(shared_address(shared.k[0]))),
              v(smem_descriptor_start(shared_address(shared.v[0]), range_block_rows * swizzled_row_bytes)),
              softmax(padding_keys) {
            clear(o);
        }
    };

    __device__ __forceinline__ void attend(const OwnTile &tile, int query_slot) {
        const RowBlock &row_block = tile.row_block[row_block_];
        const std::uint32_t queries =
            shared_address(shared_.queries[query_slot]) + row_block_ * Traits::row_block_bytes;
        Registers x(shared_, queries, row_block.padding_keys);
        ended_at_ = stage_.count;
        for (int i = 0; i < tile.ranges; ++i) {
            const OwnRange &range = tile.range[i];
            const RangePart &own = range.part[row_block_];
            const int blocks = own.blocks, full = own.full_blocks;
            if (blocks < range.blocks) {
                finish_pending(x);
                sit_out(range.blocks - blocks);
                ended_at_ = stage_.count;
            }
            if (blocks == 0)
                continue;
            int at = blocks - 1;
            if constexpr (Traits::keeps_weights)
                load_weights(x, own);
            if (at >= full)
                find_visible(x, range, row_block);
            if (!has_pending()) {
                start_block(x, own, at >= full, at * range_block_rows, range.count - at * range_block_rows);
                --at;
            }
#pragma unroll 1
            for (; at >= full; --at)
                take_block<true>(x, own, at * range_block_rows, range.count - at * range_block_rows);
#pragma unroll 1
            for (; at >= 0; --at)
                take_block<false>(x, own, 0, range_block_rows);
        }
        // A turn of its own: the others go on while this one writes.
        take_turn();
        finish_pending(x);
        pass_turn();
        if (row_block.rows > 0 && !(params_.skips_empty && !tile.meets_any(row_block_)))
            write(tile, queries, x);
    }

    // O is staged in the place of Q: since the warpgroup took its turn, none of its products reads that any more.
    __device__ __forceinline__ void write(const OwnTile &tile, std::uint32_t staging, Registers &x) const {
        wait_for_launch_before(); // whose partial results these may be added to, or take the place of
        ForwardEpilogue<Element, columns, Traits::consumers, Traits::order, FragmentThread<>>(params_, tile, row_block_,
                                                                                              staging)
            .write(x.o, x.softmax);
    }

    // The first block, with which none overlaps: S, then P, whose product with V is left to the next block.
    __device__ __forceinline__ void start_block(Registers &x, const RangePart &own, bool hides, int first, int keys) {
        if constexpr (!Traits::keeps_weights)
            load_weights(x, own);
        wait_for_keys();
        take_turn();
        multiply_keys(x);
        pass_turn();
        wgmma_wait<0>();
        fence_registers(x.s);
        shared_.k_empty[stage_.slot()].arrive_as_warp();
        if (hides) {
            hide_keys(x, first);
            clear_values(keys);
        }
        x.softmax.template update<true>(x.s, params_.scale_log2, params_.inverse_scale_log2, x.weight);
        pack<Element>(x.p, x.s);
        x.softmax.rescale(x.o);
        ++stage_.count;
    }

    // `keys` keys of a range from its key `first` on. The products of its turn are P V of the block before and S of
    // this one, at the same time where blocks overlap.
    template <bool hides>
    __device__ __forceinline__ void take_block(Registers &x, const RangePart &own, int first, int keys) {
        if constexpr (!Traits::keeps_weights)
            load_weights(x, own);
        wait_for_keys();
        take_turn();
        if constexpr (!Traits::overlaps) {
            multiply_values(x, pending_stage());
            end_values(x, pending_stage());
        }
        multiply_keys(x);
        if constexpr (Traits::overlaps)
            multiply_values(x, pending_stage());
        pass_turn();
        wgmma_wait<Traits::overlaps>();
        fence_registers(x.s);
        if constexpr (hides || !Traits::trusts_maxima) {
            shared_.k_empty[stage_.slot()].arrive_as_warp();
            if constexpr (hides)
                hide_keys(x, first);
            x.softmax.template update<hides>(x.s, params_.scale_log2, params_.inverse_scale_log2, x.weight);
            if constexpr (Traits::overlaps)
                end_values(x, pending_stage());
            if constexpr (hides)
                clear_values(keys);
            pack<Element>(x.p, x.s);
            x.softmax.rescale(x.o);
        } else {
            find_probabilities(x, own);
            shared_.k_empty[stage_.slot()].arrive_as_warp();
        }
        ++stage_.count;
    }

    // P by the maxima as they are, which seldom have to move: then S is gone, so that each warp computes its own once
    // more. To look for maxima in each block would be a fifth of its instructions. Where blocks overlap P is packed
    // meanwhile.
    __device__ __forceinline__ void find_probabilities(Registers &x, const RangePart &own) {
        const float c = params_.scale_log2;
        float sum[2] = {0, 0};
        x.softmax.template find_probabilities<false>(x.s, c, x.weight, sum);
        if constexpr (Traits::overlaps) {
            end_values(x, pending_stage());
            pack<Element>(x.p, x.s);
        }
        if (!x.softmax.add_if_near(sum)) {
            const unsigned far_rows = x.softmax.far_rows(sum);
            multiply_keys_by_warps(x);
            load_weights(x, own);
            x.softmax.update_far(x.s, c, params_.inverse_scale_log2, x.weight, far_rows);
            x.softmax.rescale(x.o);
            if constexpr (Traits::overlaps)
                pack<Element>(x.p, x.s);
        }
        if constexpr (!Traits::overlaps)
            pack<Element>(x.p, x.s);
    }

    __device__ __forceinline__ void finish_pending(Registers &x) {
        if (!has_pending())
            return;
        const Stage pending = pending_stage();
        multiply_values(x, pending);
        end_values(x, pending);
        ended_at_ = stage_.count;
    }

    // Whether there is P of the block before, whose V comes one stage before the one at hand.
    __device__ __forceinline__ bool has_pending() const {
        return stage_.count != ended_at_;
    }

    using Stage = PipelineState<Traits::stages>;
    __device__ __forceinline__ Stage pending_stage() const {
        return Stage{stage_.count - 1};
    }

    __device__ __forceinline__ void wait_for_keys() const {
        shared_.k_full[stage_.slot()].wait(stage_.parity_to_empty());
    }
    // S = Q K^T
    __device__ __forceinline__ void multiply_keys(Registers &x) {
        multiply_rows<Element, columns, range_block_rows>(x.s, x.q, x.k + stage_.slot() * (Traits::stage_bytes / 16));
    }
    // The same by products of warps, to the bit. What the softmax holds is kept in memory meanwhile: for these
    // registers all blocks would have to do without them.
    __device__ __forceinline__ void multiply_keys_by_warps(Registers &x) const {
        RunningSoftmax &softmax = x.softmax;
        const volatile float held[4] = {softmax.m[0], softmax.m[1], softmax.l[0], softmax.l[1]};
        mma::multiply_rows<Element, columns, range_block_rows, 1>(
            reinterpret_cast<float(&)[1][range_block_rows / 2]>(x.s), address_of_descriptor(x.q),
            FragmentThread<>().strip() * 16, address_of_descriptor(x.k + stage_.slot() * (Traits::stage_bytes / 16)));
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            softmax.m[r] = held[r];
            softmax.l[r] = held[2 + r];
        }
    }
    // O += P V
    __device__ __forceinline__ void multiply_values(Registers &x, const Stage &stage) {
        shared_.v_full[stage.slot()].wait(stage.parity_to_empty());
        add_product<Element, columns, range_block_rows>(x.o, x.p, x.v + stage.slot() * (Traits::stage_bytes / 16));
    }
    __device__ __forceinline__ void end_values(Registers &x, const Stage &stage) {
        wgmma_wait<0>();
        fence_registers(x.o);
        fence_registers(x.p);
        shared_.v_empty[stage.slot()].arrive_as_warp();
    }

    // Not by log2_fast: the kernel that reads these for each block was not timed with it (doc/notes/forward.md).
    __device__ __forceinline__ static void load_weights(Registers &x, const RangePart &own) {
        annulus::load_weights(own, FragmentThread<>().column(), x.weight, [](float count) { return __log2f(count); });
    }

    __device__ __forceinline__ void find_visible(Registers &x, const OwnRange &range, const RowBlock &row_block) const {
        const FragmentThread<> own;
#pragma unroll
        for (int r = 0; r < 2; ++r)
            x.visible[r] = params_.causal ? range.template visible<false>(row_block.position(own.row(r))) : range.count;
    }
    __device__ __forceinline__ static void hide_keys(Registers &x, int first) {
        hide<range_block_rows>(x.s, {first + FragmentThread<>().column(), {x.visible[0], x.visible[1]}});
    }

    // Rows of V behind the range's last key are rows of other segments or classes: their probabilities are 0, but their
    // elements may be infinite.
    __device__ __forceinline__ void clear_values(int keys) const {
        if (keys >= range_block_rows)
            return;
        shared_.v_full[stage_.slot()].wait(stage_.parity_to_empty());
        const std::uint32_t values = shared_address(shared_.v[stage_.slot()]);
        for (int i = thread_of_warpgroup() + keys * 8; i < range_block_rows * 8; i += warpgroup_threads)
#pragma unroll
            for (int chunk = 0; chunk < Traits::chunks; ++chunk)
                store_16_bytes(values + chunk * range_block_rows * swizzled_row_bytes + i * 16, uint4{});
        fence_async_proxy();
        sync_warpgroup(row_block_);
    }

    // Consumers issue the products of a block one after the other, so that their softmaxes do not fall together.
    __device__ __forceinline__ void take_turn() const {
        sync_threads(1 + Traits::consumers + row_block_, 2 * warpgroup_threads);
    }
    __device__ __forceinline__ void pass_turn() const {
        arrive_threads(1 + Traits::consumers + (row_block_ + 1) % Traits::consumers, 2 * warpgroup_threads);
    }

    // Blocks of the tile that this row block does not meet. Each warp gives a stage back itself, once it has seen the
    // barrier's phase: left two phases behind it would wait for a parity that came and went.
    __device__ __forceinline__ void sit_out(int blocks) {
        for (; blocks > 0; --blocks, ++stage_.count) {
            const int s = stage_.slot();
            take_turn();
            pass_turn();
            shared_.k_full[s].wait(stage_.parity_to_empty());
            shared_.k_empty[s].arrive_as_warp();
            shared_.v_full[s].wait(stage_.parity_to_empty());
            shared_.v_empty[s].arrive_as_warp();
        }
    }

    const ForwardParams &params_;
    ForwardShared<Traits> &shared_;
    const int row_block_;
    PipelineState<Traits::stages> stage_;
    unsigned ended_at_ = 0; // the stage's count when no P was left; unlike a flag it is no register of each thread
};

} // namespace annulus
