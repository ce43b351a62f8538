// SPDX-License-Identifier: Apache-2.0
// dQ = scale dS K from stored dS, for the only branch of a plan. A kernel over row blocks of keys has stored it
// (backward.cuh).
//
// Grid. One CTA for each multiprocessor of the GPU; each takes one of every gridDim.x tiles. A tile is four row blocks
// of 64 queries, neighbours in a class. Their images of dS of the same keys lie next to one another. A launch has the
// queries of one pass (StoredDs). If tiles are few, the keys of each are divided among several CTAs. The CTA that ends
// last adds all their sums, in the order of the keys, so that the bits of dQ repeat.
//
// Roles. Every warp copies, and computes two strips of one row block. Stages of four images and 64 rows of K are copied
// ahead, from tile to tile. A tile's results go to memory by way of the stage that is copied to next.
#pragma once

#include "cuda/fused/math/backward_epilogue.cuh"
#include "cuda/fused/math/stored_tile.cuh"
#include "cuda/fused/mma/copy_rows.cuh"
#include "cuda/fused/mma/params.hpp"
#include "cuda/fused/mma/products.cuh"
#include "cuda/fused/mma/strips.cuh"
#include "cuda/fused/mma/traits.hpp"

#include <cstdint>

namespace annulus::mma {

template <class Traits> struct DqFromDsShared {
    struct Stage {
        std::uint8_t d_s[Traits::row_blocks][StoredDs::image_bytes];
        std::uint8_t keys[Traits::row_block_bytes];
    } stages[Traits::stages];
};

template <class Traits> class DqFromDsWarp {
  public:
    __device__ __forceinline__ DqFromDsWarp(const BackwardParams &params, DqFromDsShared<Traits> &shared)
        : params_(params), shared_(shared) {}

    __device__ __forceinline__ void run() {
        ahead_.next(params_);
        for (int i = 0; i < Traits::stages - 1; ++i)
            copy_next();
        StoredTiles tiles;
        for (SplitTile tile; tiles.next(params_, tile);)
            find_d_q(tile);
    }

  private:
    using Element = typename Traits::Element;
    using Stage = typename DqFromDsShared<Traits>::Stage;
    static constexpr int columns = Traits::head_dim, strips = Traits::strips;

    // Goes through the row blocks of keys of all tiles of the CTA, one after the other, with the addresses that a
    // thread copies from.
    struct Cursor {
        StoredTiles tiles;
        SplitTile tile;
        int keys = 0;
        bool is_over = false;
        const std::uint8_t *images; // the thread's 16 bytes of the tile's first image
        const Element *row;
        std::int64_t distance; // elements between rows

        __device__ __forceinline__ Cursor() { tile.end_key_block = 0; }
        __device__ __forceinline__ void next(const BackwardParams &params) {
            if (++keys < tile.end_key_block) {
                const StoredDs &stored = params.stored_d_s;
                images += (stored.queries - stored.hidden(keys, stored.launch_pass)) * StoredDs::image_bytes;
                row += row_block_rows * distance;
                return;
            }
            do
                is_over = !tiles.next(params, tile);
            while (!is_over && tile.first_key_block == tile.end_key_block);
            if (is_over)
                return;
            keys = tile.first_key_block;
            images = params.stored_d_s.image(tile.batch, tile.head, tile.segment, keys, params.stored_d_s.launch_pass) +
                     tile.first_row_block * StoredDs::image_bytes + thread_of_block() * 16;
            const OwnPart<Traits> own;
            const TensorRows &matrix = params.range_q_or_k;
            distance = std::int64_t{tile.stride} * matrix.row;
            row = matrix.first_row<const Element>(tile.batch, tile.head / params.heads_of_kv_head) +
                  (tile.first_key - params.first_range_row) * matrix.row +
                  (keys * row_block_rows + own.row) * distance + own.part * 8;
        }
    };

    __device__ __forceinline__ void find_d_q(const SplitTile &tile) {
        const int u = row_block_of_warp<strips>(), row_block = tile.first_row_block + u;
        float x[strips][columns / 2] = {};
        for (int keys = tile.first_key_block; keys < tile.end_key_block; ++keys) {
            wait_for_copies<Traits::stages - 2>();
            __syncthreads(); // the stage has come, and the one before is free
            copy_next();
            if (row_block < tile.row_blocks() && sees(tile, row_block, keys))
                multiply(x, stage_, u);
            stage_ = following(stage_);
        }
        if (params_.stored_d_s.splits > 1 && !add_splits(tile, x))
            return;
        __syncthreads(); // all warps have multiplied what is in the stage that is copied to next
        if (row_block < tile.row_blocks())
            write(tile, u, x);
    }

    // Returns whether the warp's rows of a row block of queries see a row block of keys. Else nothing has stored their
    // dS.
    __device__ __forceinline__ bool sees(const StoredTile &tile, int row_block, int keys) const {
        return tile.sees(row_block, first_row_of_warp<strips>(), strips * 16, keys);
    }

    // x += dS K for row block u. dS lies as 8 x 8 matrices, whose rows are keys; matrices of the same eight keys are
    // neighbours.
    __device__ __forceinline__ void multiply(float (&x)[strips][columns / 2], int stage, int u) const {
        const int lane = thread_of_block() % warp_threads;
        const std::uint32_t d_s = shared_address(shared_.stages[stage].d_s[u]) +
                                  (lane / 16 * 8 + first_row_of_warp<strips>() / 8 + lane / 8 % 2) * matrix_bytes +
                                  lane % 8 * 16;
        Operand<Element, row_block_rows / 2> a[strips];
#pragma unroll
        for (int s = 0; s < strips; ++s)
#pragma unroll
            for (int i = 0; i < row_block_rows / 16; ++i) {
                std::uint32_t four[4];
                load_matrices<true>(four, d_s + (i * 2 * 8 + s * 2) * matrix_bytes);
#pragma unroll
                for (int j = 0; j < 4; ++j)
                    a[s].pairs[4 * i + j] = four[j];
            }
        add_block_product<Element, columns, row_block_rows>(x, a, shared_address(shared_.stages[stage].keys));
    }

    // Stores the CTA's sums of a tile. Returns whether all CTAs of the tile have stored theirs; x then becomes the sum
    // over all keys.
    __device__ __forceinline__ bool add_splits(const SplitTile &tile, float (&x)[strips][columns / 2]) const {
        const StoredDs &stored = params_.stored_d_s;
        const int tile_index = tile.slot / stored.splits;
        const auto sums_of = [&](int slot) {
            return reinterpret_cast<float4 *>(stored.sums + slot * StoredDs::sum_floats(params_.head_dim)) +
                   thread_of_block();
        };
        // Calls use(four sums of the thread, their place in a slot).
        const auto for_each_four = [&](const auto &use) {
            int place = 0;
#pragma unroll
            for (int i = 0; i < columns / 8; ++i)
                if (i * 8 < params_.head_dim)
#pragma unroll
                    for (int s = 0; s < strips; ++s, place += Traits::threads)
                        use(&x[s][i * 4], place);
        };
        float4 *const own = sums_of(tile.slot);
        for_each_four([&](const float *four, int place) { own[place] = {four[0], four[1], four[2], four[3]}; });
        __threadfence();
        __syncthreads(); // all threads of the CTA have stored their sums
        unsigned *const counter = stored.sum_counters + tile_index;
        const bool is_last = thread_of_block() == 0 && atomicAdd(counter, 1U) + 1 == stored.splits;
        if (!__syncthreads_or(is_last))
            return false;
        __threadfence();
        if (is_last)
            *counter = 0;
        for_each_four([&](float *four, int) { four[0] = four[1] = four[2] = four[3] = 0.f; });
#pragma unroll 1
        for (int split = 0; split < stored.splits; ++split) {
            const float4 *const sums = sums_of(tile_index * stored.splits + split);
            for_each_four([&](float *four, int place) {
                const float4 other = __ldcg(sums + place);
                four[0] += other.x;
                four[1] += other.y;
                four[2] += other.z;
                four[3] += other.w;
            });
        }
        return true;
    }

    // Writes a warp's rows. They are staged one strip at a time, so two row blocks share the room of one: a strip of
    // the second one lies where the first one's other strip would be.
    __device__ __forceinline__ void write(const StoredTile &tile, int u, float (&x)[strips][columns / 2]) {
        static_assert(strips == 2 && Traits::row_blocks / 2 * Traits::row_block_bytes <= sizeof(Stage::d_s));
        constexpr int strip_bytes = 16 * swizzled_row_bytes;
        const std::uint32_t staging =
            shared_address(shared_.stages[ahead_stage_].d_s) + u / 2 * Traits::row_block_bytes + u % 2 * strip_bytes;
        const RowBlockFromLast row_block = tile.row_block(tile.first_row_block + u);
        for_each_strip<strips>([&](auto at, auto strip) {
            __syncwarp(); // the strip before has been copied out
            BackwardEpilogue<Element, columns, false, RowOrder::either, decltype(at), RowBlockFromLast>(
                params_, params_.destination, tile.batch, tile.batch, tile.head, row_block)
                .write(x[strip], params_.scale, staging - strip * strip_bytes, params_.d_q_or_k,
                       params_.partial_d_q_or_k);
        });
    }

    // ---- Copies.

    __device__ __forceinline__ static int following(int stage) {
        return stage == Traits::stages - 1 ? 0 : stage + 1;
    }

    __device__ __forceinline__ void copy_next() {
        if (!ahead_.is_over) {
            copy(ahead_, shared_.stages[ahead_stage_]);
            ahead_stage_ = following(ahead_stage_);
            ahead_.next(params_);
        }
        commit_copies();
    }

    // Keys that the class lacks become zeros, and so does what stands for their dS. Both may be infinite.
    __device__ __forceinline__ void copy(const Cursor &from, Stage &stage) const {
        const int present = from.tile.keys - from.keys * row_block_rows; // keys of the class from this row block on
        if (present >= row_block_rows)
            copy<true>(from, stage, row_block_rows);
        else
            copy<false>(from, stage, present);
    }
    template <bool is_whole> __device__ __forceinline__ void copy(const Cursor &from, Stage &stage, int present) const {
        const StoredTile &tile = from.tile;
        const OwnPart<Traits> own;
        const int first = from.keys - tile.seen_by_all - tile.first_row_block; // images before it are hidden
        const int end = tile.row_blocks() - tile.first_row_block;
#pragma unroll
        for (int u = 0; u < Traits::row_blocks; ++u)
            if (u >= first && u < end)
#pragma unroll
                for (int i = 0; i < StoredDs::image_bytes; i += Traits::threads * 16)
                    copy_to_shared<16>(shared_address(stage.d_s[u]) + thread_of_block() * 16 + i,
                                       from.images + u * StoredDs::image_bytes + i,
                                       is_whole || key_of_image(thread_of_block() + i / 16) < present);
        if (own.part >= RowParts<Traits>::parts)
            return;
        const Element *row = from.row;
#pragma unroll
        for (int i = 0; i < row_block_rows; i += RowParts<Traits>::rows, row += RowParts<Traits>::rows * from.distance)
            copy_to_shared<16>(shared_address(stage.keys) + swizzled_offset(row_block_rows, own.row + i, own.part), row,
                               (is_whole || own.row + i < present) && own.part * 8 < params_.head_dim);
    }

    // Returns the key that 16 bytes of an image belong to: each is a row of an 8 x 8 matrix.
    __device__ __forceinline__ static int key_of_image(int sixteen_bytes) {
        return sixteen_bytes / row_block_rows * 8 + sixteen_bytes % 8;
    }

    const BackwardParams &params_;
    DqFromDsShared<Traits> &shared_;
    Cursor ahead_;
    int stage_ = 0, ahead_stage_ = 0;
};

template <class Traits>
__global__ void __launch_bounds__(Traits::threads, 1) dq_from_ds_kernel(const __grid_constant__ BackwardParams params) {
    extern __shared__ __align__(128) std::uint8_t memory[];
    static_assert(sizeof(DqFromDsShared<Traits>) <= Traits::max_shared_bytes);
    DqFromDsWarp<Traits>(params, *reinterpret_cast<DqFromDsShared<Traits> *>(memory)).run();
}

} // namespace annulus::mma
