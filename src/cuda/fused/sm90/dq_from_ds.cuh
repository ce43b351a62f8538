// SPDX-License-Identifier: Apache-2.0
// dQ = scale dS K from the dS that a kernel over row blocks of keys has stored (backward.cuh), for the only branch of a
// plan.
//
// Grid. As many CTAs as the GPU has multiprocessors; each takes every so many tiles. A tile is four row blocks of 64
// queries, neighbours in a class; two consumers have two of them each and go through the row blocks of keys, whose
// images of dS lie next to one another for the four.
//
// Roles. One thread of warpgroup 0 copies; its other warps clear rows that no row block has, after they have copied K
// along a curve; warpgroups 1 and 2 compute. Shared memory: stages of four images and 64 rows of K, filled by copies
// and emptied by the consumers; a row block of dQ for each consumer on its way out.
#pragma once

#include "cuda/device/warp.cuh"
#include "cuda/fused/math/backward_epilogue.cuh"
#include "cuda/fused/math/stored_tile.cuh"
#include "cuda/fused/sm90/backward_traits.hpp"
#include "cuda/fused/sm90/clear_rows.cuh"
#include "cuda/fused/sm90/copy_in_order.cuh"
#include "cuda/fused/sm90/mbarrier.cuh"
#include "cuda/fused/sm90/other_work.cuh"
#include "cuda/fused/sm90/setmaxnreg.cuh"
#include "cuda/fused/sm90/tma.cuh"
#include "cuda/fused/sm90/wgmma.cuh"

#include <cstdint>
#include <type_traits>

