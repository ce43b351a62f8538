// SPDX-License-Identifier: Apache-2.0
// Copies of rows into shared memory, by all threads of a CTA.
#pragma once

#include "cuda/device/warp.cuh"
#include "cuda/fused/math/shared_rows.cuh"
#include "cuda/fused/mma/instructions.cuh"
#include "cuda/fused/schedule/tile.cuh"

#include <bit>
#include <cstdint>

namespace annulus::mma {

// How a CTA's threads share out rows: each copies one part of 16 bytes of every few rows.
template <class Traits> struct RowParts {
    static constexpr int of_row = Traits::head_dim / 8;
    static constexpr int lanes = static_cast<int>(std::bit_ceil(static_cast<unsigned>(of_row))); // for a row
    static constexpr int rows = Traits::threads / lanes;                                         // at once
};

// `rows` rows to `target`, swizzled: `head_dim` columns from source(row) on, and zeros in the other ones of the
// kernel's and in rows of which present(row) is false.
template <class Traits, int rows, class Source, class Present>
__device__ __forceinline__ void copy_rows(std::uint32_t target, int head_dim, const Source &source,
                                          const Present &present) {
    using Parts = RowParts<Traits>;
    const int part = static_cast<int>(threadIdx.x) % Parts::lanes, first = static_cast<int>(threadIdx.x) / Parts::lanes;
    if (part >= Parts::of_row)
        return;
    const bool has_columns = part * 8 < head_dim;
    const int column = has_columns ? part * 8 : 0;
#pragma unroll 1
    for (int i = 0; i < quotient_up(rows, Parts::rows); ++i) {
        const int row = first + i * Parts::rows;
        if (rows % Parts::rows != 0 && row >= rows)
            break;
        copy_to_shared<16>(target + swizzled_offset(rows, row, part), source(row) + column,
                           has_columns && present(row));
    }
}

// Where a matrix has the rows of a range: a thread's way through its blocks, from the last one that is met to the
// first. Of each block a thread copies one part of every few rows.
template <class Traits> class BlockSource {
  public:
    using Element = typename Traits::Element;

    // The block that is met first, in a batch entry and head of the matrix.
    template <int row_blocks>
    __device__ __forceinline__ void enter(const TileGrid &grid, const TensorRows &matrix, int batch, int head,
                                          const Range<row_blocks> &range) {
        const Own own;
        const std::int64_t step = grid.strides[range.map / 2].value;
        const int first = Traits::of_keys ? range.count - range.blocks * Traits::range_block_rows
                                          : (range.blocks - 1) * Traits::range_block_rows;
        distance_ = step * matrix.row;
        // Of a row that is not there this is no address: nothing is read.
        row_ = static_cast<const Element *>(matrix.data) + batch * matrix.batch + head * matrix.head +
               (range.index * step + range.residue) * matrix.row + (first + own.row) * distance_ + own.part * 8;
        // Blocks count from the last query, and from the first key (tile.cuh).
        bound_ = Traits::of_keys ? max(-first, 0) : range.count - first;
    }

    // Copies the block; rows that the range does not have, and columns behind `head_dim`, become zeros.
    __device__ __forceinline__ void copy(std::uint32_t target, int head_dim) const {
        const Own own;
        if (own.part >= Parts::of_row)
            return;
        const bool has_columns = own.part * 8 < head_dim;
        const Element *row = row_;
#pragma unroll
        for (int i = 0; i < quotient_up(Traits::range_block_rows, at_once); ++i, row += at_once * distance_) {
            const int of_block = own.row + i * at_once;
            if (Traits::range_block_rows % at_once != 0 && of_block >= Traits::range_block_rows)
                break;
            const bool present = Traits::of_keys ? of_block >= bound_ : of_block < bound_;
            copy_to_shared<16>(target + swizzled_offset(Traits::range_block_rows, of_block, own.part), row,
                               has_columns && present);
        }
    }

    // To the next block of the range.
    __device__ __forceinline__ void advance() {
        row_ += (Traits::of_keys ? Traits::range_block_rows : -Traits::range_block_rows) * distance_;
        bound_ = Traits::of_keys ? 0 : Traits::range_block_rows;
    }

  private:
    using Parts = RowParts<Traits>;
    static constexpr int at_once = Parts::rows;
    // The part and the first row of a block that a thread copies.
    struct Own {
        int part, row;
        __device__ __forceinline__ Own() {
            const int thread = thread_of_block();
            part = thread % Parts::lanes;
            row = thread / Parts::lanes;
        }
    };

    const Element *row_;    // of the thread's first row of the block
    std::int64_t distance_; // between rows, in elements
    int bound_;             // rows of the block from it on are there, or before it
};

// The rows of a tile's row blocks: row_of(position) is the one of a position in `rows`. Those behind a row block's last
// are zeros, of a row block without rows nothing is written.
template <class Traits, class RowOf>
__device__ __forceinline__ void copy_row_blocks(std::uint32_t target, int head_dim, const TensorRows &rows, int head,
                                                const Tile<Traits::row_blocks> &tile, const RowOf &row_of) {
    using Element = typename Traits::Element;
    const Element *const row_0 = static_cast<const Element *>(rows.data) + tile.batch * rows.batch + head * rows.head;
#pragma unroll
    for (int u = 0; u < Traits::row_blocks; ++u) {
        const RowBlock &row_block = tile.row_block[u];
        if (row_block.rows == 0)
            continue;
        copy_rows<Traits, row_block_rows>(
            target + u * Traits::row_block_bytes, head_dim,
            [&](int row) { return row_0 + row_of(row_block.position(row)) * rows.row; },
            [&](int row) { return row < row_block.rows; });
    }
}

// The blocks of a tile's ranges, in the order in which they are visited.
template <int row_blocks> struct BlockCursor {
    int range = -1, block = 0;
    bool is_first = false; // of its range

    __device__ __forceinline__ explicit BlockCursor(const Tile<row_blocks> &tile) { advance(tile); }
    __device__ __forceinline__ bool is_over(const Tile<row_blocks> &tile) const { return range >= tile.ranges; }
    __device__ __forceinline__ void advance(const Tile<row_blocks> &tile) {
        is_first = --block < 0;
        if (is_first && ++range < tile.ranges)
            block = tile.range[range].blocks - 1;
    }
};

} // namespace annulus::mma
