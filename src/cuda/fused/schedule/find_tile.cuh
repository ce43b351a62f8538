// SPDX-License-Identifier: Apache-2.0
// One warp turns the number of a tile into its row blocks and their ranges. Row blocks are queries and ranges are keys,
// or with `rows_are_keys` the other way round. Both directions are the same search, except for causality.
//
// Lane i handles branch i in the cell. It finds the branch's segment, and the residues of the rows of row blocks and of
// ranges. Residues are modulo the branch's dilation and count global positions.
#pragma once

#include "cuda/fused/schedule/find_ranges.cuh"
#include "cuda/fused/schedule/find_row_blocks.cuh"

namespace annulus {

// Finds cell `number` of a segment: the interval of positions between the ends of segments of other branches. Returns
// false if the segment has fewer cells.
template <bool may_be_several>
__device__ __forceinline__ bool find_cell(const TileGrid &grid, const SequenceGrid &sequence, int lane, int segment,
                                          int number, int &start, int &end) {
    start = (sequence.first_segment + segment) * sequence.segment_length;
    const int segment_end = min(start + sequence.segment_length, sequence.sequence_length);
    for (int i = 0;; ++i) {
        int cut = segment_end;
        if (lane < grid.branch_count) {
            const FastDivmod &length = length_of<may_be_several>(grid, sequence, lane);
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

// Returns the sequence that has tile `id` of a head, and makes `id` count the tiles of that sequence.
__device__ __forceinline__ PlacedSequence find_sequence(const TileGrid &grid, int lane, int &id) {
    // Finds the last sequence whose first tile is <= `id`, by a 32-way search.
    int first = 0, count = grid.sequence_count;
    while (count > 1) {
        const int step = quotient_up(count, warp_threads), at = lane * step;
        const bool is_before = at < count && static_cast<int>(grid.sequences[first + at].first_tile) <= id;
        const int before = __ffs(~__ballot_sync(~0u, is_before)) - 2; // true for lane 0
        const int passed = (before < 0 ? warp_threads - 1 : before) * step;
        first += passed;
        count = min(step, count - passed);
    }
    const PlacedSequence found = grid.sequences[first];
    id -= static_cast<int>(found.first_tile);
    return found;
}

// The place of a tile: the digits of its number. In a grid over several sequences the number counts the tiles of one
// sequence.
struct TilePlace {
    int index, cell, segment; // the tile in its cell, the cell in its segment
    int head, batch;          // in the grid; not set if the grid is over several sequences
};
template <bool rows_are_keys>
__device__ __forceinline__ TilePlace find_place(const TileGrid &grid, const SequenceGrid &sequence, bool is_one,
                                                int number) {
    const auto take = [&](const FastDivmod &count) { // the next digit
        const int digit = count.remainder(number);
        number = count.quotient(number);
        return digit;
    };
    TilePlace place{};
    if (grid.by_length) {
        const int cells = static_cast<int>(grid.tiles) / sequence.tiles_of_cell.value;
        place.index = number / cells;
        number %= cells;
    } else {
        place.index = take(sequence.tiles_of_cell);
    }
    place.cell = take(sequence.cells_of_segment);
    place.segment = take(sequence.segments_of_section);
    if (grid.causal && !rows_are_keys)
        place.segment = sequence.segments_of_section.value - 1 - place.segment;
    if (is_one)
        place.head = take(grid.heads);
    place.segment += take(sequence.sections) * sequence.segments_of_section.value;
    place.batch = number;
    return place;
}

// Whether a grid is over one sequence or several.
enum class Sequences { one, several, either };

// Finds tile `id`. Returns false if there is none of this number. A block of a range has `range_block_rows` rows.
template <bool rows_are_keys, int range_block_rows, Sequences sequences, int row_blocks>
__device__ __forceinline__ bool find_tile_of_branches(const TileGrid &grid, TileSearch &search, unsigned id,
                                                      Tile<row_blocks> &tile) {
    constexpr bool may_be_several = sequences != Sequences::one;
    const bool is_one = !may_be_several || (sequences == Sequences::either && !grid.sequences);
    const int lane = static_cast<int>(threadIdx.x) % warp_threads;
    int number = static_cast<int>(id), head = 0;
    PlacedSequence placed{};
    if (!is_one) {
        head = grid.tiles_of_head.quotient(number);
        number = grid.tiles_of_head.remainder(number);
        placed = find_sequence(grid, lane, number);
    }
    const SequenceGrid &sequence = is_one ? grid.sequence : grid.sequence_grids[placed.sequence_grid];
    const TilePlace place = find_place<rows_are_keys>(grid, sequence, is_one, number);
    head = grid.first_head + (is_one ? place.head : head) * grid.head_step;
    if (place.segment >= sequence.segments)
        return false;

    int cell_start, cell_end;
    if (!find_cell<may_be_several>(grid, sequence, lane, place.segment, place.cell, cell_start, cell_end))
        return false;
    if (lane < grid.branch_count)
        search.branches[lane] = CellBranch(grid.branches[lane], length_of<may_be_several>(grid, sequence, lane),
                                           sequence.sequence_length, head, cell_start);
    if (lane == 0) {
        tile.head = head;
        tile.batch = is_one ? grid.first_batch + place.batch : placed.batch;
        tile.partial_batch = is_one ? tile.batch : placed.partial_batch;
    }
    __syncwarp();
    cell_start = max(cell_start, sequence.row_start);
    cell_end = min(cell_end, sequence.row_start + sequence.row_count);
    if (cell_start >= cell_end)
        return false;

    const unsigned active = find_row_blocks<rows_are_keys, may_be_several>(grid, sequence, search, lane, place.index,
                                                                           cell_start, cell_end, tile);
    if (!active)
        return false;
    share_ranges(grid, search, lane, active);
    const int ranges =
        find_ranges<rows_are_keys, range_block_rows>(grid, sequence, search, lane, active, placed.start, tile);
    if (ranges == 0 && grid.skips_empty)
        return false;
    if (may_be_several && lane < row_blocks) // positions become rows of the call
        tile.row_block[lane].first += placed.start;
    __syncwarp();
    return true;
}

// Finds the tile of a grid over one branch in one sequence. The rows of a segment are then one class, which makes the
// search a few times faster. With short tiles, consumers wait for this search. Lane u finds row block u. The row blocks
// meet rows at positions in [range_start, range_end). With `skips_empty` there are no tiles that meet no row.
template <bool rows_are_keys, int range_block_rows, int row_blocks>
__device__ __forceinline__ bool find_tile_of_branch(const TileGrid &grid, const TilePlace &place, int range_start,
                                                    int range_end, bool skips_empty, Tile<row_blocks> &tile) {
    const int lane = static_cast<int>(threadIdx.x) % warp_threads;
    const SequenceGrid &sequence = grid.sequence;
    if (place.segment >= sequence.segments || place.cell > 0)
        return false;
    const int head = grid.first_head + place.head * grid.head_step;
    const GridBranch &grid_branch = grid.branches[0];
    const CellBranch branch(grid_branch, grid_branch.length, sequence.sequence_length, head,
                            (sequence.first_segment + place.segment) * sequence.segment_length);
    if (!branch.serves)
        return false;
    const auto members = [&](int first, int end, int dilation, int residue) {
        return Members(max(branch.start, first), min(branch.end, end), residue,
                       dilation == 1 ? FastDivmod(1) : grid_branch.dilation);
    };
    const Members rows =
        members(sequence.row_start, sequence.row_start + sequence.row_count, branch.row_dilation, branch.row_residue);
    const int all = quotient_up(rows.count, row_block_rows), number = place.index * row_blocks + lane;
    if (place.index * row_blocks >= all)
        return false;

    RowBlock row_block{};
    if (lane < row_blocks && number < all) {
        // The longest row block comes first, as in a grid over several branches.
        const int j = (grid.causal && !rows_are_keys ? all - 1 - number : number) * row_block_rows;
        int padding = 0;
        if (grid.zero_keys && !branch.is_window)
            padding =
                padding_of(grid_branch.range_dilation, grid_branch.length,
                           Members(branch.start, branch.end, branch.range_residue, grid_branch.range_dilation).count);
        row_block = {rows.first + j * branch.row_dilation, branch.row_dilation, min(row_block_rows, rows.count - j), 1,
                     static_cast<float>(padding)};
    }
    if (lane < row_blocks)
        tile.row_block[lane] = row_block;
    if (lane == 0) {
        tile.head = head;
        tile.batch = tile.partial_batch = grid.first_batch + place.batch;
    }
    int from = range_start, to = range_end, far = 0;
    if (grid.has_windows) {
        const SeenPositions seen =
            SeenPositions::find<rows_are_keys>(row_block.rows > 0, row_block, grid_branch.before, grid_branch.after,
                                               max(from, grid_branch.range_start), min(to, grid_branch.range_end));
        from = seen.from;
        to = seen.to;
        far = seen.far;
    }
    const Members range_members = members(from, to, branch.range_dilation, branch.range_residue);
    const auto quotient = [&](int x) { return grid_branch.range_dilation.quotient(x); };
    Range<row_blocks> range;
    range.stride = branch.range_dilation;
    range.before = grid_branch.before;
    range.after = grid_branch.after;
    range.first = range_members.first;
    range.count = range_members.count;
    range.hides_first = false;
    int parts = 1, first_rows = 0, ranges = 0;
    if (grid.has_windows) {
        first_rows = rows_of_first_blocks<rows_are_keys, range_block_rows>(range, far, quotient);
        parts += first_rows > 0 && first_rows < range.count;
    }
#pragma unroll 1
    for (int i = 0; i < parts; ++i) {
        if (grid.has_windows) {
            range.first = range_members.first;
            range.count = range_members.count;
            take_part<rows_are_keys>(range, first_rows, first_rows > 0 && i + 1 == parts);
        }
        SeenBlocks part{};
        if (row_block.rows > 0) {
            find_blocks<rows_are_keys, range_block_rows>(grid, range, row_block, quotient, part.blocks,
                                                         part.full_blocks);
            for (std::uint8_t &column_pair : part.multiplicities)
                column_pair = 1 | 1 << 4;
        }
        range.blocks = max_of_warp(part.blocks);
        if (range.blocks == 0)
            continue;
        auto &target = tile.range[ranges++];
        write_range(grid, lane, 0, range, target);
        if (lane < row_blocks)
            target.part[lane] = part;
    }
    if (ranges == 0 && skips_empty)
        return false;
    if (lane == 0)
        tile.ranges = ranges;
    __syncwarp();
    return true;
}

// Finds tile `id` of such a grid.
template <bool rows_are_keys, int range_block_rows, int row_blocks>
__device__ __forceinline__ bool find_tile_of_branch(const TileGrid &grid, unsigned id, Tile<row_blocks> &tile) {
    const SequenceGrid &sequence = grid.sequence;
    return find_tile_of_branch<rows_are_keys, range_block_rows>(
        grid, find_place<rows_are_keys>(grid, sequence, true, static_cast<int>(id)), sequence.range_start,
        sequence.range_start + sequence.range_count, grid.skips_empty, tile);
}

// Finds tile `id` by code made for its kind of grid. That is faster, but too much code for kernels whose tile-finding
// warps also multiply. `may_be_several`: the grid may be over several sequences.
template <bool rows_are_keys, int range_block_rows, bool may_be_several, int row_blocks>
__device__ __forceinline__ bool find_tile(const TileGrid &grid, TileSearch &search, unsigned id,
                                          Tile<row_blocks> &tile) {
    if (may_be_several && grid.sequences)
        return find_tile_of_branches<rows_are_keys, range_block_rows, Sequences::several>(grid, search, id, tile);
    if (grid.has_one_class())
        return find_tile_of_branch<rows_are_keys, range_block_rows>(grid, id, tile);
    return find_tile_of_branches<rows_are_keys, range_block_rows, Sequences::one>(grid, search, id, tile);
}

} // namespace annulus