namespace annulus {

template <class Element_, int head_dim_, RowOrder order_> struct DqFromDsTraits {
    using Element = Element_;
    static constexpr int head_dim = head_dim_;
    static constexpr RowOrder order = order_;
    static constexpr bool in_order = order == RowOrder::along_curve;
    static constexpr int chunks = (head_dim + 63) / 64;
    static constexpr int consumers = 2, row_blocks_of_consumer = 2, row_blocks = StoredDs::row_blocks_of_tile;
    static_assert(row_blocks == consumers * row_blocks_of_consumer);
    using Registers = WarpgroupRegisters<consumers>;
    static constexpr int threads = Registers::threads;
    static constexpr int stages = 4;
    static constexpr int clearing_warps = 3;
    static constexpr int row_block_bytes = row_block_rows * chunks * swizzled_row_bytes;
    // Whose tensor maps of K it uses.
    static_assert(BackwardTraits<Element, head_dim, Gradients::d_q, order>::range_block_rows == row_block_rows);
};

template <class Traits> struct DqFromDsShared {
    struct Stage {
        std::uint8_t d_s[Traits::row_blocks][StoredDs::image_bytes];
        std::uint8_t keys[Traits::row_block_bytes];
    } stages[Traits::stages];
    std::uint8_t staging[Traits::consumers][Traits::row_block_bytes];
    Mbarrier full[Traits::stages], empty[Traits::stages];
    int pieces_begun; // of rows to be cleared
};

template <class Traits>
__device__ __forceinline__ void copy_stored(const BackwardParams &params, DqFromDsShared<Traits> &shared) {
    PipelineState<Traits::stages> place;
    for_each_stored_tile(params, [&](const StoredTile &tile) {
        const int row_blocks = min(Traits::row_blocks, tile.row_blocks - tile.first_row_block);
        const int row = tile.first_key - params.first_range_row, residue = row % tile.stride, index = row / tile.stride;
        for (int keys = 0; keys < tile.keys; ++keys, ++place.count) {
            auto &stage = shared.stages[place.slot()];
            Mbarrier &full = shared.full[place.slot()];
            shared.empty[place.slot()].wait(place.parity_to_fill());
            const int hidden = params.kept.is_triangle ? max(keys - tile.first_row_block, 0) : 0; // row blocks
            const unsigned bytes = (row_blocks - hidden) * StoredDs::image_bytes;
            full.arrive_expecting(Traits::in_order ? bytes : bytes + Traits::row_block_bytes);
            bulk_load(shared_address(stage.d_s[hidden]),
                      params.kept.image(tile.batch, tile.head, tile.segment, keys) +
                          (tile.first_row_block + hidden) * StoredDs::image_bytes,
                      bytes, full);
            if constexpr (!Traits::in_order)
#pragma unroll
                for (int chunk = 0; chunk < Traits::chunks; ++chunk)
                    // Rows of whole classes: all residues have as many, whose map is the second of the stride's.
                    tma_load(shared_address(stage.keys) + chunk * row_block_rows * swizzled_row_bytes,
                             params.range_scores[1], full, chunk * 64, index + keys * row_block_rows, residue,
                             tile.head / params.heads_of_kv_head, tile.batch);
        }
    });
}

// Along a curve: K, by the other three warps, every third stage each.
template <class Traits>
__device__ __forceinline__ void copy_keys_in_order(const BackwardParams &params, DqFromDsShared<Traits> &shared) {
    using Element = typename Traits::Element;
    constexpr int warps = 3;
    const TensorRows &rows = params.range_score_rows;
    CopiesUnderWay copies;
    PipelineState<Traits::stages> place;
    for_each_stored_tile(params, [&](const StoredTile &tile) {
        const auto *const row_0 = rows.first_row<const Element>(tile.batch, tile.head / params.heads_of_kv_head);
        for (int keys = 0; keys < tile.keys; ++keys, ++place.count) {
            if (place.count % warps + 1 != static_cast<unsigned>(uniform(thread_of_warpgroup() / warp_threads)))
                continue;
            const RowsOfLanes<row_block_rows> own([&](int i) {
                return params.position_of<Traits::order>(tile.first_key + (keys * row_block_rows + i) * tile.stride) -
                       params.first_range_row;
            });
            copies.wait(shared.empty[place.slot()], place.parity_to_fill());
            copy_in_order<Traits::head_dim, row_block_rows>(shared_address(shared.stages[place.slot()].keys), row_0,
                                                            rows.row, params.head_dim, own, [](int, int) {});
            copies.add(shared.full[place.slot()]);
        }
    });
    copies.finish();
}

template <class Traits> class DqFromDsConsumer {
  public:
    __device__ __forceinline__ DqFromDsConsumer(const BackwardParams &params, DqFromDsShared<Traits> &shared, int index)
        : params_(params), shared_(shared), index_(index) {}

    __device__ __forceinline__ void run() {
        for_each_stored_tile(params_, [&](const StoredTile &tile) { find_d_q(tile); });
    }

  private:
    using Element = typename Traits::Element;
    static constexpr int columns = Traits::head_dim;

    __device__ __forceinline__ void find_d_q(const StoredTile &tile) {
        const int row_block = tile.first_row_block + index_ * Traits::row_blocks_of_consumer;
        const std::uint32_t stages = shared_address(shared_.stages);
        const std::uint32_t left =
            smem_descriptor_start(stages + index_ * Traits::row_blocks_of_consumer * StoredDs::image_bytes);
        const std::uint32_t right = smem_descriptor_start(stages + Traits::row_blocks * StoredDs::image_bytes,
                                                          row_block_rows * swizzled_row_bytes);
        float x[columns / 2], y[columns / 2];
#pragma unroll
        for (int i = 0; i < columns / 2; ++i)
            x[i] = y[i] = 0;
        const auto take_block = [&](auto use) {
            const int slot = place_.slot();
            shared_.full[slot].wait(place_.parity_to_empty());
            const std::uint32_t distance = slot * (sizeof(typename DqFromDsShared<Traits>::Stage) / 16);
            use(left + distance, right + distance);
            if (thread_of_warpgroup() == 0)
                shared_.empty[slot].arrive();
            ++place_.count;
        };
        const auto multiply = [&](auto has_first, std::uint32_t left_of_block, std::uint32_t right_of_block) {
            fence_registers(x);
            fence_registers(y);
            wgmma_fence();
#pragma unroll
            for (int i = 0; i < row_block_rows / 16; ++i) {
                const std::uint32_t offset = i * 16 * swizzled_row_bytes / 16;
                if constexpr (decltype(has_first)::value)
                    WgmmaSsMnMajor<Element, columns>::run(x, smem_descriptor(left_of_block + offset),
                                                          smem_descriptor(right_of_block + offset));
                WgmmaSsMnMajor<Element, columns>::run(
                    y, smem_descriptor(left_of_block + StoredDs::image_bytes / 16 + offset),
                    smem_descriptor(right_of_block + offset));
            }
            wgmma_commit();
            wgmma_wait<0>();
            fence_registers(x);
            fence_registers(y);
        };
        // Under causality the first of the two row blocks sees the keys up to its own, the second one more.
        const int all = uniform(tile.keys), of_first = params_.kept.is_triangle ? min(all, row_block + 1) : all;
        int keys = 0;
#pragma unroll 1
        for (; keys < of_first; ++keys)
            take_block([&](auto... starts) { multiply(std::true_type{}, starts...); });
        if (keys < all) {
            take_block([&](auto... starts) { multiply(std::false_type{}, starts...); });
            ++keys;
        }
        for (; keys < all; ++keys) // the whole warpgroup must have seen a stage before it is given back
            take_block([&](auto...) { sync_warpgroup(index_); });
        write(tile, row_block, x);
        write(tile, row_block + 1, y);
    }

    __device__ __forceinline__ void write(const StoredTile &tile, int index, float (&x)[columns / 2]) {
        if (index >= tile.row_blocks)
            return;
        const RowBlock row_block{tile.first + index * row_block_rows * tile.stride, tile.stride, row_block_rows, 1, 0};
        __syncwarp(); // the row block before is out
        BackwardEpilogue<Element, columns, false, Traits::order, FragmentThread<>>(params_, tile.batch, tile.head,
                                                                                   row_block)
            .write(x, params_.scale, shared_address(shared_.staging[index_]), params_.d_scores,
                   params_.partial_d_scores);
    }

    const BackwardParams &params_;
    DqFromDsShared<Traits> &shared_;
    const int index_;
    PipelineState<Traits::stages> place_;
};

template <class Traits>
__global__ void __launch_bounds__(Traits::threads, 1) dq_from_ds_kernel(const __grid_constant__ BackwardParams params) {
    extern __shared__ __align__(1024) std::uint8_t memory[];
    DqFromDsShared<Traits> &shared = *reinterpret_cast<DqFromDsShared<Traits> *>(memory);
    if (threadIdx.x == 0) {
        shared.pieces_begun = 0;
        for (int i = 0; i < Traits::stages; ++i) {
            shared.full[i].init(Traits::in_order ? 2 : 1);
            shared.empty[i].init(Traits::consumers);
        }
        publish_barriers();
    }
    __syncthreads();
    const int warpgroup = uniform(static_cast<int>(threadIdx.x) / warpgroup_threads);
    if (warpgroup == 0) {
        shrink_registers<Traits::Registers::feeder>();
        if (threadIdx.x == 0)
            copy_stored(params, shared);
        if (Traits::in_order && threadIdx.x >= warp_threads)
            copy_keys_in_order(params, shared);
        if (threadIdx.x >= warp_threads)
            do_all(RowClearer<Traits>(params, shared.pieces_begun));
    } else {
        grow_registers<Traits::Registers::consumer>();
        DqFromDsConsumer<Traits>(params, shared, warpgroup - 1).run();
        do_all(RowClearer<Traits>(params, shared.pieces_begun));
    }
}

} // namespace annulus
