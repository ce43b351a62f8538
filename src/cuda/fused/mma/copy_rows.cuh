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

// `rows` rows of `columns` columns, of which `head_dim` are there, to `target`, swizzled. source(row) is the address of
// one, or anything that can be read where present(row) is false: then it becomes zeros.
template <class Traits, int rows, class Source, class Present>
__device__ __forceinline__ void copy_rows(std::uint32_t target, int head_dim, const Source &source,
                                          const Present &present) {
    constexpr int parts = Traits::head_dim / 8;                                          // of 16 bytes, of a row
    constexpr int lanes = static_cast<int>(std::bit_ceil(static_cast<unsigned>(parts))); // of a row
    constexpr int at_once = Traits::threads / lanes;
    const int part = static_cast<int>(threadIdx.x) % lanes, first = static_cast<int>(threadIdx.x) / lanes;
    if (part >= parts)
        return;
    const bool has_columns = part * 8 < head_dim;
    const int column = has_columns ? part * 8 : 0;
#pragma unroll
    for (int i = 0; i < quotient_up(rows, at_once); ++i) {
        const int row = first + i * at_once;
        if (rows % at_once != 0 && row >= rows)
            break;
        copy_to_shared<16>(target + swizzled_offset(rows, row, part), source(row) + column,
                           has_columns && present(row));
    }
}

// Where the rows of a range are in a matrix of ranges.
template <class Element> struct RangeSource {
    const Element *first;  // row 0 of the range
    std::int64_t distance; // to the next one, in elements
    int count;

    // In a batch entry and head of the matrix.
    template <int row_blocks>
    __device__ __forceinline__ RangeSource(const TileGrid &grid, const TensorRows &matrix, int batch, int head,
                                           const Range<row_blocks> &range)
        : count(range.count) {
        const std::int64_t step = grid.strides[range.map / 2].value;
        first = static_cast<const Element *>(matrix.data) + batch * matrix.batch + head * matrix.head +
                (range.index * step + range.residue) * matrix.row;
        distance = step * matrix.row;
    }
};

// Block rows first_row, first_row + 1, … of a range; those that it does not have become zeros.
template <class Traits>
__device__ __forceinline__ void copy_block(std::uint32_t target, int head_dim,
                                           const RangeSource<typename Traits::Element> &range, int first_row) {
    copy_rows<Traits, Traits::range_block_rows>(
        target, head_dim,
        [&](int row) {
            const int of_range = first_row + row;
            return range.first + (of_range >= 0 && of_range < range.count ? of_range : 0) * range.distance;
        },
        [&](int row) { return first_row + row >= 0 && first_row + row < range.count; });
}

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

    __device__ __forceinline__ explicit BlockCursor(const Tile<row_blocks> &tile) { advance(tile); }
    __device__ __forceinline__ bool is_over(const Tile<row_blocks> &tile) const { return range >= tile.ranges; }
    __device__ __forceinline__ void advance(const Tile<row_blocks> &tile) {
        if (--block < 0 && ++range < tile.ranges)
            block = tile.range[range].blocks - 1;
    }
};

} // namespace annulus::mma
