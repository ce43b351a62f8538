// SPDX-License-Identifier: Apache-2.0
// From the number of a tile to its row blocks and the ranges that they meet, by one warp. Row blocks are of queries and
// ranges of keys, or with `of_keys` the other way round: who attends to whom is the same question from either side, but
// for causality.
//
// Lane i finds out about branch i in the cell: its segment and the residues, modulo its dilation and in global
// positions, of the rows of row blocks and of ranges.
#pragma once

#include "cuda/fused/schedule/find_ranges.cuh"
#include "cuda/fused/schedule/find_row_blocks.cuh"

namespace annulus {

// The interval of positions that is cell `number` of a segment, between the ends of segments of other branches. False
// where there are not as many.
__device__ __forceinline__ bool find_cell(const TileGrid &grid, int lane, int segment, int number, int &start,
                                          int &end) {
    start = (grid.first_segment + segment) * grid.segment_length;
    const int segment_end = min(start + grid.segment_length, grid.sequence_length);
    for (int i = 0;; ++i) {
        int cut = segment_end;
        if (lane < grid.branch_count) {
            const FastDivmod &length = grid.branches[lane].length;
            cut = min(cut, (length.quotient(start) + 1) * length.value);
        }
        end = __reduce_min_sync(~0u, cut);
        if (i == number)
            return true;
        if (end == segment_end)
            return false;
        start = end;
    }
}

// Tile `id`, or false where there is none of this number; `range_block_rows` rows of a range are a block.
template <bool of_keys, int range_block_rows, int row_blocks>
__device__ __forceinline__ bool find_tile(const TileGrid &grid, TileSearch &search, unsigned id,
                                          Tile<row_blocks> &tile) {
    const int lane = static_cast<int>(threadIdx.x) % warp_threads;
    int rest = static_cast<int>(id);
    const auto take = [&](const FastDivmod &count) { // the next digit of the number
        const int digit = count.remainder(rest);
        rest = count.quotient(rest);
        return digit;
    };
    int index;
    if (of_keys && grid.by_length) {
        const int cells = static_cast<int>(grid.tiles) / grid.tiles_of_cell.value;
        index = rest / cells;
        rest %= cells;
    } else {
        index = take(grid.tiles_of_cell);
    }
    const int cell = take(grid.cells_of_segment);
    int segment = take(grid.segments_of_section);
    const int head = grid.first_head + take(grid.heads) * grid.head_step;
    segment += take(grid.sections) * grid.segments_of_section.value;
    if (segment >= grid.segments)
        return false;

    int cell_start, cell_end;
    if (!find_cell(grid, lane, segment, cell, cell_start, cell_end))
        return false;
    if (lane < grid.branch_count)
        search.branches[lane] = CellBranch(grid, grid.branches[lane], head, cell_start);
    __syncwarp();
    cell_start = max(cell_start, grid.row_start);
    cell_end = min(cell_end, grid.row_start + grid.row_count);
    if (cell_start >= cell_end)
        return false;

    const unsigned taking = find_row_blocks<of_keys>(grid, search, lane, index, cell_start, cell_end, tile);
    if (!taking)
        return false;
    find_parents(grid, search, lane, taking);
    const int ranges = find_ranges<of_keys, range_block_rows>(grid, search, lane, taking, tile);
    if (ranges == 0 && grid.skips_empty)
        return false;
    if (lane == 0) {
        tile.head = head;
        tile.batch = grid.first_batch + rest;
    }
    __syncwarp();
    return true;
}

} // namespace annulus
