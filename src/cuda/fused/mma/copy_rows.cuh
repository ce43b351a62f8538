// SPDX-License-Identifier: Apache-2.0
// Copies of rows into shared memory. All threads of a CTA copy rows of ranges, and each warp copies its own rows of row
// blocks.
#pragma once

#include "cuda/device/warp.cuh"
#include "cuda/fused/math/shared_rows.cuh"
#include "cuda/fused/mma/instructions.cuh"
#include "cuda/fused/mma/strips.cuh"
#include "cuda/fused/schedule/tile.cuh"

#include <algorithm>
#include <cstdint>

namespace annulus::mma {

// How a CTA's threads divide rows: each copies one part of 16 bytes of every few rows.
template <class Traits> struct RowParts : RowLanes<Traits::head_dim, sizeof(typename Traits::Element)> {
    static constexpr int rows = Traits::threads / RowParts::lanes; // copied at once
};

// The part that a thread copies, and its first row of a block.
template <class Traits> struct OwnPart {
    int part, row;
    __device__ __forceinline__ OwnPart() {
        const int thread = thread_of_block();
        part = thread % RowParts<Traits>::lanes;
        row = thread / RowParts<Traits>::lanes;
    }
};

// Returns the distance between the rows of a range, in rows of its matrices.
template <int row_blocks>
__device__ __forceinline__ std::int64_t step_of(const TileGrid &grid, const Range<row_blocks> &range) {
    return grid.strides[range.map / 2].value;
}
// Returns which row of a range is the first row of a block. Rows below 0 do not exist; a range of queries may begin in
// the middle of a block.
template <class Traits, int row_blocks>
__device__ __forceinline__ int first_row_of_block(const Range<row_blocks> &range, int block) {
    return Traits::rows_are_keys ? range.count - (block + 1) * Traits::range_block_rows
                                 : block * Traits::range_block_rows;
}

// A thread's way through the rows of a range in a matrix. It goes from the last block that is met to the first. In each
// block, the thread copies one part of every few rows. What can be computed again is not kept, since registers are few.
template <class Traits> struct BlockSource {
    const typename Traits::Element *row; // the thread's first row of the block

    BlockSource() = default;
    // Begins at the block that is met first, in a batch entry and head of the matrix.
    template <int row_blocks>
    __device__ __forceinline__ BlockSource(const TileGrid &grid, const TensorRows &matrix, int batch, int head,
                                           const Range<row_blocks> &range) {
        const OwnPart<Traits> own;
        const std::int64_t step = step_of(grid, range);
        // For a row that does not exist this is no address: nothing is read.
        row = static_cast<const typename Traits::Element *>(matrix.data) + batch * matrix.batch + head * matrix.head +
              range.row_in_matrix(grid) * matrix.row +
              (first_row_of_block<Traits>(range, range.blocks - 1) + own.row) * step * matrix.row +
              own.part * RowParts<Traits>::columns_of_part;
    }
};

// A copy of a block's rows from a matrix to shared memory.
template <class Traits> struct BlockCopy {
    BlockSource<Traits> &source;
    const TensorRows &matrix;
    std::uint8_t *target;
};

// Copies block `block`, and moves each source to the next block. Rows that the range does not have, and columns from
// `head_dim` on, become zeros.
template <class Traits, int row_blocks, int count>
__device__ __forceinline__ void copy_block(const TileGrid &grid, const Range<row_blocks> &range, int block,
                                           int head_dim, const BlockCopy<Traits> (&copies)[count]) {
    using Parts = RowParts<Traits>;
    constexpr int at_once = Parts::rows, range_block_rows = Traits::range_block_rows;
    const OwnPart<Traits> own;
    const typename Traits::Element *row[count];
    std::int64_t distance[count];
#pragma unroll
    for (int i = 0; i < count; ++i) {
        row[i] = copies[i].source.row;
        distance[i] = step_of(grid, range) * copies[i].matrix.row;
        copies[i].source.row += (Traits::rows_are_keys ? range_block_rows : -range_block_rows) * distance[i];
    }
    if (own.part >= Parts::parts)
        return;
    // Blocks count from the last query, and from the first key (tile.cuh).
    const int before = first_row_of_block<Traits>(range, block);
    const int first = Traits::rows_are_keys ? -before : 0,
              end = own.part * Parts::columns_of_part < head_dim ? range.count - before : 0;
#pragma unroll
    for (int row_offset = 0; row_offset < range_block_rows; row_offset += at_once) {
        const int own_row = own.row + row_offset;
        if (range_block_rows % at_once != 0 && own_row >= range_block_rows)
            break;
        const bool present = own_row >= first && own_row < end;
#pragma unroll
        for (int i = 0; i < count; ++i) {
            copy_to_shared<16>(shared_address(copies[i].target) +
                                   swizzled_offset<Parts::element_bytes>(range_block_rows, own_row, own.part),
                               row[i], present);
            row[i] += at_once * distance[i];
        }
    }
}

// Copies a warp's own rows of the tile's row blocks, which lie at `target`. The whole warp calls it. row_of(position)
// returns the row in `rows`. Rows behind a row block's last row become zeros. For a row block without rows, nothing is
// written.
template <class Traits, class RowOf>
__device__ __forceinline__ void copy_own_rows(std::uint32_t target, int head_dim, const TensorRows &rows, int head,
                                              const Tile<Traits::row_blocks> &tile, const RowOf &row_of) {
    using Element = typename Traits::Element;
    using Parts = RowParts<Traits>;
    constexpr int lanes = std::min(Parts::lanes, warp_threads), at_once = warp_threads / lanes;
    const int u = row_block_of_warp<Traits::strips>(), lane = thread_of_block() % warp_threads,
              first = first_row_of_warp<Traits::strips>() + lane / lanes;
    const RowBlock &row_block = tile.row_block[u];
    __syncwarp(); // all lanes have read what was staged at `target`
    if (row_block.rows == 0)
        return;
    for (int part = lane % lanes; part < Parts::parts; part += lanes) {
        const bool has_columns = part * Parts::columns_of_part < head_dim;
        const auto *const row_0 =
            rows.first_row<const Element>(tile.batch, head) + (has_columns ? part * Parts::columns_of_part : 0);
#pragma unroll 4
        for (int row = first; row < first + Traits::strips * 16; row += at_once)
            copy_to_shared<16>(target + u * Traits::row_block_bytes +
                                   swizzled_offset<Parts::element_bytes>(row_block_rows, row, part),
                               row_0 + row_of(row_block.position(row)) * rows.row, has_columns && row < row_block.rows);
    }
}

// Brings the rows of the next tile's row blocks into the L2 cache, since their copy has nothing to hide behind. All
// threads of the CTA call it. `next` may be no tile. row_of() is that of copy_own_rows().
template <class Traits, class RowOf>
__device__ __forceinline__ void prefetch_own_rows(int head_dim, const TensorRows &rows, int head,
                                                  const Tile<Traits::row_blocks> &next, const RowOf &row_of) {
    using Element = typename Traits::Element;
    if (next.ranges < 0)
        return;
#pragma unroll 1
    for (int i = thread_of_block(); i < Traits::row_blocks * row_block_rows; i += Traits::threads) {
        const RowBlock &row_block = next.row_block[i / row_block_rows];
        const int row = i % row_block_rows;
        if (row >= row_block.rows)
            continue;
        const Element *const first =
            rows.first_row<const Element>(next.batch, head) + row_of(row_block.position(row)) * rows.row;
#pragma unroll 1
        for (int column = 0; column < head_dim; column += 128 / static_cast<int>(sizeof(Element)))
            prefetch(first + column);
    }
}

// Goes through the blocks of a tile's ranges in their order.
template <int row_blocks> struct BlockCursor {
    int range = -1, block = 0;
    bool is_first = false; // whether the block is the first of its range

    __device__ __forceinline__ explicit BlockCursor(const Tile<row_blocks> &tile) { advance(tile); }
    __device__ __forceinline__ bool is_over(const Tile<row_blocks> &tile) const { return range >= tile.ranges; }
    // Returns whether no block follows.
    __device__ __forceinline__ bool is_last(const Tile<row_blocks> &tile) const {
        return range + (block == 0) >= tile.ranges;
    }
    __device__ __forceinline__ void advance(const Tile<row_blocks> &tile) {
        is_first = --block < 0;
        if (is_first && ++range < tile.ranges)
            block = tile.range[range].blocks - 1;
    }
};

} // namespace annulus::mma
