// SPDX-License-Identifier: Apache-2.0
// The ranges of a tile: the rows of the other side that its row blocks meet, each row once.
//
// Merging. Branch a may contain the ranges of branch b that lie in the segment of a, and the row blocks of b. Then b
// does not visit these rows. Branch a visits them and counts each with its multiplicity. Branch a is then the parent of
// b, and b visits only the rows to the left and right of the parent's segment. The multiplicity of a row depends on its
// position modulo the largest dilation of the descendants of a. A range is split until that period is at most 8 rows,
// which is also the period of a thread's columns of scores.
//
// Example. Branch a has segments of 4 and dilation 1, branch b segments of 16 and dilation 2. There are 16 positions
// and no causality. In the cell of positions 4 to 7, queries 4 and 6 are a row block, which takes part in both
// branches. In branch a they meet keys 4, 5, 6, 7, in branch b keys 0, 2, …, 14. Keys 4 and 6 belong to both branches.
// So a is the parent of b, and there are three ranges:
//
//     a             4, 5, 6, 7        with multiplicities 2, 1, 2, 1
//     b, left       0, 2              with multiplicity 1
//     b, right      8, 10, 12, 14     with multiplicity 1
//
// If the dilation of b were 3, only query 6 would take part in both branches. Among keys 4, 5, 6, 7 only key 6 would
// count twice. The multiplicities then have a period of 3, which does not divide 8 columns. So the range of a is split
// into three ranges of stride 3, each of one multiplicity: 4, 7 and 5 with 1, 6 with 2.
//
// Keys that count once. All multiplicities are 1 and no range is split. Branch b leaves to a every row that both
// branches have in the segment of a. That segment need not be inside the segment of b. All segments of a cell contain
// the cell. So the union of the segments that b leaves to other branches is one interval. Branch b visits the rows to
// the left and right of it.
#pragma once

#include "cuda/device/warp.cuh"
#include "cuda/fused/schedule/tile.cuh"
#include "cuda/fused/schedule/tile_search.cuh"

#include <cstdint>

