// SPDX-License-Identifier: Apache-2.0
// The fused backward kernels on mma.sync, for compute capability 7.5 and newer. They compute what sm90/backward.cuh
// computes, with the same tiles, masks and epilogue. One kernel text has row blocks of queries (dQ) or of keys (dK and
// dV).
//
// Grid. CTAs fill the GPU's multiprocessors. Each takes tiles until none are left (next_tile.cuh).
//
// Roles. Every warp copies, and computes strips of one row block, whose rows it copies itself. P and dS stay in its
// registers, where they are operands of the last products. If shared memory has two stages, the next block is copied
// beside the products of the current block, else after them. Behind the last block of a tile comes the first block of
// the next tile, which has been found by then.
#pragma once

#include "cuda/device/warp.cuh"
#include "cuda/fused/math/backward_epilogue.cuh"
#include "cuda/fused/math/gradients.cuh"
#include "cuda/fused/math/scores.cuh"
#include "cuda/fused/mma/copy_rows.cuh"
#include "cuda/fused/mma/next_tile.cuh"
#include "cuda/fused/mma/params.hpp"
#include "cuda/fused/mma/products.cuh"
#include "cuda/fused/mma/strips.cuh"
#include "cuda/fused/mma/traits.hpp"

#include <cstdint>

namespace annulus::mma {

template <class Traits> struct BackwardShared {
    static constexpr bool rows_are_keys = Traits::rows_are_keys, stores_d_s = Traits::stores_d_s;
    static constexpr int range_block_rows = Traits::range_block_rows;
    // For dV alone, V of row blocks is not needed.
    std::uint8_t own_q_or_k[Traits::row_blocks * Traits::row_block_bytes],
        own_v_or_d_o[Traits::has_d_q_or_k ? Traits::row_blocks * Traits::row_block_bytes : 128];
    struct RangeRows {
        std::uint8_t q_or_k[Traits::stage_bytes], v_or_d_o[Traits::stage_bytes];
    } range_rows[Traits::stages];
    // LSE and delta of the queries of a stage, or of a tile's row blocks.
    static constexpr int statistic_slots = rows_are_keys ? Traits::stages : 1;
    static constexpr int statistics = rows_are_keys ? range_block_rows : Traits::row_blocks * row_block_rows;
    alignas(8) float lse_log2[statistic_slots][statistics], delta[statistic_slots][statistics];
    std::uint8_t *images[Traits::threads / warp_threads]; // of the warps' row blocks, if dS is stored
    Tile<Traits::row_blocks> tiles[tile_slots];
    TileSearch search;
};

template <class Traits> class BackwardWarp {
  public:
    __device__ __forceinline__ BackwardWarp(const BackwardParams &params, BackwardShared<Traits> &shared)
        : params_(params), shared_(shared), scheduler_(params, shared) {}

    __device__ __forceinline__ void run() {
        scheduler_.for_each([this](const OwnTile &tile, OwnTile &next) { find_gradients(tile, next); });
    }

  private:
    using Element = typename Traits::Element;
    static constexpr int range_block_rows = Traits::range_block_rows, columns = Traits::head_dim,
                         strips = Traits::strips, stages = Traits::stages;
    static constexpr bool rows_are_keys = Traits::rows_are_keys;
    using OwnTile = Tile<Traits::row_blocks>;
    using Cursor = BlockCursor<Traits::row_blocks>;
    using OwnRange = Range<Traits::row_blocks>;

    // What a thread holds in registers during a tile.
    struct Registers {
        float d_q_or_k[Traits::has_d_q_or_k ? strips : 1][Traits::has_d_q_or_k ? columns / 2 : 1],
            d_v[Traits::has_d_v ? strips : 1][Traits::has_d_v ? columns / 2 : 1];
    };

    __device__ __forceinline__ static int own_row_block() { return row_block_of_warp<strips>(); }

    // Finds the gradients of the tile, whose first block is copied already, and copies the first block of the next
    // tile.
    __device__ __forceinline__ void find_gradients(const OwnTile &tile, OwnTile &next) {
        copy_rows_of_warp(tile);
        commit_copies();
        if (Traits::stores_d_s && tile.ranges > 0 && tile.row_block[own_row_block()].rows > 0)
            find_images(tile);
        Registers x{};
        Cursor at(tile);
        // The next tile is taken before the last block, not earlier: the longest tiles are for the CTAs that are free
        // first.
        if (at.is_last(tile))
            scheduler_.take_next();
        do {
            if (at.is_last(tile))
                scheduler_.find_next(next);
            wait_for_copies<0>();
            __syncthreads(); // the block has come, and the one before is free
            const bool is_empty = at.is_over(tile);
            const int stage = stage_;
            const OwnRange &range = tile.range[at.range];
            const SeenBlocks &own = range.part[own_row_block()];
            const int block = at.block;
            if constexpr (stages > 1)
                copy_next(tile, next, at);
            if (!is_empty && own.meets(range.hides_first, block)) {
                if (block >= own.full_blocks)
                    process_block<true>(x, tile, range, own, block, stage);
                else
                    process_block<false>(x, tile, range, own, block, stage);
            }
            if constexpr (stages == 1) {
                __syncthreads();
                copy_next(tile, next, at);
            }
        } while (!at.is_over(tile));
        write(tile, x);
    }

    // ---- Copies.

    __device__ __forceinline__ void copy_rows_of_warp(const OwnTile &tile) {
        const int head = rows_are_keys ? tile.head / params_.heads_of_kv_head : tile.head;
        const auto row_of = [&](int position) { return static_cast<std::int64_t>(params_.row_of(position)); };
        copy_own_rows<Traits>(shared_address(shared_.own_q_or_k), params_.head_dim, params_.row_q_or_k, head, tile,
                              row_of);
        if constexpr (Traits::has_d_q_or_k)
            copy_own_rows<Traits>(shared_address(shared_.own_v_or_d_o), params_.head_dim, params_.row_v_or_d_o, head,
                                  tile, row_of);
        if constexpr (!rows_are_keys) {
            const RowBlock &row_block = tile.row_block[own_row_block()];
            const int lane = thread_of_block() % warp_threads;
            if (lane < strips * 16) {
                const int row = first_row_of_warp<strips>() + lane;
                const bool present = row < row_block.rows;
                copy_statistics(0, own_row_block() * row_block_rows + row,
                                first_statistic(tile) + (present ? params_.row_of(row_block.position(row)) : 0),
                                present);
            }
        }
    }

    // Copies the block behind `at`, or the next tile's first block, to the next stage. `at` goes there.
    __device__ __forceinline__ void copy_next(const OwnTile &tile, const OwnTile &next, Cursor &at) {
        scheduler_.copy_next(tile, next, at,
                             [this](const OwnTile &source_tile, const Cursor &to) { copy(source_tile, to); });
    }

    __device__ __forceinline__ void copy(const OwnTile &tile, const Cursor &at) {
        stage_ = stages == 1 ? 0 : stage_ ^ 1;
        const OwnRange &range = tile.range[at.range];
        if (at.is_first) {
            const int head = rows_are_keys ? tile.head : tile.head / params_.heads_of_kv_head;
            q_or_k_ = {params_, params_.range_q_or_k, tile.batch, head, range};
            v_or_d_o_ = {params_, params_.range_v_or_d_o, tile.batch, head, range};
        }
        auto &[q_or_k, v_or_d_o] = shared_.range_rows[stage_];
        copy_block<Traits>(params_, range, at.block, params_.head_dim,
                           {{q_or_k_, params_.range_q_or_k, q_or_k}, {v_or_d_o_, params_.range_v_or_d_o, v_or_d_o}});
        if constexpr (rows_are_keys) {
            const std::int64_t offset = first_statistic(tile) + range.first - params_.first_range_row;
            for (int i = static_cast<int>(threadIdx.x); i < range_block_rows; i += Traits::threads) {
                const int row = range.count - (at.block + 1) * range_block_rows + i; // blocks count from the last query
                const bool present = row >= 0;
                copy_statistics(stage_, i, offset + (present ? std::int64_t{row} * range.stride : 0), present);
            }
        }
        commit_copies();
    }

    // Returns the index of the first statistic of the tile's batch entry and head.
    __device__ __forceinline__ std::int64_t first_statistic(const OwnTile &tile) const {
        return (std::int64_t{tile.batch} * params_.all_heads + tile.head) * params_.statistic_rows;
    }
    __device__ __forceinline__ void copy_statistics(int slot, int i, std::int64_t source, bool present) {
        copy_to_shared<4>(shared_address(&shared_.lse_log2[slot][i]), params_.lse_log2 + source, present);
        copy_to_shared<4>(shared_address(&shared_.delta[slot][i]), params_.delta + source, present);
    }

    // ---- Products.

    template <bool hides>
    __device__ __forceinline__ void process_block(Registers &x, const OwnTile &tile, const OwnRange &range,
                                                  const SeenBlocks &own, int block, int stage) const {
        const std::uint32_t q_or_k = shared_address(shared_.range_rows[stage].q_or_k),
                            v_or_d_o = shared_address(shared_.range_rows[stage].v_or_d_o);
        const int own_rows = own_row_block() * Traits::row_block_bytes, first = first_row_of_warp<strips>();
        float s[strips][range_block_rows / 2];
        multiply_rows<Element, columns, range_block_rows>(s, shared_address(shared_.own_q_or_k) + own_rows, first,
                                                          q_or_k);
        float weight[2];
        load_weights(own, FragmentThread<>().column(), weight, [](float count) { return log2_fast(count); });
        Operand<Element, range_block_rows / 2> p[strips];
        for_each_strip<strips>([&](auto at, auto strip) {
            find_probabilities<hides>(s[strip], params_.scale_log2, weight, statistic(shared_.lse_log2, at, stage),
                                      find_mask<hides>(at, tile, range, block));
            if constexpr (hides)
                clear_first(s[strip], at, tile, range, block);
            if constexpr (Traits::has_d_v)
                set_operand(p[strip], s[strip]);
        });
        if constexpr (Traits::has_d_v)
            add_block_product<Element, columns, range_block_rows>(x.d_v, p, v_or_d_o);
        if constexpr (Traits::has_d_q_or_k) {
            float d_p[strips][range_block_rows / 2];
            multiply_rows<Element, columns, range_block_rows>(d_p, shared_address(shared_.own_v_or_d_o) + own_rows,
                                                              first, v_or_d_o);
            Operand<Element, range_block_rows / 2> d_s[strips];
            for_each_strip<strips>([&](auto at, auto strip) {
                if constexpr (hides)
                    clear_first(d_p[strip], at, tile, range, block);
                // If P has been rounded for a product already, dS is computed from the rounded P, for fewer registers.
                const auto p_at = [&](int j) {
                    if constexpr (Traits::has_d_v)
                        return p[strip].two(j);
                    else
                        return float2{s[strip][j], s[strip][j + 1]};
                };
                find_d_s<hides>(d_p[strip], p_at, statistic(shared_.delta, at, stage),
                                find_mask<hides>(at, tile, range, block),
                                [&](int j, const float2 &two) { d_s[strip].set_two(j, two); });
            });
            if constexpr (Traits::stores_d_s)
                store_d_s(d_s,
                          quotient_up(range.count, row_block_rows) * row_block_rows - (block + 1) * range_block_rows);
            add_block_product<Element, columns, range_block_rows>(x.d_q_or_k, d_s, q_or_k);
        }
    }

    // ---- Stored dS.

    // Finds where the images of the row block begin. The row block counts from the first keys of its class in the
    // segment.
    __device__ __forceinline__ void find_images(const OwnTile &tile) {
        const RowBlock &row_block = tile.row_block[own_row_block()];
        const FastDivmod &length = params_.branches[0].length;
        const int segment = length.quotient(row_block.first);
        const int first = max(segment * length.value, params_.sequence.row_start);
        if (thread_of_block() % warp_threads == 0)
            shared_.images[thread_of_block() / warp_threads] = params_.stored_d_s.image(
                tile.batch, tile.head, segment, (row_block.first - first) / row_block.stride / row_block_rows,
                params_.stored_d_s.launch_pass);
        __syncwarp();
    }

    // Stores dS as 8 x 8 matrices; matrices of the same eight keys are neighbours. A block's queries are columns of an
    // image. `first` counts columns from the first image on. Images count from the last query of the class and pass.
    __device__ __forceinline__ void store_d_s(const Operand<Element, range_block_rows / 2> (&d_s)[strips],
                                              int first) const {
        static_assert(row_block_rows % range_block_rows == 0);
        std::uint8_t *const own = shared_.images[thread_of_block() / warp_threads] +
                                  first / row_block_rows * StoredDs::image_bytes +
                                  (first_row_of_warp<strips>() + first % row_block_rows / 8) * matrix_bytes +
                                  thread_of_block() % warp_threads * 4;
#pragma unroll
        for (int s = 0; s < strips; ++s)
#pragma unroll
            for (int i = 0; i < range_block_rows / 4; ++i)
                *reinterpret_cast<std::uint32_t *>(own + ((s * 2 + i % 2) * 8 + i / 2) * matrix_bytes) =
                    d_s[s].pairs[i];
    }

    // ---- Masks, statistics and results.

    template <bool hides, class Thread>
    __device__ __forceinline__ Mask<rows_are_keys, range_block_rows> find_mask(const Thread &at, const OwnTile &tile,
                                                                               const OwnRange &range, int block) const {
        Mask<rows_are_keys, range_block_rows> mask{at.column(), {}};
        if constexpr (hides) {
            const RowBlock &row_block = tile.row_block[own_row_block()];
#pragma unroll
            for (int r = 0; r < 2; ++r)
                mask.visible_count[r] =
                    (params_.is_bounded() ? range.template visible<rows_are_keys>(row_block.position(at.row(r)))
                                          : range.count) -
                    block * range_block_rows;
        }
        return mask;
    }

    // Clears the elements of P, or of dP, whose columns a window hides because they are first rows of the range. If
    // both are 0, dS is 0.
    template <int count, class Thread>
    __device__ __forceinline__ static void clear_first(float (&x)[count], const Thread &at, const OwnTile &tile,
                                                       const OwnRange &range, int block) {
        if (!Traits::stores_d_s && range.hides_first) // dS of windows is not stored
            find_first_rows_mask<rows_are_keys, range_block_rows>(at, tile.row_block[own_row_block()], range, block)
                .overwrite(x, 0.f);
    }

    // Returns LSE or delta: of the queries of a block or, if row blocks are of queries, of the thread's rows.
    template <int slots, int rows, class Thread>
    __device__ __forceinline__ static auto statistic(const float (&query_statistic)[slots][rows], const Thread &at,
                                                     int stage) {
        if constexpr (rows_are_keys) {
            return ColumnStatistic{&query_statistic[stage][at.column()]};
        } else {
            RowStatistic row_statistic;
#pragma unroll
            for (int r = 0; r < 2; ++r)
                row_statistic.row[r] = query_statistic[0][own_row_block() * row_block_rows + at.row(r)];
            return row_statistic;
        }
    }

    // Writes a warp's rows. They are staged in the place of its own rows, which no other warp reads.
    __device__ __forceinline__ void write(const OwnTile &tile, Registers &x) const {
        const int u = own_row_block();
        const RowBlock &row_block = tile.row_block[u];
        if (row_block.rows == 0 || (params_.skips_empty && !tile.meets_any(u)))
            return;
        __syncwarp();
        const std::uint32_t q_or_k = shared_address(shared_.own_q_or_k) + u * Traits::row_block_bytes;
        const std::uint32_t v_or_d_o =
            Traits::has_d_q_or_k ? shared_address(shared_.own_v_or_d_o) + u * Traits::row_block_bytes : q_or_k;
        for_each_strip<strips>([&](auto at, auto strip) {
            const BackwardEpilogue<Element, columns, rows_are_keys, RowOrder::either, decltype(at)> epilogue(
                params_, params_.destination, tile.batch, tile.partial_batch, tile.head, row_block);
            if constexpr (Traits::has_d_q_or_k) {
                order_sums<Element>(x.d_q_or_k[strip]);
                epilogue.write(x.d_q_or_k[strip], params_.scale, q_or_k, params_.d_q_or_k, params_.partial_d_q_or_k);
            }
            if constexpr (Traits::has_d_v) {
                order_sums<Element>(x.d_v[strip]);
                epilogue.write(x.d_v[strip], 1.f, v_or_d_o, params_.d_v, params_.partial_d_v);
            }
        });
    }

    const BackwardParams &params_;
    BackwardShared<Traits> &shared_;
    BlockSource<Traits> q_or_k_, v_or_d_o_;
    TileScheduler<BackwardShared<Traits>, BackwardParams> scheduler_;
    int stage_ = 0; // the stage that was copied to last
};

template <class Traits>
__global__ void __launch_bounds__(Traits::threads, Traits::ctas)
    backward_kernel(const __grid_constant__ BackwardParams params) {
    extern __shared__ __align__(128) std::uint8_t memory[];
    static_assert(sizeof(BackwardShared<Traits>) <= Traits::max_shared_bytes);
    BackwardWarp<Traits>(params, *reinterpret_cast<BackwardShared<Traits> *>(memory)).run();
}

} // namespace annulus::mma
