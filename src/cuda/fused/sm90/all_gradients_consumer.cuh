// SPDX-License-Identifier: Apache-2.0
// The consumer warpgroups of the kernel of all gradients. Each has 64 keys of a tile.
#pragma once

#include "cuda/device/warp.cuh"
#include "cuda/fused/math/backward_epilogue.cuh"
#include "cuda/fused/math/gradients.cuh"
#include "cuda/fused/math/scores.cuh"
#include "cuda/fused/sm90/all_gradients_shared.cuh"
#include "cuda/fused/sm90/backward_params.hpp"
#include "cuda/fused/sm90/products.cuh"
#include "cuda/fused/sm90/tma.cuh"

#include <cstdint>

namespace annulus {

template <class Traits> class AllGradientsConsumer {
  public:
    __device__ __forceinline__ AllGradientsConsumer(const BackwardParams &params, AllGradientsShared<Traits> &shared,
                                                    int consumer)
        : params_(params), shared_(shared), consumer_(consumer) {}

    __device__ __forceinline__ void run() {
        for (PipelineState<tile_slots> at;; ++at.count) {
            shared_.tile_full[at.slot()].wait(at.parity_to_empty());
            const OwnTile &tile = shared_.tiles[at.slot()];
            if (tile.ranges < 0)
                break;
            find_gradients(tile, PipelineState<Traits::row_block_slots>{at.count},
                           shared_.summing_tiles[at.slot()].first_step(params_.query_sums.wave,
                                                                      tile.ranges > 0 ? tile.range[0].blocks : 0));
            __syncwarp();
            if (thread_of_warpgroup() % warp_threads == 0)
                shared_.tile_empty[at.slot()].arrive();
        }
    }

  private:
    using Element = typename Traits::Element;
    using OwnTile = typename AllGradientsShared<Traits>::OwnTile;
    using OwnRange = Range<Traits::consumers>;
    static constexpr int range_block_rows = Traits::range_block_rows;
    static constexpr int columns = Traits::head_dim;
    static constexpr std::uint32_t to_d_o = Traits::stage_bytes / 16, stage_distance = 2 * to_d_o;
    static constexpr int d_q_buffers = Traits::d_q_buffers;
    using BlockMask = Mask<true, range_block_rows>;

    // What a thread holds in registers during a tile.
    struct Registers {
        // Descriptors: of the row block's K and V; of the first stage's Q and dO; of the two operands of the product
        // for dQ.
        const std::uint32_t k, v, q, d_o, d_q_left, d_q_right;
        float d_k[columns / 2], d_v[columns / 2];
    };

    __device__ __forceinline__ void find_gradients(const OwnTile &tile,
                                                   const PipelineState<Traits::row_block_slots> &slot, int first_step) {
        const int own_slot =
            uniform(slot.slot()); // so that addresses of operands need not pass through vector registers
        const std::uint32_t k = shared_address(shared_.key_rows[own_slot].k),
                            v = shared_address(shared_.key_rows[own_slot].v) + consumer_ * Traits::row_block_bytes;
        const std::uint32_t q =
            smem_descriptor_start(shared_address(shared_.query_rows[0].q), range_block_rows * swizzled_row_bytes);
        // For dQ, a consumer has a chunk of 64 columns, or 64 queries.
        const std::uint32_t d_s = shared_address(shared_.d_s);
        Registers x{smem_descriptor_start(k + consumer_ * Traits::row_block_bytes),
                    smem_descriptor_start(v),
                    q,
                    q + to_d_o,
                    smem_descriptor_start(Traits::transposes_d_q ? k + consumer_ * chunk_bytes
                                                                 : d_s + consumer_ * Traits::image_bytes),
                    smem_descriptor_start(Traits::transposes_d_q ? d_s : k)};
        clear(x.d_k);
        clear(x.d_v);
        shared_.k_full[slot.slot()].wait(slot.parity_to_empty());
        shared_.v_full[slot.slot()].wait(slot.parity_to_empty());
        // The compiler knows that these bounds of loops are uniform. It then takes the stage for uniform, too.
        const OwnRange &range = tile.range[0];
        const RowBlock &row_block = tile.row_block[own_consumer()];
        const int blocks = uniform(tile.ranges > 0 ? range.blocks : 0);
        // A row block with fewer keys hides the keys that it lacks, so that they add nothing to dQ.
        const int full = uniform(row_block.rows == row_block_rows ? range.part[own_consumer()].full_blocks : 0);
        if (blocks > 0) {
            int at = uniform(blocks - 1 - first_step), end = 0;
            const int last = at + 1;
            process_block<true, true>(x, row_block, range, at);
            --at;
#pragma unroll 1
            for (int pass = 0; pass < 2; ++pass) {
#pragma unroll 1
                for (; at >= max(full, end); --at)
                    process_block<true, false>(x, row_block, range, at);
#pragma unroll 1
                for (; at >= end; --at)
                    process_block<false, false>(x, row_block, range, at);
                at = blocks - 1;
                end = last;
            }
            float d_q[Traits::d_q_columns / 2];
            start_d_q(x, d_q);
            wgmma_wait<0>();
            end_d_q(d_q);
        }
        __syncwarp();
        if (thread_of_warpgroup() % warp_threads == 0)
            shared_.k_empty[slot.slot()].arrive();
        if (row_block.rows > 0 && !(params_.skips_empty && !tile.meets_any(own_consumer())))
            write(x, tile, row_block, v);
        __syncwarp();
        if (thread_of_warpgroup() % warp_threads == 0)
            shared_.v_empty[slot.slot()].arrive();
    }

    // Writes dK and dV, one after the other, by way of the row block's V in shared memory.
    __device__ __forceinline__ void write(Registers &x, const OwnTile &tile, const RowBlock &row_block,
                                          std::uint32_t staging) const {
        sync_warpgroup(own_consumer()); // no warp's products read V any more
        const BackwardEpilogue<Element, columns, true, Traits::order, FragmentThread<>> epilogue(
            params_, params_.destination, tile.batch, tile.head, row_block);
        epilogue.write(x.d_k, params_.scale, staging, params_.d_q_or_k, params_.partial_d_q_or_k);
        __syncwarp(); // the rows of dK have been read
        epilogue.write(x.d_v, 1.f, staging, params_.d_v, params_.partial_d_v);
    }

    // Processes block `at` of the range.
    //
    //     products           S   dP          dV          dQ          dK
    //     beside them            P = 2^S     dS copied               sums of dQ copied
    template <bool hides, bool is_first>
    __device__ __forceinline__ void process_block(Registers &x, const RowBlock &row_block, const OwnRange &range,
                                                  int at) {
        const int stage = stage_.slot();
        const unsigned parity = stage_.parity_to_empty();
        const BlockMask mask = find_mask<hides>(row_block, range, at);
        // Declared here, so that registers hold none of them from one block to the next.
        float s[range_block_rows / 2], d_p[range_block_rows / 2], d_q[Traits::d_q_columns / 2];
        std::uint32_t p[range_block_rows / 4], d_s[range_block_rows / 4];
        constexpr float weight[2] = {-0.f, -0.f}; // of one branch; -0 adds nothing
        shared_.q_full[stage].wait(parity);
        const auto lse_log2 = load_statistic(shared_.lse_log2[stage]);
        multiply_rows<Element, columns, range_block_rows>(s, x.k, x.q + stage * stage_distance);
        shared_.d_o_full[stage].wait(parity);
        multiply_rows<Element, columns, range_block_rows>(d_p, x.v, x.d_o + stage * stage_distance);
        wgmma_wait<1>();
        fence_registers(s);
        find_probabilities<hides>(s, params_.scale_log2, weight, lse_log2, mask);
        pack<Element>(p, s);
        constexpr bool has_d_q = !is_first, is_early = has_d_q && Traits::multiplies_d_q_early;
        if constexpr (is_early)
            start_d_q(x, d_q);
        const auto delta = load_statistic(shared_.delta[stage]);
        wgmma_wait<is_early ? 1 : 0>();
        fence_registers(d_p);
        find_d_s<hides>(
            d_p, [&](int j) { return unpack_two<Element>(p[j / 2]); }, delta, mask,
            [&](int j, const float2 &two) { d_s[j / 2] = pack_two<Element>(two.x, two.y); });
        if constexpr (hides)
            clear_absent_rows(range.count - at * range_block_rows, stage);
        shared_.d_s_empty[stage].wait(stage_.parity_to_fill());
        if constexpr (Traits::transposes_d_q)
            stage_d_s_by_queries(shared_address(shared_.d_s[stage][own_consumer()]), d_s);
        else
            stage_pairs<FragmentThread<>>(shared_address(shared_.d_s[stage][own_consumer()]), d_s);
        if constexpr (has_d_q && !is_early)
            start_d_q(x, d_q);
        add_product<Element, columns, range_block_rows>(x.d_v, p, x.d_o + stage * stage_distance);
        fence_async_proxy();
        __syncwarp();
        if (thread_of_warpgroup() % warp_threads == 0)
            shared_.d_s_full[stage].arrive();
        add_product<Element, columns, range_block_rows>(x.d_k, d_s, x.q + stage * stage_distance);
        if constexpr (has_d_q) {
            wgmma_wait<2>();
            end_d_q(d_q);
        }
        wgmma_wait<1>();
        fence_registers(x.d_v);
        fence_registers(p);
        release(shared_.d_o_empty[stage]);
        wgmma_wait<0>();
        fence_registers(x.d_k);
        fence_registers(d_s);
        release(shared_.q_empty[stage]);
        ++stage_.count;
    }

    // Starts the product for dQ over all keys of the tile.
    __device__ __forceinline__ void start_d_q(Registers &x, float (&d_q)[Traits::d_q_columns / 2]) const {
        // The distance from the first consumer's keys to the second one's.
        constexpr std::uint32_t left_distance = Traits::transposes_d_q ? Traits::row_block_bytes : Traits::d_s_bytes,
                                right_distance = Traits::transposes_d_q ? Traits::d_s_bytes : Traits::row_block_bytes;
        const PipelineState<Traits::stages> place{d_q_count_};
        const std::uint32_t further_d_s = place.slot() * Traits::consumers * Traits::d_s_bytes / 16,
                            left = x.d_q_left + (Traits::transposes_d_q ? 0 : further_d_s),
                            right = x.d_q_right + (Traits::transposes_d_q ? further_d_s : 0);
        shared_.d_s_full[place.slot()].wait(place.parity_to_empty());
        fence_registers(d_q);
        wgmma_fence();
#pragma unroll
        for (int u = 0; u < Traits::consumers; ++u)
#pragma unroll
            for (int i = 0; i < row_block_rows / 16; ++i) {
                const std::uint32_t further = i * 16 * swizzled_row_bytes;
                if constexpr (Traits::transposes_d_q)
                    WgmmaSsMnKMajor<Element, Traits::d_q_columns>::run(
                        d_q, smem_descriptor(left + (u * left_distance + further) / 16),
                        smem_descriptor(right + (u * right_distance + i * 32) / 16), u > 0 || i > 0);
                else
                    WgmmaSsMnMajor<Element, Traits::d_q_columns>::run(
                        d_q, smem_descriptor(left + (u * left_distance + further) / 16),
                        smem_descriptor(right + (u * right_distance + further) / 16), u > 0 || i > 0);
            }
        wgmma_commit();
    }

    // Writes dS to shared memory in rows of 64 keys, one row for each query.
    __device__ __forceinline__ static void stage_d_s_by_queries(std::uint32_t target,
                                                                const std::uint32_t (&d_s)[range_block_rows / 4]) {
        const FragmentThread<> own;
        const int lane = own.lane();
        // Of the four matrices of an instruction, two have the same queries, and two the same keys.
        const std::uint32_t first =
            target + swizzled_offset(range_block_rows, lane / 16 * 8 + lane % 8, own.strip() * 2 + lane / 8 % 2);
#pragma unroll
        for (int i = 0; i < range_block_rows / 16; ++i)
            store_matrices_transposed(first + i * 16 * swizzled_row_bytes, d_s[4 * i], d_s[4 * i + 1], d_s[4 * i + 2],
                                      d_s[4 * i + 3]);
    }

    __device__ __forceinline__ void end_d_q(float (&d_q)[Traits::d_q_columns / 2]) {
        fence_registers(d_q);
        release(shared_.d_s_empty[PipelineState<Traits::stages>{d_q_count_}.slot()]);
        hand_over_d_q(d_q);
        ++d_q_count_;
    }

    // Adds the product for dQ to its sum in memory, when the sending warp says that it is the tile's turn. In the order of
    // fragments: a warp's strip by itself, and every four numbers of its lanes next to one another.
    __device__ __forceinline__ void hand_over_d_q(const float (&d_q)[Traits::d_q_columns / 2]) const {
        const PipelineState<d_q_buffers> place{d_q_count_};
        shared_.turn_full[place.slot()].wait(place.parity_to_empty());
        const int thread = thread_of_warpgroup(), strip = own_consumer() * 4 + thread / warp_threads;
        const int lane = thread % warp_threads;
        const auto turn = shared_.turns[place.slot()];
        if (Traits::d_q_strips == Traits::consumer_warps || strip < Traits::d_q_strips) {
            float *const target = turn.sum + strip * (Traits::strip_bytes / 4) + lane * 4;
#ifndef NOHAND
            if (turn.is_first) {
#pragma unroll
                for (int i = 0; i < Traits::d_q_columns / 8; ++i)
                    asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(target + i * warp_threads * 4),
                                 "f"(d_q[4 * i]), "f"(d_q[4 * i + 1]), "f"(d_q[4 * i + 2]), "f"(d_q[4 * i + 3])
                                 : "memory");
            } else {
#pragma unroll
                for (int i = 0; i < Traits::d_q_columns / 8; ++i)
                    asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(
                                     target + i * warp_threads * 4),
                                 "f"(d_q[4 * i]), "f"(d_q[4 * i + 1]), "f"(d_q[4 * i + 2]), "f"(d_q[4 * i + 3])
                                 : "memory");
            }
#endif
        }
        __syncwarp();
        if (lane == 0)
            shared_.d_q_full[place.slot()].arrive();
    }

    // Returns the mask of block `at` of the range.
    template <bool hides>
    __device__ __forceinline__ BlockMask find_mask(const RowBlock &row_block, const OwnRange &range, int at) const {
        BlockMask mask{FragmentThread<>().column(), {}};
        if constexpr (hides)
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                const int row = FragmentThread<>().row(r);
                int visible = 0;
                if (row < row_block.rows)
                    visible = params_.causal ? range.template visible<true>(row_block.position(row)) : range.count;
                mask.visible_count[r] = visible - at * range_block_rows;
            }
        return mask;
    }

    // LSE or delta of the thread's columns.
    struct ReadColumns {
        float4 pairs[range_block_rows / 8];

        __device__ __forceinline__ float4 at(int i) const { return pairs[i / 4]; }
    };
    __device__ __forceinline__ static auto load_statistic(const float *statistic) {
        if constexpr (Traits::shares_statistics) {
            return SharedColumnStatistic<range_block_rows>(statistic);
        } else {
            const ColumnStatistic columns_of_block{statistic + FragmentThread<>().column()};
            ReadColumns read;
#pragma unroll
            for (int i = 0; i < range_block_rows / 8; ++i)
                read.pairs[i] = columns_of_block.at(4 * i);
            return read;
        }
    }

    // Clears the rows of a block that are not among the range's `present` rows. They are rows of other segments or
    // classes: their probabilities are 0, but their elements may be infinite. Both consumers clear them.
    __device__ __forceinline__ void clear_absent_rows(int present, int stage) {
        if (present >= range_block_rows)
            return;
        const int end = (range_block_rows - present) * 8;
        const std::uint32_t targets[2] = {shared_address(shared_.query_rows[stage].q),
                                          shared_address(shared_.query_rows[stage].d_o)};
        for (int i = thread_of_warpgroup(); i < end; i += warpgroup_threads)
#pragma unroll
            for (int chunk = 0; chunk < Traits::chunks; ++chunk)
#pragma unroll
                for (const std::uint32_t target : targets)
                    store_16_bytes(target + chunk * range_block_rows * swizzled_row_bytes + i * 16, uint4{});
        fence_async_proxy();
        sync_warpgroup(own_consumer());
    }

    __device__ __forceinline__ static void release(Mbarrier &empty) {
        if (thread_of_warpgroup() == 0)
            empty.arrive();
    }

    // Returns consumer_, for uses that need not be uniform. It is read anew, like the thread's number: the compiler
    // would keep what depends on it in registers.
    __device__ __forceinline__ static int own_consumer() {
        return warpgroup_of_thread() - 1;
    }

    static constexpr int chunk_bytes = row_block_rows * swizzled_row_bytes;

    const BackwardParams &params_;
    AllGradientsShared<Traits> &shared_;
    const int consumer_;
    PipelineState<Traits::stages> stage_;
    unsigned d_q_count_ = 0;
};

} // namespace annulus