namespace annulus {

// Marks for each branch of `active` the rows that another active branch visits for it. Lane i updates branch i.
__device__ __forceinline__ void share_ranges(const TileGrid &grid, TileSearch &search, int lane, unsigned active) {
    for (unsigned left = active; left; left &= left - 1) {
        const int i = __ffs(left) - 1;
        const CellBranch &other = search.branches[i];
        if (lane > i && (active >> lane & 1))
            search.branches[lane].mark_covered(grid, i, other);
        __syncwarp();
    }
}

// Returns how often a position of a range of branch b counts for a row block. It counts once for b, and once for each
// of the branches `descendants` of b that have the position and the row block.
__device__ __forceinline__ int multiplicity_of(const TileGrid &grid, const TileSearch &search, unsigned descendants,
                                               unsigned branches_of_row_block, int position) {
    int multiplicity = 1;
    for (unsigned others = descendants; others; others &= others - 1) {
        const int other = __ffs(others) - 1;
        multiplicity += (branches_of_row_block & others & -others) &&
                        grid.branches[other].range_dilation.remainder(position) == search.branches[other].range_residue;
    }
    return multiplicity;
}

// Sets how many blocks of a range a row block sees, and how many of them it sees in full. quotient(x) must be x /
// range.stride. The row block must take part in the range's branch.
template <bool rows_are_keys, int range_block_rows, int row_blocks, class Quotient>
__device__ __forceinline__ void find_blocks(const TileGrid &grid, const Range<row_blocks> &range,
                                            const RowBlock &row_block, const Quotient &quotient, int &blocks,
                                            int &full) {
    const int last = row_block.position(row_block.rows - 1);
    const auto seen_from = [&](int position) {
        return grid.causal ? range.template visible<rows_are_keys>(position, quotient) : range.count;
    };
    const int max_visible = seen_from(rows_are_keys ? row_block.first : last);
    const int min_visible = seen_from(rows_are_keys ? last : row_block.first);
    blocks = quotient_up(max_visible, range_block_rows);
    full = min_visible / range_block_rows;
}

// Writes a range, with the tensor map and the coordinates of its first row. `own_stride` is the stride of the lane-th
// pair of tensor maps. `start` is the row of position 0; the written range counts rows of the call instead of
// positions.
template <int row_blocks>
__device__ __forceinline__ void write_range(const TileGrid &grid, int lane, int own_stride, int start,
                                            const Range<row_blocks> &range, Range<row_blocks> &target) {
    const int row = grid.range_stride.quotient(range.first + start - grid.first_range_row);
    // If another branch has left rows to this one, this range may have a single row. Then any stride will do.
    const bool has_stride = grid.range_stride.remainder(range.stride) == 0;
    const int row_stride = has_stride ? grid.range_stride.quotient(range.stride) : 1;
    const int map = __ffs(__ballot_sync(~0u, own_stride == row_stride)) - 1;
    const int residue = grid.strides[map].remainder(row);
    if (lane == 0) {
        target.first = range.first + start;
        target.stride = range.stride;
        target.count = range.count;
        target.blocks = range.blocks;
        target.residue = residue;
        target.index = grid.strides[map].quotient(row);
        target.map = 2 * map + (residue >= grid.longer_residues[map]);
    }
}

// Appends a range of branch b if some row block sees a row of it. The branches `descendants` set the multiplicities.
template <bool rows_are_keys, int range_block_rows, int row_blocks>
__device__ __forceinline__ void add_range(const TileGrid &grid, const TileSearch &search, int lane, int b,
                                          unsigned descendants, int own_stride, int start, Range<row_blocks> range,
                                          Tile<row_blocks> &tile, int &ranges) {
    // Lane 8 u + j handles column j for row block u.
    const int u = min(lane / multiplicity_period, row_blocks - 1), j = lane % multiplicity_period;
    const RowBlock &row_block = tile.row_block[u];
    const unsigned place = rows_are_keys ? (range.count + j) % multiplicity_period : j;
    // Beyond the range the value is not used.
    const int position =
        static_cast<int>(static_cast<unsigned>(range.first) + place * static_cast<unsigned>(range.stride));
    const int multiplicity = multiplicity_of(grid, search, descendants, row_block.branches, position);
    int blocks = 0, full = 0;
    if (row_block.branches >> b & 1)
        find_blocks<rows_are_keys, range_block_rows>(
            grid, range, row_block, [&](int x) { return x / range.stride; }, blocks, full);
    range.blocks = max_of_warp(blocks);
    if (range.blocks == 0)
        return;
    Range<row_blocks> &target = tile.range[ranges++];
    const int next_multiplicity = __shfl_down_sync(~0u, multiplicity, 1);
    if (lane < row_blocks * multiplicity_period && j % 2 == 0) {
        target.part[u].multiplicities[j / 2] = static_cast<std::uint8_t>(multiplicity | next_multiplicity << 4);
        target.part[u].blocks = blocks;
        target.part[u].full_blocks = full;
    }
    write_range(grid, lane, own_stride, start, range, target);
}

// Fills in the ranges of a tile whose row blocks take part in the branches `active`. Returns the number of ranges.
// Position 0 of the sequence is row `start`.
template <bool rows_are_keys, int range_block_rows, int row_blocks>
__device__ __forceinline__ int find_ranges(const TileGrid &grid, const SequenceGrid &sequence, const TileSearch &search,
                                           int lane, unsigned active, int start, Tile<row_blocks> &tile) {
    const int own_stride = lane < grid.stride_count ? grid.strides[lane].value : 0;
    int ranges = 0;
    for (unsigned left = active; left; left &= left - 1) {
        const int b = __ffs(left) - 1;
        const CellBranch &branch = search.branches[b];
        const int dilation = branch.range_dilation;
        const bool has_covered = branch.has_covered();
        const bool counts_here = (active >> lane & 1) && (search.branches[lane % max_branches].ancestors >> b & 1);
        const unsigned descendants = __ballot_sync(~0u, counts_here);
        const FastDivmod &grid_dilation = grid.branches[b].range_dilation;
        const int period = grid_dilation.quotient(
            max_of_warp(counts_here ? search.branches[lane % max_branches].range_dilation : dilation));
        const int splits = splits_of_period(period);
        // Under causality queries meet no key to the right of their segment. Keys meet no query to the left of theirs.
        const int first_side = rows_are_keys && has_covered && grid.causal,
                  last_side = has_covered && (rows_are_keys || !grid.causal);
        for (int side = first_side; side <= last_side; ++side) {
            const int from = max(side == 0 ? branch.start : branch.covered_end, sequence.range_start);
            const int to =
                min(side == 0 ? branch.covered_start : branch.end, sequence.range_start + sequence.range_count);
            const Members rows(from, to, branch.range_residue, grid_dilation);
            for (int split = 0; split < min(splits, rows.count); ++split) {
                Range<row_blocks> range;
                range.first = rows.first + split * dilation;
                range.stride = splits * dilation;
                range.count = splits == 1 ? rows.count : (rows.count - 1 - split) / splits + 1;
                add_range<rows_are_keys, range_block_rows>(grid, search, lane, b, descendants, own_stride, start, range,
                                                           tile, ranges);
            }
        }
    }
    if (lane == 0)
        tile.ranges = ranges;
    return ranges;
}

} // namespace annulus
