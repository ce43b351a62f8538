// SPDX-License-Identifier: Apache-2.0
// From the number of a tile to its units and the runs that they meet, by one warp. Units are of queries and runs of
// keys, or with `of_keys` the other way round: who attends to whom is the same question from either side, but for
// causality.
//
// Lane i finds out about branch i in the cell: its segment and the residues, modulo its dilation and in global
// positions, of the rows of units and of runs.
#pragma once

#include "cuda/fused/schedule/find_runs.cuh"
#include "cuda/fused/schedule/find_units.cuh"

namespace annulus {

// The range of positions that is cell `number` of a block, between the ends of segments. False where there are not as
// many.
__device__ __forceinline__ bool find_cell(const TileGrid &grid, int lane, int block, int number, int &start, int &end) {
    start = (grid.first_block + block) * grid.block_length;
    const int block_end = min(start + grid.block_length, grid.sequence_length);
    for (int i = 0;; ++i) {
        int cut = block_end;
        if (lane < grid.branch_count) {
            const FastDivmod &length = grid.branches[lane].length;
            cut = min(cut, (length.quotient(start) + 1) * length.value);
        }
        end = __reduce_min_sync(~0u, cut);
        if (i == number)
            return true;
        if (end == block_end)
            return false;
        start = end;
    }
}

// Tile `id`, or false where there is none of this number; `step` rows of a run are a step.
template <bool of_keys, int step, int units>
__device__ __forceinline__ bool find_tile(const TileGrid &grid, TileSearch &search, unsigned id,
                                          UnitTile<units> &tile) {
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
    const int cell = take(grid.cells_of_block);
    int block = take(grid.blocks_of_section);
    const int head = grid.first_head + take(grid.heads) * grid.head_step;
    block += take(grid.sections) * grid.blocks_of_section.value;
    if (block >= grid.blocks)
        return false;

    int cell_start, cell_end;
    if (!find_cell(grid, lane, block, cell, cell_start, cell_end))
        return false;
    if (lane < grid.branch_count)
        search.branches[lane] = CellBranch(grid, grid.branches[lane], head, cell_start);
    __syncwarp();
    cell_start = max(cell_start, grid.unit_start);
    cell_end = min(cell_end, grid.unit_start + grid.unit_count);
    if (cell_start >= cell_end)
        return false;

    const unsigned taking = find_units<of_keys>(grid, search, lane, index, cell_start, cell_end, tile);
    if (!taking)
        return false;
    find_parents(grid, search, lane, taking);
    const int runs = find_runs<of_keys, step>(grid, search, lane, taking, tile);
    if (runs == 0 && grid.skips_empty)
        return false;
    if (lane == 0) {
        tile.head = head;
        tile.batch = grid.first_batch + rest;
    }
    __syncwarp();
    return true;
}

} // namespace annulus
