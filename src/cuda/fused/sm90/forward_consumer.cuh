// SPDX-License-Identifier: Apache-2.0
// The consumer warpgroups of the fused forward kernel. Each computes a row block of 64 queries.
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
            scheduler_barrier_arrive();
        for (PipelineState<tile_slots> at;; ++at.count) {
            const PipelineState<Traits::q_slots> slot{at.count};
            shared_.tile_full[at.slot()].wait(at.parity_to_empty());
            const OwnTile &tile = shared_.tiles[at.slot()];
            if (tile.ranges < 0)
                return;
            shared_.q_full[slot.slot()].wait(slot.parity_to_empty());
            attend(tile, slot.slot());
            __syncwarp();
            if (thread_of_warpgroup() % warp_threads == 0) {
                shared_.q_empty[slot.slot()].arrive();
                shared_.tile_empty[at.slot()].arrive();
            }
        }
    }

  private:
    using Element = typename Traits::Element;
    using OwnTile = Tile<Traits::consumers>;
    using OwnRange = Range<Traits::consumers>;
    static constexpr int range_block_rows = Traits::range_block_rows, columns = Traits::head_dim;

    // What a thread holds in registers during a tile.
    struct Registers {
        const std::uint32_t q, k, v; // descriptors
        float o[columns / 2], s[range_block_rows / 2];
        std::uint32_t p[range_block_rows / 4];
        RunningSoftmax softmax;
        float weight[2]; // log2 of the multiplicities of its two columns of every eight
        int visible[2];  // how many keys of the range its rows see, if some are hidden
        int hidden[2];   // how many first keys of the range a window hides from them, if the range hides its first keys

        __device__ __forceinline__ Registers(ForwardShared<Traits> &shared, std::uint32_t q_rows, float padding_keys)
            : q(smem_descriptor_start(q_rows)), k(smem_descriptor_start(shared_address(shared.k[0]))),
              v(smem_descriptor_start(shared_address(shared.v[0]), range_block_rows * swizzled_row_bytes)),
              softmax(padding_keys) {
            clear(o);
        }
    };

    __device__ __forceinline__ void attend(const OwnTile &tile, int slot) {
        const RowBlock &row_block = tile.row_block[row_block_];
        const std::uint32_t q_rows = shared_address(shared_.q[slot]) + row_block_ * Traits::row_block_bytes;
        Registers x(shared_, q_rows, row_block.padding_keys);
        ended_at_ = stage_.count;
        for (int i = 0; i < tile.ranges; ++i) {
            const OwnRange &range = tile.range[i];
            const SeenBlocks &own = range.part[row_block_];
            const int blocks = own.blocks, full = own.full_blocks;
            skip(x, range.blocks - blocks);
            if (blocks == 0)
                continue;
            int at = blocks - 1;
            if constexpr (Traits::loads_weights_once)
                load_weights(x, own);
            if (at >= full)
                find_visible(x, range, row_block);
            if (!has_pending()) {
                start_block(x, range, at >= full, at);
                --at;
            }
#pragma unroll 1
            for (; at >= full; --at)
                process_block<true>(x, range, at);
            if (range.hides_first) {
                skip(x, at + 1);
                continue;
            }
#pragma unroll 1
            for (; at >= 0; --at)
                process_block<false>(x, range, at);
        }
        // A turn for this product alone: other consumers go on while this one writes.
        scheduler_barrier_sync();
        finish_pending(x);
        scheduler_barrier_arrive();
        if (row_block.rows > 0 && !(params_.skips_empty && !tile.meets_any(row_block_)))
            write(tile, q_rows, x);
    }

    // Writes O, which is staged in the place of Q. The scheduler barrier comes after each warp has waited for its last
    // S, so none of the warpgroup's products reads Q any more.
    __device__ __forceinline__ void write(const OwnTile &tile, std::uint32_t staging, Registers &x) const {
        grid_dependency_wait(); // results here may add to partial results of the launch before, or overwrite them
        ForwardEpilogue<Element, columns, Traits::consumers, Traits::order, FragmentThread<>>(params_, tile, row_block_,
                                                                                              staging)
            .write(x.o, x.softmax);
    }

    // Processes the first KV block, with which no other block overlaps: S, then P. P V is left to the next block.
    __device__ __forceinline__ void start_block(Registers &x, const OwnRange &range, bool hides, int at) {
        if constexpr (!Traits::loads_weights_once)
            load_weights(x, range.part[row_block_]);
        wait_for_k();
        scheduler_barrier_sync();
        multiply_q_k(x);
        scheduler_barrier_arrive();
        wgmma_wait<0>();
        fence_registers(x.s);
        shared_.k_empty[stage_.slot()].arrive_as_warp();
        if (hides) {
            hide_keys(x, range, at);
            clear_v_rows(range.count - at * range_block_rows);
        }
        x.softmax.template update<true>(x.s, params_.scale_log2, params_.inverse_scale_log2, x.weight);
        pack<Element>(x.p, x.s);
        x.softmax.rescale(x.o);
        ++stage_.count;
    }

    // Processes KV block `at` of a range. In this consumer's turn, P V of the block before and S of this block are
    // issued. They run at the same time if blocks overlap.
    template <bool hides> __device__ __forceinline__ void process_block(Registers &x, const OwnRange &range, int at) {
        if constexpr (!Traits::loads_weights_once)
            load_weights(x, range.part[row_block_]);
        wait_for_k();
        scheduler_barrier_sync();
        if constexpr (!Traits::overlaps) {
            multiply_p_v(x, pending_stage());
            finish_p_v(x, pending_stage());
        }
        multiply_q_k(x);
        if constexpr (Traits::overlaps)
            multiply_p_v(x, pending_stage());
        scheduler_barrier_arrive();
        wgmma_wait<Traits::overlaps>();
        fence_registers(x.s);
        if constexpr (hides || !Traits::reuses_maxima) {
            shared_.k_empty[stage_.slot()].arrive_as_warp();
            if constexpr (hides)
                hide_keys(x, range, at);
            x.softmax.template update<hides>(x.s, params_.scale_log2, params_.inverse_scale_log2, x.weight);
            if constexpr (Traits::overlaps)
                finish_p_v(x, pending_stage());
            if constexpr (hides)
                clear_v_rows(range.count - at * range_block_rows);
            pack<Element>(x.p, x.s);
            x.softmax.rescale(x.o);
        } else {
            find_probabilities(x, range.part[row_block_]);
            shared_.k_empty[stage_.slot()].arrive_as_warp();
        }
        ++stage_.count;
    }

    // Finds P by the maxima as they are, which seldom have to move. If they have to, S is gone, so each warp computes
    // its own rows of S once more. A search for maxima in each block would be a fifth of its instructions. If blocks
    // overlap, P is packed before the maxima are checked.
    __device__ __forceinline__ void find_probabilities(Registers &x, const SeenBlocks &own) {
        const float c = params_.scale_log2;
        float sum[2] = {0, 0};
        x.softmax.template find_probabilities<false>(x.s, c, x.weight, sum);
        if constexpr (Traits::overlaps) {
            finish_p_v(x, pending_stage());
            pack<Element>(x.p, x.s);
        }
        if (!x.softmax.add_if_near(sum)) {
            const unsigned far_rows = x.softmax.far_rows(sum);
            multiply_q_k_by_warps(x);
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
        multiply_p_v(x, pending);
        finish_p_v(x, pending);
        ended_at_ = stage_.count;
    }

    // Returns whether there is P of the block before. Its V lies one stage before the current one.
    __device__ __forceinline__ bool has_pending() const {
        return stage_.count != ended_at_;
    }

    using Stage = PipelineState<Traits::stages>;
    __device__ __forceinline__ Stage pending_stage() const {
        return Stage{stage_.count - 1};
    }

    __device__ __forceinline__ void wait_for_k() const {
        shared_.k_full[stage_.slot()].wait(stage_.parity_to_empty());
    }
    // Starts S = Q K^T.
    __device__ __forceinline__ void multiply_q_k(Registers &x) {
        multiply_rows<Element, columns, range_block_rows>(x.s, x.q, x.k + stage_.slot() * (Traits::stage_bytes / 16));
    }
    // Computes the same S, to the bit, by products of single warps. The softmax state is kept in memory meanwhile: in
    // registers, it would take them from all blocks.
    __device__ __forceinline__ void multiply_q_k_by_warps(Registers &x) const {
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
    // Starts O += P V.
    __device__ __forceinline__ void multiply_p_v(Registers &x, const Stage &stage) {
        shared_.v_full[stage.slot()].wait(stage.parity_to_empty());
        add_product<Element, columns, range_block_rows>(x.o, x.p, x.v + stage.slot() * (Traits::stage_bytes / 16));
    }
    __device__ __forceinline__ void finish_p_v(Registers &x, const Stage &stage) {
        wgmma_wait<0>();
        fence_registers(x.o);
        fence_registers(x.p);
        shared_.v_empty[stage.slot()].arrive_as_warp();
    }

    // Loads log2 of the multiplicities. It does not use log2_fast: the kernel that reads multiplicities for each block
    // was not timed with it (doc/notes/forward.md).
    __device__ __forceinline__ static void load_weights(Registers &x, const SeenBlocks &own) {
        annulus::load_weights(own, FragmentThread<>().column(), x.weight, [](float count) { return __log2f(count); });
    }

    __device__ __forceinline__ void find_visible(Registers &x, const OwnRange &range, const RowBlock &row_block) const {
        const FragmentThread<> own;
#pragma unroll
        for (int r = 0; r < 2; ++r)
            x.visible[r] =
                params_.is_bounded() ? range.template visible<false>(row_block.position(own.row(r))) : range.count;
        if (range.hides_first)
#pragma unroll
            for (int r = 0; r < 2; ++r)
                x.hidden[r] = range.template hidden<false>(row_block.position(own.row(r)));
    }
    __device__ __forceinline__ static void hide_keys(Registers &x, const OwnRange &range, int at) {
        const int column = at * range_block_rows + FragmentThread<>().column();
        hide<range_block_rows>(x.s, {column, {x.visible[0], x.visible[1]}});
        if (range.hides_first)
            FirstRowsMask<false, range_block_rows>{column, {x.hidden[0], x.hidden[1]}}.overwrite(x.s, -INFINITY);
    }

    // Clears the rows of V behind the range's last key. They are rows of other segments or classes: their probabilities
    // are 0, but their elements may be infinite.
    __device__ __forceinline__ void clear_v_rows(int keys) const {
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

    // The warp scheduler barrier of FlashAttention-3: consumers issue the products of a block one after the other, so
    // that their softmaxes do not fall together. sync waits for this consumer's turn, arrive passes the turn to the
    // next consumer.
    __device__ __forceinline__ void scheduler_barrier_sync() const {
        sync_threads(1 + Traits::consumers + row_block_, 2 * warpgroup_threads);
    }
    __device__ __forceinline__ void scheduler_barrier_arrive() const {
        arrive_threads(1 + Traits::consumers + (row_block_ + 1) % Traits::consumers, 2 * warpgroup_threads);
    }

    // Finishes P V of the block before, and skips KV blocks of the tile that this row block does not meet, if any.
    __device__ __forceinline__ void skip(Registers &x, int blocks) {
        if (blocks == 0)
            return;
        finish_pending(x);
        skip_blocks(blocks);
        ended_at_ = stage_.count;
    }

    // Skips KV blocks. Each warp releases a stage itself, after it has seen the barrier's phase. A warp left two phases
    // behind would wait for a parity that came and went.
    __device__ __forceinline__ void skip_blocks(int blocks) {
        for (; blocks > 0; --blocks, ++stage_.count) {
            const int s = stage_.slot();
            scheduler_barrier_sync();
            scheduler_barrier_arrive();
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
    unsigned ended_at_ = 0; // the stage's count when no P was pending; unlike a flag, it is no register of each thread
};

} // namespace annulus
