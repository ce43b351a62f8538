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
//
// Windows. Only the range rows that some row of the tile sees are visited, and masks hide what a single row does not
// see. Windows are not merged. Global positions in a grid of all rows are a window without limits of its own, of which
// only these positions exist. If keys count once, a window may visit range rows of branch b, and the interval that b
// leaves out differs from row to row. It still is one interval, since it contains the row. The masks of b hide it.
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

// The range rows that the rows of a tile see in a window: rows at the positions from `from` to `to` - 1.
struct SeenPositions {
    int from, to;
    int far; // position of the tile's row that sees most, and whose first rows are hidden the most

    // The positions are among those from `start` to `end` - 1. `takes_part`: whether the lane's row block does. The
    // whole warp calls it.
    template <bool rows_are_keys>
    __device__ __forceinline__ static SeenPositions find(bool takes_part, const RowBlock &row_block, int before,
                                                         int after, int start, int end) {
        const int first = min_of_warp(takes_part ? row_block.first : position_limit);
        const int last = max_of_warp(takes_part ? row_block.position(row_block.rows - 1) : -1);
        const int from = min(end, max(start, first - before));
        return {from, max(from, min(end, last + after + 1)), rows_are_keys ? first : last};
    }
};

// Returns how many rows of a range are in the blocks in which the row `far` of a tile does not see all first rows.
template <bool rows_are_keys, int range_block_rows, int row_blocks, class Quotient>
__device__ __forceinline__ int rows_of_first_blocks(const Range<row_blocks> &range, int far, const Quotient &quotient) {
    const int hidden = range.template count_to_edge<rows_are_keys>(far, true, quotient);
    return min(range.count, quotient_up(hidden, range_block_rows) * range_block_rows);
}

// Makes `range` the part of it that has its first `first_rows` rows, counted like blocks, or the part that has the
// rest.
template <bool rows_are_keys, int row_blocks>
__device__ __forceinline__ void take_part(Range<row_blocks> &range, int first_rows, bool hides_first) {
    const int rest = range.count - first_rows;
    if (hides_first == rows_are_keys) // the part comes last in the order of positions
        range.first += range.stride * (hides_first ? rest : first_rows);
    range.count = hides_first ? first_rows : rest;
    range.hides_first = hides_first;
}

// Sets how many blocks of a range a row block sees, and how many of them need no mask. quotient(x) must be x /
// range.stride. The row block must take part in the range's branch.
//
// Kernels of forward compute blocks without a mask with the maxima of the blocks before. A query that had met no key
// would have no maximum, and its scores would be computed twice (ForwardConsumer::find_probabilities). So if there are
// blocks with a mask, each query sees a key of them. The kernels that need this have blocks of more rows than a row
// block. The kernels for dQ do not need it, and have blocks of at most 64 rows.
template <bool rows_are_keys, int range_block_rows, int row_blocks, class Quotient>
__device__ __forceinline__ void find_blocks(const TileGrid &grid, const Range<row_blocks> &range,
                                            const RowBlock &row_block, const Quotient &quotient, int &blocks,
                                            int &full) {
    const int last = row_block.position(row_block.rows - 1);
    const int far = rows_are_keys ? row_block.first : last, near = rows_are_keys ? last : row_block.first;
    const auto count_to_edge = [&](int position, bool begins) {
        return grid.is_bounded() ? range.template count_to_edge<rows_are_keys>(position, begins, quotient)
                                 : range.count;
    };
    blocks = quotient_up(count_to_edge(far, false), range_block_rows);
    const int near_count = count_to_edge(near, range.hides_first);
    full = near_count / range_block_rows;
    if (range.hides_first && full >= blocks)
        blocks = full = 0;
    if constexpr (!rows_are_keys && range_block_rows > row_block_rows)
        if (!range.hides_first && full > 0 && full < blocks && full * range_block_rows == near_count)
            --full;
}

