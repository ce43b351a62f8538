// SPDX-License-Identifier: Apache-2.0
// Tiles of the kernel of all gradients, in the order of query_sums.hpp.
#pragma once

#include "cuda/fused/schedule/find_tile.cuh"
#include "cuda/fused/schedule/query_sums.hpp"

namespace annulus {

// Finds the KV tile with a number. Returns false if there is none. A whole warp calls it.
template <int range_block_rows>
__device__ __forceinline__ bool find_summing_tile(const TileGrid &grid, const QuerySums &sums, int number,
                                                  Tile<QuerySums::tile_row_blocks, 1> &tile, SummingTile &summing) {
    const SequenceGrid &sequence = grid.sequence;
    const QuerySums::TilePlace place = sums.place(number);
    const QuerySums::Cell cell = sums.cell(place.cell);
    TilePlace in_grid{};
    in_grid.index = place.index;
    in_grid.segment = cell.segment;
    in_grid.head = cell.head;
    in_grid.batch = cell.batch;
    if (!find_tile_of_branch<true, range_block_rows>(grid, in_grid, tile))
        return false;
    const CellBranch branch(grid.branches[0], grid.branches[0].length, sequence.sequence_length, tile.head,
                            (sequence.first_segment + cell.segment) * sequence.segment_length);
    const Members keys =
        rows_of_segment(grid.branches[0], branch, sequence.row_start, sequence.row_start + sequence.row_count);
    if (threadIdx.x % warp_threads == 0)
        summing = {place.cell, (keys.count - 1) / QuerySums::tile_rows - place.index,
                   (keys.count - 1) / QuerySums::tile_rows + 1,
                   (sums.tiles - 1 - place.index) % sums.running_tiles == 0};
    __syncwarp();
    return true;
}

// Returns a tile's turn to add to block `at` of its range.
__device__ __forceinline__ int turn_of(const TileGrid &grid, const Tile<QuerySums::tile_row_blocks, 1> &tile,
                                       const SummingTile &summing, int range_block_rows, int at) {
    const auto &range = tile.range[0];
    return QuerySums::turn(grid.causal, range.first + range.stride * (range.count - 1 - at * range_block_rows),
                           tile.row_block[0].first, grid.branches[0].dilation, summing.later_tiles);
}

} // namespace annulus
