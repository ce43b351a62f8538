// SPDX-License-Identifier: Apache-2.0
// A tile, as the warp that finds it leaves it for those that copy its rows and those that compute.
#pragma once

#include "cuda/device/warp.cuh"
#include "cuda/fused/schedule/tile_grid.hpp"

#include <cstdint>

namespace annulus {

// Positions first, first + stride, …: `rows` of them. None: nothing to compute and nothing to write.
struct RowBlock {
    static constexpr int skipped = 0; // rows that it lacks in front
    int first, stride, rows;
    unsigned branches; // a bit for each that they take part in
    float padding_keys;

    // Row i; the last one again behind it.
    __device__ __forceinline__ int position(int i) const { return first + stride * min(i, rows - 1); }
};

// One that is whole, or lacks the rows before `skipped`: blocks that count from the last row (Range) are.
struct RowBlockFromLast {
    static constexpr int rows = row_block_rows;
    int first, stride, skipped; // the first one may be none

    __device__ __forceinline__ int position(int i) const { return first + stride * max(i, skipped); }
};

// Whether either kind of row block has its row i.
template <class Rows> __device__ __forceinline__ bool has_row(const Rows &row_block, int i) {
    return i >= row_block.skipped && i < row_block.rows;
}

// What a row block has of a range: the first `blocks` blocks, of which the first `full_blocks` hide nothing from any
// row.
struct RangePart {
    int blocks, full_blocks;
    // Of columns 2 i and 2 i + 1 of a block, modulo the period: four bits each.
    std::uint8_t multiplicities[multiplicity_period / 2];
};

// Positions first, first + stride, …: `count` of them, of which some row block sees those of the first `blocks` blocks.
// They are visited from the last block to the first. Blocks count from the first key, but from the last query:
// causality then lets a row see the first so many in either case. Columns of a block are always in the order of
// positions.
template <int row_blocks> struct Range {
    int first, stride, count, blocks;
    int map, residue, index; // where the first row is: tensor map, and its coordinates
    RangePart part[row_blocks];

    // How many are visible to a row of the other side, under causality. quotient(x) is x / stride of x >= 0.
    template <bool of_keys, class Quotient>
    __device__ __forceinline__ int visible(int position, const Quotient &quotient) const {
        if (of_keys)
            return position <= first ? count : count - min(count, quotient(position - first + stride - 1));
        return position < first ? 0 : min(count, quotient(position - first) + 1);
    }
    template <bool of_keys> __device__ __forceinline__ int visible(int position) const {
        return visible<of_keys>(position, [this](int x) {
            // Most strides are powers of two, by which it takes a few instructions instead of fifty.
            return __popc(stride) == 1 ? x >> (__ffs(stride) - 1) : x / stride;
        });
    }
};

template <int row_blocks> struct Tile {
    int batch, head;
    int ranges; // -1: no tile any more
    RowBlock row_block[row_blocks];
    Range<row_blocks> range[most_ranges];

    // Whether row block u, of queries, sees a key from one of its positions.
    __device__ __forceinline__ bool sees_keys(const TileGrid &grid, int u, int position) const {
        bool sees = false;
        for (int i = 0; i < ranges && !sees; ++i)
            sees = range[i].part[u].blocks > 0 && (!grid.causal || range[i].template visible<false>(position) > 0);
        return sees;
    }
    // Whether row block u meets any row.
    __device__ __forceinline__ bool meets_any(int u) const {
        bool any = false;
#pragma unroll 1
        for (int i = 0; i < ranges; ++i)
            any |= range[i].part[u].blocks > 0;
        return any;
    }
};

} // namespace annulus
