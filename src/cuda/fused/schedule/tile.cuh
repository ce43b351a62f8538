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

// What a row block sees of a range: its first `blocks` blocks. The first `full_blocks` of them need no mask: no row of
// the range is hidden from any row of the row block or, if the range hides its first rows, all are.
struct SeenBlocks {
    int blocks, full_blocks;
    // True if some row of the row block sees some row of this block. `hides_first` is that of the range.
    __device__ __forceinline__ bool meets(bool hides_first, int block) const {
        return block < blocks && !(hides_first && block < full_blocks);
    }
    // Multiplicities of columns 2 i and 2 i + 1 of a block, modulo the period: four bits each.
    std::uint8_t multiplicities[multiplicity_period / 2];
};

// The positions first, first + stride, …: `count` of them. Some row block sees rows of the first `blocks` blocks.
// Blocks are visited from the last one to the first. Blocks of keys count from the first key, blocks of queries from
// the last query. So under causality a row always sees a prefix of the blocks. The columns of a block are always in the
// order of positions.
//
// In a window a row does not see its first rows either, counted like blocks. The blocks in which some row of the tile
// does not see all first rows are a range of their own, which hides its first rows. Its blocks all have a mask.
template <int row_blocks> struct alignas(8) Range { // two numbers at a time are read and written
    int first, stride, count, blocks;
    int before, after; // how far before and after a row it sees the range; set if the grid is bounded
    std::int8_t map;   // the tensor map of its rows
    bool hides_first;
    SeenBlocks part[row_blocks];

    // The coordinates of the first row in the tensor map. They are not stored, since shared memory is short.
    struct PlaceInMap {
        int index, residue;
    };
    __device__ __forceinline__ PlaceInMap place_in_map(const TileGrid &grid) const {
        const FastDivmod &map_stride = grid.strides[map / 2];
        const int row = row_in_matrix(grid);
        return {map_stride.quotient(row), map_stride.remainder(row)};
    }
    // Returns the first row of the range in its matrix.
    __device__ __forceinline__ int row_in_matrix(const TileGrid &grid) const {
        return grid.range_stride.quotient(first - grid.first_range_row);
    }

    // Returns how many rows of the range come before the place where a row of the other side sees no more or, with
    // `begins`, before the first one that it sees. Rows are counted like blocks, and the grid must be bounded.
    // quotient(x) must be x / stride for x >= 0.
    template <bool rows_are_keys, class Quotient>
    __device__ __forceinline__ int count_to_edge(int position, bool begins, const Quotient &quotient) const {
        const int end = position + (begins != rows_are_keys ? -before - 1 : after);
        const int through_end = end < first ? 0 : min(count, quotient(end - first) + 1);
        return rows_are_keys ? count - through_end : through_end;
    }
    // Return how many rows a row of the other side sees, and how many of them it does not see after all since they are
    // the first ones.
    template <bool rows_are_keys> __device__ __forceinline__ int visible(int position) const {
        return count_to_edge<rows_are_keys>(position, false, [this](int x) { return quotient(x); });
    }
    template <bool rows_are_keys> __device__ __forceinline__ int hidden(int position) const {
        return count_to_edge<rows_are_keys>(position, true, [this](int x) { return quotient(x); });
    }

  private:
    // Most strides are powers of two. A shift takes a few instructions, a division about fifty.
    __device__ __forceinline__ int quotient(int x) const {
        return __popc(stride) == 1 ? x >> (__ffs(stride) - 1) : x / stride;
    }
};

template <int row_blocks> struct Tile {
    int batch, head;
    int partial_batch; // batch entry of its partial results
    int ranges;        // -1: there are no more tiles
    RowBlock row_block[row_blocks];
    Range<row_blocks> range[max_ranges];

    // True if row block u, of queries, sees a key from one of its positions.
    __device__ __forceinline__ bool sees_keys(const TileGrid &grid, int u, int position) const {
        bool sees = false;
        for (int i = 0; i < ranges && !sees; ++i)
            sees = range[i].part[u].blocks > 0 &&
                   (!grid.is_bounded() || range[i].template visible<false>(position) >
                                              (range[i].hides_first ? range[i].template hidden<false>(position) : 0));
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
