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
template <bool several>
__device__ __forceinline__ bool find_cell(const TileGrid &grid, const SequenceGrid &sequence, int lane, int segment,
                                          int number, int &start, int &end) {
    start = (sequence.first_segment + segment) * sequence.segment_length;
    const int segment_end = min(start + sequence.segment_length, sequence.sequence_length);
    for (int i = 0;; ++i) {
        int cut = segment_end;
        if (lane < grid.branch_count) {
            const FastDivmod &length = length_of<several>(grid, sequence, lane);
            cut = min(cut, (length.quotient(start) + 1) * length.value);
        }
        end = min_of_warp(cut);
        if (i == number)
            return true;
        if (end == segment_end)
            return false;
        start = end;
    }
}

// The sequence that has tile `id` of a head, of several; from now on the id counts its own.
__device__ __forceinline__ PlacedSequence find_sequence(const TileGrid &grid, int lane, int &id) {
    // The last one that begins with this tile or before it, by a look at one of each so many with every step.
    int first = 0, count = grid.sequence_count;
    while (count > 1) {
        const int step = quotient_up(count, warp_threads), at = lane * step;
        const bool is_before = at < count && static_cast<int>(grid.sequences[first + at].first_tile) <= id;
        const int before = __ffs(~__ballot_sync(~0u, is_before)) - 2; // lane 0's always is
        const int passed = (before < 0 ? warp_threads - 1 : before) * step;
        first += passed;
        count = min(step, count - passed);
    }
    const PlacedSequence found = grid.sequences[first];
    id -= static_cast<int>(found.first_tile);
    return found;
}

// Tile `id`, or false where there is none of this number; `range_block_rows` rows of a range are a block. The grid may
// be over `several` sequences.
template <bool of_keys, int range_block_rows, bool several, int row_blocks>
__device__ __forceinline__ bool find_tile(const TileGrid &grid, TileSearch &search, unsigned id,
                                          Tile<row_blocks> &tile) {
    const int lane = static_cast<int>(threadIdx.x) % warp_threads;
    int rest = static_cast<int>(id);
    const auto take = [&](const FastDivmod &count) { // the next digit of the number
        const int digit = count.remainder(rest);
        rest = count.quotient(rest);
        return digit;
    };
    const bool is_one = !several || !grid.sequences;
    PlacedSequence placed{};
    int head = 0;
    if (!is_one) {
        head = grid.tiles_of_head.quotient(rest);
        rest = grid.tiles_of_head.remainder(rest);
        placed = find_sequence(grid, lane, rest);
    }
    const SequenceGrid &sequence = is_one ? grid.sequence : grid.shapes[placed.shape];
    int index;
    if (grid.by_length) {
        const int cells = static_cast<int>(grid.tiles) / sequence.tiles_of_cell.value;
        index = rest / cells;
        rest %= cells;
    } else {
        index = take(sequence.tiles_of_cell);
    }
    const int cell = take(sequence.cells_of_segment);
    int segment = take(sequence.segments_of_section);
    if (grid.causal && !of_keys)
        segment = sequence.segments_of_section.value - 1 - segment;
    if (is_one)
        head = take(grid.heads);
    head = grid.first_head + head * grid.head_step;
    segment += take(sequence.sections) * sequence.segments_of_section.value;
    if (segment >= sequence.segments)
        return false;

    int cell_start, cell_end;
    if (!find_cell<several>(grid, sequence, lane, segment, cell, cell_start, cell_end))
        return false;
    if (lane < grid.branch_count)
        search.branches[lane] = CellBranch(grid.branches[lane], length_of<several>(grid, sequence, lane),
                                           sequence.sequence_length, head, cell_start);
    if (lane == 0) {
        tile.head = head;
        tile.batch = is_one ? grid.first_batch + rest : placed.batch;
    }
    __syncwarp();
    cell_start = max(cell_start, sequence.row_start);
    cell_end = min(cell_end, sequence.row_start + sequence.row_count);
    if (cell_start >= cell_end)
        return false;

    const unsigned taking =
        find_row_blocks<of_keys, several>(grid, sequence, search, lane, index, cell_start, cell_end, tile);
    if (!taking)
        return false;
    share_ranges(grid, search, lane, taking);
    const int ranges = find_ranges<of_keys, range_block_rows>(grid, sequence, search, lane, taking, placed.start, tile);
    if (ranges == 0 && grid.skips_empty)
        return false;
    if (several && lane < row_blocks) // now they are rows of the call
        tile.row_block[lane].first += placed.start;
    __syncwarp();
    return true;
}

} // namespace annulus
