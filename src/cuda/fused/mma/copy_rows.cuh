// SPDX-License-Identifier: Apache-2.0
// Copies of rows into shared memory: of ranges by all threads of a CTA, of row blocks by each warp its own.
#pragma once

#include "cuda/device/warp.cuh"
#include "cuda/fused/math/shared_rows.cuh"
#include "cuda/fused/mma/instructions.cuh"
#include "cuda/fused/mma/strips.cuh"
#include "cuda/fused/schedule/tile.cuh"

#include <algorithm>
#include <cstdint>

namespace annulus::mma {

// How a CTA's threads share out rows: each copies one part of 16 bytes of every few rows.
template <class Traits> struct RowParts : RowLanes<Traits::head_dim, sizeof(typename Traits::Element)> {
    static constexpr int rows = Traits::threads / RowParts::lanes; // at once
};

// The part and the first row of a block that a thread copies.
template <class Traits> struct OwnPart {
    int part, row;
    __device__ __forceinline__ OwnPart() {
        const int thread = thread_of_block();
        part = thread % RowParts<Traits>::lanes;
        row = thread / RowParts<Traits>::lanes;
    }
};

// Between the rows of a range, in rows of its matrices.
template <int row_blocks>
__device__ __forceinline__ std::int64_t step_of(const TileGrid &grid, const Range<row_blocks> &range) {
    return grid.strides[range.map / 2].value;
}
// Which row of a range is the first one of a block; of queries there may be none before it.
template <class Traits, int row_blocks>
__device__ __forceinline__ int first_row_of_block(const Range<row_blocks> &range, int block) {
    return Traits::rows_are_keys ? range.count - (block + 1) * Traits::range_block_rows
                                 : block * Traits::range_block_rows;
}

// Where a matrix has the rows of a range: a thread's way through its blocks, from the last one that is met to the
// first. Of each block a thread copies one part of every few rows. What can be found out again is not kept: registers
// are few.
template <class Traits> struct BlockSource {
    const typename Traits::Element *row; // of the thread's first row of the block

    BlockSource() = default;
    // The block that is met first, in a batch entry and head of the matrix.
    template <int row_blocks>
    __device__ __forceinline__ BlockSource(const TileGrid &grid, const TensorRows &matrix, int batch, int head,
                                           const Range<row_blocks> &range) {
        const OwnPart<Traits> own;
        const std::int64_t step = step_of(grid, range);
        // Of a row that is not there this is no address: nothing is read.
        row = static_cast<const typename Traits::Element *>(matrix.data) + batch * matrix.batch + head * matrix.head +
              (range.index * step + range.residue) * matrix.row +
              (first_row_of_block<Traits>(range, range.blocks - 1) + own.row) * step * matrix.row +
              own.part * RowParts<Traits>::columns_of_part;
    }
};

// A block's rows of a matrix, to shared memory.
template <class Traits> struct BlockCopy {
    BlockSource<Traits> &source;
    const TensorRows &matrix;
    std::uint8_t *target;
};

// Copies block `block`, and each source goes to the next; rows that the range does not have, and columns behind
// `head_dim`, become zeros.
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

// A warp's own rows of the tile's row blocks, which lie at `target`, by the warp: row_of(position) is the one of a
// position in `rows`. Those behind a row block's last are zeros, of a row block without rows nothing is written.
template <class Traits, class RowOf>
__device__ __forceinline__ void copy_own_rows(std::uint32_t target, int head_dim, const TensorRows &rows, int head,
                                              const Tile<Traits::row_blocks> &tile, const RowOf &row_of) {
    using Element = typename Traits::Element;
    using Parts = RowParts<Traits>;
    constexpr int lanes = std::min(Parts::lanes, warp_threads), at_once = warp_threads / lanes;
    const int u = row_block_of_warp<Traits::strips>(), lane = thread_of_block() % warp_threads,
              first = first_row_of_warp<Traits::strips>() + lane / lanes;
    const RowBlock &row_block = tile.row_block[u];
    __syncwarp(); // all lanes have read what was staged there
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

// The blocks of a tile's ranges, in the order in which they are visited.
template <int row_blocks> struct BlockCursor {
    int range = -1, block = 0;
    bool is_first = false; // of its range

    __device__ __forceinline__ explicit BlockCursor(const Tile<row_blocks> &tile) { advance(tile); }
    __device__ __forceinline__ bool is_over(const Tile<row_blocks> &tile) const { return range >= tile.ranges; }
    // Whether no block follows.
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
