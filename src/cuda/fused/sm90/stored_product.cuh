// SPDX-License-Identifier: Apache-2.0
// dQ = scale dS K from stored dS, by the consumer warpgroups. Each has two of a tile's four row blocks of queries, and
// goes through the row blocks of keys. If the keys come in slices, it adds the sums of a slice to those of earlier
// slices, in the order of the keys, so that the bits of dQ repeat.
#pragma once

#include "cuda/fused/math/backward_epilogue.cuh"
#include "cuda/fused/sm90/backward_params.hpp"
#include "cuda/fused/sm90/backward_shared.cuh"
#include "cuda/fused/sm90/reduce_partial_rows.cuh"
#include "cuda/fused/sm90/tma.cuh"
#include "cuda/fused/sm90/wgmma.cuh"

#include <cstdint>
#include <type_traits>

namespace annulus {

template <class Traits> class StoredProduct {
  public:
    __device__ __forceinline__ StoredProduct(const BackwardParams &params, BackwardShared<Traits> &shared, int consumer)
        : params_(params), shared_(shared), consumer_(consumer) {}

    // Finds dQ of a tile. `slot` is the slot of row blocks where the tile's stages are. `stages` is how many stages
    // came before the tile's.
    __device__ __forceinline__ void find_d_q(const StoredTile &tile, int slot, unsigned stages) const {
        PipelineState<Traits::stored_stages> place{stages};
        const int row_block = tile.first_row_block + consumer_ * Traits::stored_row_blocks;
        float x[columns / 2], y[columns / 2];
#pragma unroll
        for (int i = 0; i < columns / 2; ++i)
            x[i] = y[i] = 0;
        const std::uint32_t images = smem_descriptor_start(shared_.stored_images(slot) +
                                                           consumer_ * BackwardShared<Traits>::stored_images_bytes);
        const std::uint32_t keys =
            smem_descriptor_start(shared_.stored_keys(slot), row_block_rows * swizzled_row_bytes);
        // Under causality, the first of the two row blocks sees the row blocks of keys up to its own. The second one
        // sees one more.
        const int all = uniform(tile.end_key_block - tile.first_key_block);
        const int seen_by_first = tile.seen_by_all + row_block + 1 - tile.first_key_block;
        const int first_key_blocks = min(all, max(seen_by_first, 0)),
                  second_key_blocks = min(all, max(seen_by_first + 1, 0));
        // Keys of the class, from the current stage on.
        int present = tile.keys - tile.first_key_block * row_block_rows;
        bool is_pending = false;
        const auto multiply = [&](auto has_first) {
            const int stage = place.slot();
            shared_.stored_full[stage].wait(place.parity_to_empty());
            const std::uint32_t left = images + stage * (BackwardShared<Traits>::stored_stage_bytes / 16);
            const std::uint32_t right = keys + BackwardShared<Traits>::stored_keys_offset(place.count) / 16 +
                                        place.count % 2 * (Traits::stored_keys * swizzled_row_bytes / 16);
            if (present < Traits::stored_keys)
                clear_absent_rows(max(present, 0), address_of_descriptor(left), address_of_descriptor(right));
            present -= Traits::stored_keys;
            fence_registers(x);
            fence_registers(y);
            wgmma_fence();
#pragma unroll
            for (int i = 0; i < Traits::stored_keys / 16; ++i) {
                const std::uint32_t offset = i * 16 * swizzled_row_bytes / 16;
                if constexpr (decltype(has_first)::value)
                    WgmmaSsMnMajor<Element, columns>::run(x, smem_descriptor(left + offset),
                                                          smem_descriptor(right + offset));
                WgmmaSsMnMajor<Element, columns>::run(y, smem_descriptor(left + StoredDs::half_bytes / 16 + offset),
                                                      smem_descriptor(right + offset));
            }
            wgmma_commit();
            wgmma_wait<1>();
            fence_registers(x);
            fence_registers(y);
            if (is_pending)
                release(place.count - 1);
            is_pending = true;
            ++place.count;
        };
        int block = 0;
#pragma unroll 1
        for (; block < 2 * first_key_blocks; ++block)
            multiply(std::true_type{});
#pragma unroll 1
        for (; block < 2 * second_key_blocks; ++block)
            multiply(std::false_type{});
        wgmma_wait<0>();
        fence_registers(x);
        fence_registers(y);
        if (is_pending)
            release(place.count - 1);
        for (; block < 2 * all; ++block, ++place.count) {
            // The whole warpgroup must have seen a stage before it is released.
            shared_.stored_full[place.slot()].wait(place.parity_to_empty());
            sync_warpgroup(consumer_);
            release(place.count);
        }
        if (params_.stored_d_s.slices > 1 && !add_slices(tile, x, y))
            return;
        sync_warpgroup(consumer_); // no warp's products read the stages any more
        const std::uint32_t staging = shared_.stored_results(slot, consumer_);
#pragma unroll 1 // one code for both
        for (int i = 0; i < Traits::stored_row_blocks; ++i) {
            write(tile, row_block + i, x, staging + i * BackwardShared<Traits>::stored_results_distance);
            if constexpr (BackwardShared<Traits>::stored_results_distance == 0)
                __syncwarp(); // each warp stages and reads its own rows
#pragma unroll
            for (int j = 0; j < columns / 2; ++j)
                x[j] = y[j];
        }
    }

  private:
    using Element = typename Traits::Element;
    static constexpr int columns = Traits::head_dim;
    static_assert(Traits::stored_keys * 2 == row_block_rows && Traits::consumers == StoredDs::consumers_of_tile);

    __device__ __forceinline__ void release(unsigned count) const {
        if (thread_of_warpgroup() == 0)
            shared_.stored_empty[PipelineState<Traits::stored_stages>{count}.slot()].arrive();
    }

    // Adds the sums of earlier slices. Returns true for the tile's last slice. For any other slice it stores the sums;
    // another CTA may add the next slice.
    __device__ __forceinline__ bool add_slices(const StoredTile &tile, float (&x)[columns / 2],
                                               float (&y)[columns / 2]) const {
        const StoredDs &stored = params_.stored_d_s;
        const std::int64_t part = std::int64_t{tile.sum_slot} * Traits::consumers + consumer_;
        unsigned *const counter = stored.sum_counters + part;
        if (thread_of_warpgroup() == 0) {
            unsigned now;
            do
                asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(counter) : "memory");
            while (now != tile.sum_counter);
        }
        sync_warpgroup(consumer_);
        const std::int64_t floats_of_consumer = StoredDs::sum_floats(params_.head_dim) / Traits::consumers;
        float4 *const sums =
            reinterpret_cast<float4 *>(stored.sums + part * floats_of_consumer) + thread_of_warpgroup();
        // Calls use(four sums of the thread, where they are in memory).
        const auto for_each_four = [&](const auto &use) {
#pragma unroll
            for (int i = 0; i < columns / 8; ++i)
                if (i * 8 < params_.head_dim) {
                    use(x + 4 * i, sums[2 * i * warpgroup_threads]);
                    use(y + 4 * i, sums[(2 * i + 1) * warpgroup_threads]);
                }
        };
        if (tile.first_key_block > 0)
            for_each_four([](float *four, const float4 &stored_four) {
                const float4 before = __ldcg(&stored_four);
                four[0] += before.x;
                four[1] += before.y;
                four[2] += before.z;
                four[3] += before.w;
            });
        const bool is_last = tile.end_key_block == tile.key_blocks;
        if (!is_last)
            for_each_four([](const float *four, float4 &target) {
                __stcg(&target, float4{four[0], four[1], four[2], four[3]});
            });
        __threadfence();
        sync_warpgroup(consumer_);
        if (thread_of_warpgroup() == 0)
            asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(counter), "r"(tile.next_sum_counter) : "memory");
        return is_last;
    }

    // Clears what a stage has beyond its `present` keys of the class. These rows of K are of other segments and may be
    // infinite, and so may be what stands for their dS.
    __device__ __forceinline__ void clear_absent_rows(int present, std::uint32_t images, std::uint32_t keys) const {
        for (int i = present * 8 + thread_of_warpgroup(); i < Traits::stored_keys * 8; i += warpgroup_threads) {
#pragma unroll
            for (int u = 0; u < Traits::stored_row_blocks; ++u)
                store_16_bytes(images + u * StoredDs::half_bytes + i * 16, uint4{});
#pragma unroll
            for (int chunk = 0; chunk < Traits::chunks; ++chunk)
                store_16_bytes(keys + chunk * row_block_rows * swizzled_row_bytes + i * 16, uint4{});
        }
        fence_async_proxy();
        sync_warpgroup(consumer_);
    }

    __device__ __forceinline__ void write(const StoredTile &tile, int index, float (&x)[columns / 2],
                                          std::uint32_t staging) const {
        if (index >= tile.row_blocks())
            return;
        const BackwardWork &work = params_.query_work;
        BackwardEpilogue<Element, columns, false, Traits::order, FragmentThread<>, RowBlockFromLast, ReducePartialRows>(
            work, work.destination, tile.batch, tile.batch, tile.head, tile.row_block(index))
            .write(x, work.scale, staging, work.d_q_or_k, work.partial_d_q_or_k);
    }

    const BackwardParams &params_;
    BackwardShared<Traits> &shared_;
    const int consumer_;
};

} // namespace annulus
