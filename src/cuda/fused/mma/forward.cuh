// SPDX-License-Identifier: Apache-2.0
// The fused forward kernel on mma.sync, for compute capability 7.5 and newer. It computes what sm90/forward.cuh
// computes, with the same tiles, masks and epilogue.
//
// Grid. CTAs fill the GPU's multiprocessors. Each takes tiles until none are left (next_tile.cuh).
//
// Roles. Every warp copies, and computes strips of one row block, whose rows of Q it copies itself. If shared memory
// has two stages, K and V of a KV block are copied beside the block before. With one stage, K is copied beside the
// softmax and P V of the block before, and V beside Q K^T. KV blocks follow one another from tile to tile: a tile's
// first block is copied beside the last block of the tile before. The tile has been found by then.
#pragma once

#include "cuda/device/warp.cuh"
#include "cuda/fused/math/forward_epilogue.cuh"
#include "cuda/fused/math/scores.cuh"
#include "cuda/fused/math/softmax.cuh"
#include "cuda/fused/mma/copy_rows.cuh"
#include "cuda/fused/mma/next_tile.cuh"
#include "cuda/fused/mma/params.hpp"
#include "cuda/fused/mma/products.cuh"
#include "cuda/fused/mma/strips.cuh"
#include "cuda/fused/mma/traits.hpp"

#include <cstdint>