// Writes a range, with its tensor map. `start` is the row of position 0; the written range counts rows of the call
// instead of positions.
template <int row_blocks>
__device__ __forceinline__ void write_range(const TileGrid &grid, int lane, int start, const Range<row_blocks> &range,
                                            Range<row_blocks> &target) {
    const int row = grid.range_stride.quotient(range.first + start - grid.first_range_row);
    // If another branch has left rows to this one, this range may have a single row. Then any stride will do.
    const bool has_stride = grid.range_stride.remainder(range.stride) == 0;
    const int row_stride = has_stride ? grid.range_stride.quotient(range.stride) : 1;
    const int own_stride = lane < grid.stride_count ? grid.strides[lane].value : 0; // of the lane-th pair of maps
    const int map = __ffs(__ballot_sync(~0u, own_stride == row_stride)) - 1;
    const int residue = grid.strides[map].remainder(row);
    if (lane == 0) {
        target.first = range.first + start;
        target.stride = range.stride;
        target.count = range.count;
        target.blocks = range.blocks;
        target.before = range.before;
        target.after = range.after;
        target.hides_first = range.hides_first;
        target.map = static_cast<std::int8_t>(2 * map + (residue >= grid.longer_residues[map]));
    }
}

// Appends a range of branch b if some row block sees a row of it. The branches `descendants` set the multiplicities.
template <bool rows_are_keys, int range_block_rows, int row_blocks>
__device__ __forceinline__ void add_range(const TileGrid &grid, const TileSearch &search, int lane, int b,
                                          unsigned descendants, int start, Range<row_blocks> range,
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
    write_range(grid, lane, start, range, target);
}

// Fills in the ranges of a tile whose row blocks take part in the branches `active`. Returns the number of ranges.
// Position 0 of the sequence is row `start`.
template <bool rows_are_keys, int range_block_rows, int row_blocks>
__device__ __forceinline__ int find_ranges(const TileGrid &grid, const SequenceGrid &sequence, const TileSearch &search,
                                           int lane, unsigned active, int start, Tile<row_blocks> &tile) {
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
            int from = max(side == 0 ? branch.start : branch.covered_end, sequence.range_start);
            int to = min(side == 0 ? branch.covered_start : branch.end, sequence.range_start + sequence.range_count);
            Range<row_blocks> range;
            range.before = side == 0 ? grid.branches[b].before : branch.right_before;
            range.after = side == 0 ? branch.left_after : grid.branches[b].after;
            range.hides_first = false;
            int far = 0;
            if (grid.has_windows) {
                const RowBlock &row_block = tile.row_block[min(lane, row_blocks - 1)];
                const SeenPositions seen = SeenPositions::find<rows_are_keys>(
                    row_block.branches >> b & 1, row_block, range.before, range.after,
                    max(from, grid.branches[b].range_start), min(to, grid.branches[b].range_end));
                from = seen.from;
                to = seen.to;
                far = seen.far;
            }
            const Members rows(from, to, branch.range_residue, grid_dilation);
            range.stride = splits * dilation;
            int parts = min(splits, rows.count), first_rows = 0;
            if (grid.has_windows && splits == 1) { // a window's range is not split otherwise
                range.first = rows.first;
                range.count = rows.count;
                first_rows = rows_of_first_blocks<rows_are_keys, range_block_rows>(
                    range, far, [&](int x) { return grid_dilation.quotient(x); });
                parts += first_rows > 0 && first_rows < rows.count;
            }
            for (int part = 0; part < parts; ++part) {
                range.first = rows.first;
                range.count = rows.count;
                if (splits > 1) {
                    range.first += part * dilation;
                    range.count = (rows.count - 1 - part) / splits + 1;
                } else if (grid.has_windows) {
                    take_part<rows_are_keys>(range, first_rows, first_rows > 0 && part + 1 == parts);
                }
                add_range<rows_are_keys, range_block_rows>(grid, search, lane, b, descendants, start, range, tile,
                                                           ranges);
            }
        }
    }
    if (lane == 0)
        tile.ranges = ranges;
    return ranges;
}

} // namespace annulus
