// SPDX-License-Identifier: Apache-2.0
// The row blocks of a tile.
//
// The classes of row block rows are the leaves of a tree. Modulo levels[0] = 1 all positions are one class. A class is
// divided by the next level if some branch has only a part of it. Only classes that take part in a branch are kept, one
// for each lane. Classes are ordered by the number of rows that they meet, the longest first. Their row blocks follow
// one another, and a tile takes the next `row_blocks` of them.
#pragma once

#include "cuda/device/warp.cuh"
#include "cuda/fused/schedule/tile.cuh"
#include "cuda/fused/schedule/tile_search.cuh"

#include <cstdint>

namespace annulus {

// Finds the classes of the row blocks of a cell. Does nothing if the last cell had the same classes.
__device__ __forceinline__ void find_classes(const TileGrid &grid, TileSearch &search, int lane) {
    const bool is_branch = lane < grid.branch_count, serves = is_branch && search.branches[lane].serves;
    const int own_dilation = serves ? search.branches[lane].row_dilation : 0;
    const int own_residue = serves ? search.branches[lane].row_residue : 0;
    if (__all_sync(~0u, !is_branch || (search.dilations[lane] == own_dilation && search.residues[lane] == own_residue)))
        return;
    if (is_branch) {
        search.dilations[lane] = own_dilation;
        search.residues[lane] = own_residue;
    }
    const FastDivmod &dilation = grid.branches[serves ? lane : 0].dilation;
    int count = 0, level = 0, residue = 0;
    do {
        const FastDivmod &modulus = grid.levels[level];
        const bool whole = own_dilation <= modulus.value;
        if (__any_sync(~0u, !whole && modulus.remainder(own_residue) == residue)) { // the class is divided further
            ++level;
            continue;
        }
        const bool is_member = serves && whole && (own_dilation == 1 || dilation.remainder(residue) == own_residue);
        const unsigned members = __ballot_sync(~0u, is_member);
        if (members) {
            if (lane == 0)
                search.classes[count] = {residue, static_cast<std::uint8_t>(level), static_cast<std::uint8_t>(members)};
            ++count;
        }
        // Go to the next class of the same level, or of the nearest level above that has another class.
        for (; level > 0; --level) {
            const int above = grid.levels[level - 1].value;
            if (residue + above < grid.levels[level].value) {
                residue += above;
                break;
            }
            residue = grid.levels[level - 1].remainder(residue);
        }
    } while (level > 0);
    if (lane == 0)
        search.class_count = count;
    __syncwarp();
}

// Returns how many keys a whole segment has beyond `count`.
__device__ __forceinline__ int padding_of(const FastDivmod &range_dilation, const FastDivmod &length, int count) {
    return range_dilation.quotient(length.value - 1) + 1 - count;
}

// Fills in the row blocks of tile `index` of a cell. Returns the union of their branches, or 0 if there is no such
// tile.
template <bool rows_are_keys, bool may_be_several, int row_blocks>
__device__ __forceinline__ unsigned find_row_blocks(const TileGrid &grid, const SequenceGrid &sequence,
                                                    TileSearch &search, int lane, int index, int cell_start,
                                                    int cell_end, Tile<row_blocks> &tile) {
    const bool is_branch = lane < grid.branch_count;
    const unsigned serving = __ballot_sync(~0u, is_branch && search.branches[lane].serves);
    // the residue of the lane's class
    int residue, classes = 1;
    FastDivmod modulus;
    unsigned own_branches = serving;
    if (grid.has_residue_classes) {
        // Each residue is a class, which meets the same class of the other side.
        residue = sequence.tiles_of_class.quotient(index);
        modulus = grid.residue_classes;
        index = sequence.tiles_of_class.remainder(index);
        if (is_branch && search.branches[lane].row_rule == ANNULUS_QUERY_RESIDUE)
            search.branches[lane].range_residue = grid.branches[lane].dilation.remainder(residue);
        __syncwarp();
    } else if (grid.branch_count == 1) {
        residue = search.branches[0].row_residue;
        modulus = search.branches[0].row_dilation > 1 ? grid.branches[0].dilation : FastDivmod(1);
    } else {
        find_classes(grid, search, lane);
        classes = search.class_count;
        const RowClass &lane_class = search.classes[lane < classes ? lane : 0];
        residue = lane_class.residue;
        modulus = grid.levels[lane_class.level];
        own_branches = lane_class.branches;
    }
    if (lane >= classes)
        own_branches = 0;
    const Members rows(cell_start, cell_end, residue, modulus);
    const int own_row_blocks = own_branches ? quotient_up(rows.count, row_block_rows) : 0;
    if (index * row_blocks >= sum_of_warp(own_row_blocks))
        return 0;

    unsigned met_rows = 0; // range rows that the class meets; it only orders the classes, so it may wrap around
    float padding_keys = 0;
    for (unsigned left = own_branches; left; left &= left - 1) {
        const CellBranch &branch = search.branches[__ffs(left) - 1];
        const FastDivmod &dilation = grid.branches[__ffs(left) - 1].range_dilation;
        const int count = Members(branch.start, branch.end, branch.range_residue, dilation).count;
        met_rows += count;
        if (grid.zero_keys && !branch.is_window)
            padding_keys += padding_of(dilation, length_of<may_be_several>(grid, sequence, __ffs(left) - 1), count);
    }
    int before = 0; // row blocks of the classes that come before the lane's class
    for (int i = 0; i < classes; ++i) {
        const unsigned other_met_rows = __shfl_sync(~0u, met_rows, i);
        const int other_row_blocks = __shfl_sync(~0u, own_row_blocks, i);
        before += other_met_rows > met_rows || (other_met_rows == met_rows && i < lane) ? other_row_blocks : 0;
    }

    unsigned all = 0;
#pragma unroll
    for (int i = 0; i < row_blocks; ++i) {
        const int place = index * row_blocks + i - before;
        const bool is_owner = place >= 0 && place < own_row_blocks;
        const unsigned owner = __ballot_sync(~0u, is_owner);
        if (is_owner) {
            // The longest row block comes first: later queries see more keys, and earlier keys are seen by more
            // queries.
            const int j = (grid.causal && !rows_are_keys ? own_row_blocks - 1 - place : place) * row_block_rows;
            tile.row_block[i] = {rows.first + j * modulus.value, modulus.value, min(row_block_rows, rows.count - j),
                                 own_branches, padding_keys};
        } else if (!owner && lane == 0) {
            tile.row_block[i] = {0, 0, 0, 0, 0};
        }
        if (owner)
            all |= __shfl_sync(~0u, own_branches, __ffs(owner) - 1);
    }
    __syncwarp();
    return all;
}

} // namespace annulus