namespace annulus::mma {

template <class Traits> struct ForwardShared {
    static constexpr bool rows_are_keys = Traits::rows_are_keys, stores_d_s = false;
    static constexpr int range_block_rows = Traits::range_block_rows;
    std::uint8_t q[Traits::row_blocks * Traits::row_block_bytes];
    struct Block {
        std::uint8_t k[Traits::stage_bytes], v[Traits::stage_bytes];
    } blocks[Traits::stages];
    Tile<Traits::row_blocks> tiles[tile_slots];
    TileSearch search;
};

template <class Traits> class ForwardWarp {
  public:
    __device__ __forceinline__ ForwardWarp(const ForwardParams &params, ForwardShared<Traits> &shared)
        : params_(params), shared_(shared), scheduler_(params, shared) {}

    __device__ __forceinline__ void run() {
        scheduler_.for_each([this](const OwnTile &tile, OwnTile &next) { attend(tile, next); });
    }

  private:
    using Element = typename Traits::Element;
    static constexpr int range_block_rows = Traits::range_block_rows, columns = Traits::head_dim,
                         strips = Traits::strips, stages = Traits::stages;
    using OwnTile = Tile<Traits::row_blocks>;
    using Cursor = BlockCursor<Traits::row_blocks>;

    // What a thread holds in registers during a tile.
    struct Registers {
        float o[strips][columns / 2], s[strips][range_block_rows / 2];
        RunningSoftmax softmax[strips];
    };

    __device__ __forceinline__ static int own_row_block() { return row_block_of_warp<strips>(); }

    // Attends to the tile, whose first block is copied already, and copies the first block of the next tile.
    __device__ __forceinline__ void attend(const OwnTile &tile, OwnTile &next) {
        copy_own_rows<Traits>(shared_address(shared_.q), params_.head_dim, params_.q, tile.head, tile,
                              [this](int number) { return row_of_q(number); });
        commit_copies();
        Registers x =
            make_registers(tile.row_block[own_row_block()].padding_keys, std::make_integer_sequence<int, strips>());
        Cursor at(tile);
        // The next tile is taken before the last block, not earlier: the longest tiles are for the CTAs that are free
        // first.
        if (at.is_last(tile))
            scheduler_.take_next();
        do {
            if (at.is_last(tile))
                scheduler_.find_next(next);
            wait_for_copies<0>();
            __syncthreads(); // one stage: K has come, V is free; two: the block has come, the one before is free
            const bool is_empty = at.is_over(tile);
            const auto &[k, v] = shared_.blocks[stage_];
            const Range<Traits::row_blocks> &range = tile.range[at.range];
            const SeenBlocks &own = range.part[own_row_block()];
            const int block = at.block;
            const bool meets = !is_empty && own.meets(range.hides_first, block);
            if constexpr (stages > 1)
                copy_next(tile, next, at);
            else if (!is_empty)
                copy_v(range, block);
            if (meets)
                multiply_rows<Element, columns, range_block_rows>(x.s, own_q_rows(), first_row_of_warp<strips>(),
                                                                  shared_address(k));
            if constexpr (stages == 1) {
                wait_for_copies<0>();
                __syncthreads(); // V has come, and K is free
                copy_next(tile, next, at);
            }
            if (!meets)
                continue;
            if (block >= own.full_blocks)
                process_block<true>(x, tile, range, own, block, shared_address(v));
            else
                process_block<false>(x, tile, range, own, block, shared_address(v));
        } while (!at.is_over(tile));
        write(tile, x);
    }

    // ---- Copies.

    // Copies the block behind `at`, or the next tile's first block, to the next stage. `at` goes there.
    __device__ __forceinline__ void copy_next(const OwnTile &tile, const OwnTile &next, Cursor &at) {
        scheduler_.copy_next(tile, next, at,
                             [this](const OwnTile &source_tile, const Cursor &to) { copy(source_tile, to); });
        if (at.is_over(tile))
            prefetch_own_rows<Traits>(params_.head_dim, params_.q, next.head, next,
                                      [this](int number) { return row_of_q(number); });
    }
    __device__ __forceinline__ std::int64_t row_of_q(int number) const {
        return params_.position_of(number) - params_.q.start;
    }

    // Copies K of a block and, with two stages, V.
    __device__ __forceinline__ void copy(const OwnTile &tile, const Cursor &at) {
        stage_ = stages == 1 ? 0 : stage_ ^ 1;
        const auto &range = tile.range[at.range];
        if (at.is_first) {
            const int head = tile.head / params_.heads_of_kv_head;
            k_ = {params_, params_.k, tile.batch, head, range};
            v_ = {params_, params_.v, tile.batch, head, range};
        }
        auto &[k, v] = shared_.blocks[stage_];
        if constexpr (stages == 1)
            copy_block<Traits>(params_, range, at.block, params_.head_dim, {{k_, params_.k, k}});
        else
            copy_block<Traits>(params_, range, at.block, params_.head_dim, {{k_, params_.k, k}, {v_, params_.v, v}});
        commit_copies();
    }
    __device__ __forceinline__ void copy_v(const Range<Traits::row_blocks> &range, int block) {
        copy_block<Traits>(params_, range, block, params_.head_dim, {{v_, params_.v, shared_.blocks[stage_].v}});
        commit_copies();
    }

    // ---- Products.

    template <int... numbers>
    __device__ __forceinline__ static Registers make_registers(float padding_keys,
                                                               std::integer_sequence<int, numbers...>) {
        Registers x{{}, {}, {(static_cast<void>(numbers), RunningSoftmax(padding_keys))...}};
        return x;
    }

    // Computes the softmax of S, and O += P V.
    template <bool hides>
    __device__ __forceinline__ void process_block(Registers &x, const OwnTile &tile,
                                                  const Range<Traits::row_blocks> &range, const SeenBlocks &own,
                                                  int block, std::uint32_t v) const {
        Operand<Element, range_block_rows / 2> p[strips];
        float weight[2];
        load_weights(own, FragmentThread<>().column(), weight, [](float count) { return log2_fast(count); });
        for_each_strip<strips>([&](auto at, auto strip) {
            float(&s)[range_block_rows / 2] = x.s[strip];
            if constexpr (hides) {
                refuse_infinite(s);
                Mask<false, range_block_rows> mask{at.column(), {}};
                const RowBlock &row_block = tile.row_block[own_row_block()];
#pragma unroll
                for (int r = 0; r < 2; ++r)
                    mask.visible_count[r] =
                        (params_.is_bounded() ? range.template visible<false>(row_block.position(at.row(r)))
                                              : range.count) -
                        block * range_block_rows;
                hide<range_block_rows>(s, mask);
                if (range.hides_first)
                    find_first_rows_mask<false, range_block_rows>(at, row_block, range, block).overwrite(s, -INFINITY);
            }
            x.softmax[strip].template update<hides, !hides, 2, true>(s, params_.scale_log2, params_.inverse_scale_log2,
                                                                     weight);
            set_operand(p[strip], s);
        });
        bool moves = false; // asked once for all strips, so that their exponentials can be computed side by side
#pragma unroll
        for (const RunningSoftmax &softmax : x.softmax)
            moves |= softmax.scale[0] != 1.f || softmax.scale[1] != 1.f;
        if (__any_sync(~0u, moves))
#pragma unroll
            for (int s = 0; s < strips; ++s)
                x.softmax[s].rescale(x.o[s]);
        add_block_product<Element, columns, range_block_rows>(x.o, p, v);
    }

    __device__ __forceinline__ std::uint32_t own_q_rows() const {
        return shared_address(shared_.q) + own_row_block() * Traits::row_block_bytes;
    }

    // Writes a warp's rows of O. They are staged in the place of its rows of Q, which no other warp reads.
    __device__ __forceinline__ void write(const OwnTile &tile, Registers &x) const {
        const int u = own_row_block();
        if (tile.row_block[u].rows == 0 || (params_.skips_empty && !tile.meets_any(u)))
            return;
        for_each_strip<strips>([&](auto at, auto strip) {
            order_sums<Element>(x.o[strip]);
            ForwardEpilogue<Element, columns, Traits::row_blocks, RowOrder::either, decltype(at)>(params_, tile, u,
                                                                                                  own_q_rows())
                .write(x.o[strip], x.softmax[strip]);
        });
    }

    const ForwardParams &params_;
    ForwardShared<Traits> &shared_;
    BlockSource<Traits> k_, v_;
    TileScheduler<ForwardShared<Traits>, ForwardParams> scheduler_;
    int stage_ = 0; // the stage that was copied to last
};

template <class Traits>
__global__ void __launch_bounds__(Traits::threads, Traits::ctas)
    forward_kernel(const __grid_constant__ ForwardParams params) {
    extern __shared__ __align__(128) std::uint8_t memory[];
    static_assert(sizeof(ForwardShared<Traits>) <= Traits::max_shared_bytes);
    ForwardWarp<Traits>(params, *reinterpret_cast<ForwardShared<Traits> *>(memory)).run();
}

} // namespace annulus::mma
