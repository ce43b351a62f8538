// SPDX-License-Identifier: Apache-2.0
// A tile, as the warp that finds it passes it on to the warps that copy its rows and the warps that compute.
#pragma once

#include "cuda/device/warp.cuh"
#include "cuda/fused/schedule/tile_grid.hpp"

#include <cstdint>

namespace annulus {

// The positions first, first + stride, …: `rows` of them. With rows = 0 there is nothing to compute and nothing to
// write.
struct RowBlock {
    static constexpr int skipped = 0; // rows that are missing at the front
    int first, stride, rows;
    unsigned branches; // a bit for each branch that the rows take part in
    float padding_keys;

    // Returns the position of row i; for i >= rows that of the last row.
    __device__ __forceinline__ int position(int i) const { return first + stride * min(i, rows - 1); }
};

// A row block that is whole, or lacks the rows before `skipped`. Blocks that count from the last row (Range) are such
// row blocks.
struct RowBlockFromLast {
    static constexpr int rows = row_block_rows;
    int first, stride, skipped; // row 0 may be missing

    __device__ __forceinline__ int position(int i) const { return first + stride * max(i, skipped); }
};

// True if a row block of either kind has row i.
template <class Rows> __device__ __forceinline__ bool has_row(const Rows &row_block, int i) {
    return i >= row_block.skipped && i < row_block.rows;
}

// What a row block sees of a range: its first `blocks` blocks. In the first `full_blocks` of them no row of the range
// is hidden from any row of the row block.
struct RangePart {
    int blocks, full_blocks;
    // Multiplicities of columns 2 i and 2 i + 1 of a block, modulo the period: four bits each.
    std::uint8_t multiplicities[multiplicity_period / 2];
};

// The positions first, first + stride, …: `count` of them. Some row block sees rows of the first `blocks` blocks.
// Blocks are visited from the last one to the first. Blocks of keys count from the first key, blocks of queries from
// the last query. So under causality a row always sees a prefix of the blocks. The columns of a block are always in the
// order of positions.
template <int row_blocks> struct Range {
    int first, stride, count, blocks;
    int map, residue, index; // of the first row: its tensor map, and its coordinates in it
    RangePart part[row_blocks];

    // Returns how many rows of the range are visible to a row of the other side, under causality. quotient(x) must be x
    // / stride for x >= 0.
    template <bool rows_are_keys, class Quotient>
    __device__ __forceinline__ int visible(int position, const Quotient &quotient) const {
        if (rows_are_keys)
            return position <= first ? count : count - min(count, quotient(position - first + stride - 1));
        return position < first ? 0 : min(count, quotient(position - first) + 1);
    }
    template <bool rows_are_keys> __device__ __forceinline__ int visible(int position) const {
        return visible<rows_are_keys>(position, [this](int x) {
            // Most strides are powers of two. A shift takes a few instructions, a division about fifty.
            return __popc(stride) == 1 ? x >> (__ffs(stride) - 1) : x / stride;
        });
    }
};

template <int row_blocks, int most_ranges = max_ranges> struct Tile {
    int batch, head;
    int ranges; // -1: there are no more tiles
    RowBlock row_block[row_blocks];
    Range<row_blocks> range[most_ranges];

    // True if row block u, of queries, sees a key from one of its positions.
    __device__ __forceinline__ bool sees_keys(const TileGrid &grid, int u, int position) const {
        bool sees = false;
        for (int i = 0; i < ranges && !sees; ++i)
            sees = range[i].part[u].blocks > 0 && (!grid.causal || range[i].template visible<false>(position) > 0);
        return sees;
    }
    // True if row block u meets any row.
    __device__ __forceinline__ bool meets_any(int u) const {
        bool any = false;
#pragma unroll 1
        for (int i = 0; i < ranges; ++i)
            any |= range[i].part[u].blocks > 0;
        return any;
    }
};

} // namespace annulus
