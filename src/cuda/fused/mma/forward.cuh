// SPDX-License-Identifier: Apache-2.0
// The fused forward kernel on mma.sync, for compute capability 7.5 and newer: what sm90/forward.cuh computes, with the
// same tiles, masks and epilogue.
//
// Grid. As many CTAs as the GPU's multiprocessors hold; each takes tiles until there are none left (next_tile.cuh).
//
// Roles. Every warp copies, and computes strips of one row block. Of each block of a range K is copied beside the
// softmax and P V of the block before, V beside Q K^T: one block of each is in shared memory at a time.
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
    static constexpr bool of_keys = Traits::of_keys;
    static constexpr int range_block_rows = Traits::range_block_rows;
    std::uint8_t queries[Traits::row_blocks * Traits::row_block_bytes];
    std::uint8_t k[Traits::stage_bytes], v[Traits::stage_bytes];
    Tile<Traits::row_blocks> tile;
    TileSearch search;
};

template <class Traits> class ForwardWarp {
  public:
    __device__ __forceinline__ ForwardWarp(const ForwardParams &params, ForwardShared<Traits> &shared)
        : params_(params), shared_(shared) {}

    __device__ __forceinline__ void run() {
        for_each_tile(params_, shared_, [this] { attend(); });
    }

  private:
    using Element = typename Traits::Element;
    static constexpr int range_block_rows = Traits::range_block_rows, columns = Traits::head_dim,
                         strips = Traits::strips;
    using Cursor = BlockCursor<Traits::row_blocks>;

    // What a thread holds during a tile.
    struct Registers {
        float o[strips][columns / 2], s[strips][range_block_rows / 2];
        RunningSoftmax softmax[strips];
    };

    __device__ __forceinline__ static int own_row_block() { return row_block_of_warp<strips>(); }

    __device__ __forceinline__ void attend() {
        const Tile<Traits::row_blocks> &tile = shared_.tile;
        copy_row_blocks<Traits>(shared_address(shared_.queries), params_.head_dim, params_.q, tile.head, tile,
                                [&](int position) {
                                    return params_.query_order ? static_cast<std::int64_t>(params_.query_row(position))
                                                               : static_cast<std::int64_t>(position - params_.q.start);
                                });
        Cursor at(tile);
        BlockSource<Traits> keys, values;
        const auto copy = [&](BlockSource<Traits> &source, std::uint8_t *target, const TensorRows &matrix) {
            if (at.is_first)
                source.enter(params_, matrix, tile.batch, tile.head / params_.heads_of_kv_head, tile.range[at.range]);
            source.copy(shared_address(target), params_.head_dim);
            source.advance();
        };
        if (!at.is_over(tile))
            copy(keys, shared_.k, params_.k);
        end_copies();
        const float padding_keys = tile.row_block[own_row_block()].padding_keys;
        Registers x = make_registers(padding_keys, std::make_integer_sequence<int, strips>());
        if (at.is_over(tile)) {
            await_copies<0>();
            __syncthreads();
        }
        while (!at.is_over(tile)) {
            await_copies<0>();
            __syncthreads(); // K is there, and nobody reads V any more
            copy(values, shared_.v, params_.v);
            end_copies();
            const Range<Traits::row_blocks> &range = tile.range[at.range];
            const RangePart &own = range.part[own_row_block()];
            const bool meets = at.block < own.blocks;
            if (meets)
                multiply_rows<Element, columns, range_block_rows>(x.s, own_queries(), first_row_of_warp<strips>(),
                                                                  shared_address(shared_.k));
            await_copies<0>();
            __syncthreads(); // V is there, and nobody reads K any more
            const int block = at.block;
            at.advance(tile);
            if (!at.is_over(tile))
                copy(keys, shared_.k, params_.k);
            end_copies();
            if (!meets)
                continue;
            if (block >= own.full_blocks)
                take_block<true>(x, range, own, block);
            else
                take_block<false>(x, range, own, block);
        }
        write(x);
    }

    template <int... numbers>
    __device__ __forceinline__ static Registers make_registers(float padding_keys,
                                                               std::integer_sequence<int, numbers...>) {
        Registers x{{}, {}, {(static_cast<void>(numbers), RunningSoftmax(padding_keys))...}};
        return x;
    }

    // The softmax of S, and O += P V.
    template <bool hides>
    __device__ __forceinline__ void take_block(Registers &x, const Range<Traits::row_blocks> &range,
                                               const RangePart &own, int block) const {
        std::uint32_t p[strips][range_block_rows / 4];
        float weight[2];
        load_weights(own, FragmentThread<>().column(), weight, [](float count) { return log2_fast(count); });
        for_each_strip<strips>([&](auto at, auto strip) {
            float(&s)[range_block_rows / 2] = x.s[strip];
            if constexpr (hides) {
                refuse_infinite(s);
                Mask<false, range_block_rows> mask{at.column(), {}};
                const RowBlock &row_block = shared_.tile.row_block[own_row_block()];
#pragma unroll
                for (int r = 0; r < 2; ++r)
                    mask.seen[r] =
                        (params_.causal ? range.template visible<false>(row_block.position(at.row(r))) : range.count) -
                        block * range_block_rows;
                hide<range_block_rows>(s, mask);
            }
            x.softmax[strip].template update<hides, !hides, 2>(s, params_.scale_log2, params_.inverse_scale_log2,
                                                               weight);
            pack<Element>(p[strip], s);
        });
        bool moves = false; // one question for all strips, so that their exponentials can be computed side by side
#pragma unroll
        for (const RunningSoftmax &softmax : x.softmax)
            moves |= softmax.scale[0] != 1.f || softmax.scale[1] != 1.f;
        if (__any_sync(~0u, moves))
#pragma unroll
            for (int s = 0; s < strips; ++s)
                x.softmax[s].template rescale<false>(x.o[s]);
        add_product_of<Element, columns, range_block_rows>(x.o, p, shared_address(shared_.v));
    }

    __device__ __forceinline__ std::uint32_t own_queries() const {
        return shared_address(shared_.queries) + own_row_block() * Traits::row_block_bytes;
    }

    // A warp's rows of O are staged in the place of its rows of Q, which no other warp reads.
    __device__ __forceinline__ void write(Registers &x) const {
        const Tile<Traits::row_blocks> &tile = shared_.tile;
        const int u = own_row_block();
        if (tile.row_block[u].rows == 0 || (params_.skips_empty && !tile.meets_any(u)))
            return;
        for_each_strip<strips>([&](auto at, auto strip) {
            const auto sync = [] { __syncwarp(); };
            ForwardEpilogue<Element, columns, Traits::row_blocks, decltype(at), decltype(sync)>(params_, tile, u,
                                                                                                own_queries(), sync)
                .write(x.o[strip], x.softmax[strip]);
        });
    }

    const ForwardParams &params_;
    ForwardShared<Traits> &shared_;
};

template <class Traits>
__global__ void __launch_bounds__(Traits::threads, Traits::ctas)
    forward_kernel(const __grid_constant__ ForwardParams params) {
    extern __shared__ __align__(128) std::uint8_t memory[];
    static_assert(sizeof(ForwardShared<Traits>) <= Traits::most_bytes);
    ForwardWarp<Traits>(params, *reinterpret_cast<ForwardShared<Traits> *>(memory)).run();
}

} // namespace annulus::mma
