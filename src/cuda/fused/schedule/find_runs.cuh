// SPDX-License-Identifier: Apache-2.0
// The runs of a tile: the rows of the other side that its units meet, each once.
//
// Merging. Where the runs of branch b, as far as they lie in the segment of branch a, belong to runs of branch a (and
// its units take part in a), b does not visit them: a does, with the multiplicity in which they count. Such an a is
// the parent of b; b visits what lies left and right of the parent's segment. How often a row counts depends on its
// position modulo the largest dilation of those below a; a run is split until that is a period of at most 8 rows,
// which a thread's columns of scores have as well.
//
// An example. Branch a has segments of 4 and dilation 1, branch b segments of 16 and dilation 2; 16 positions, without
// causality. In the cell of positions 4 to 7 queries 4 and 6 are a unit, which takes part in both. In branch a they
// meet keys 4, 5, 6, 7, in branch b keys 0, 2, …, 14. Keys 4 and 6 are keys of both, so that a is b's parent, and there
// are three runs:
//
//     a             4, 5, 6, 7        with multiplicities 2, 1, 2, 1
//     b, left       0, 2              with multiplicity 1
//     b, right      8, 10, 12, 14     with multiplicity 1
//
// If the dilation of b were 3, query 6 would be the one of both, and of the keys 4, 5, 6, 7 only 6 counted twice. Such
// multiplicities have a period of 3, which columns of eight have not. So the run of a is split in three of stride 3,
// each of one multiplicity: 4, 7 and 5 with 1, 6 with 2.
#pragma once

#include "cuda/device/warp.cuh"
#include "cuda/fused/schedule/tile.cuh"
#include "cuda/fused/schedule/tile_search.cuh"

#include <cstdint>

namespace annulus {

// Finds the parents among the branches `taking`.
__device__ __forceinline__ void find_parents(const TileGrid &grid, TileSearch &search, int lane, unsigned taking) {
    for (unsigned left = taking; left; left &= left - 1) {
        const int i = __ffs(left) - 1;
        const CellBranch &other = search.branches[i];
        if (lane > i && (taking >> lane & 1))
            search.branches[lane].try_parent(grid, i, other);
        __syncwarp();
    }
}

// How often a position of a run of branch b counts for a unit: once, and once more in each of the branches `below` b
// that have the position and the unit.
__device__ __forceinline__ int multiplicity_of(const TileGrid &grid, const TileSearch &search, unsigned below,
                                               unsigned branches_of_unit, int position) {
    int multiplicity = 1;
    for (unsigned others = below; others; others &= others - 1) {
        const int other = __ffs(others) - 1;
        multiplicity += (branches_of_unit & others & -others) &&
                        grid.branches[other].run_dilation.remainder(position) == search.branches[other].run_residue;
    }
    return multiplicity;
}

// What a unit that takes part in the run's branch has of it.
template <bool of_keys, int step, int units>
__device__ __forceinline__ void find_steps(const TileGrid &grid, const Run<units> &run, const Unit &unit, int &steps,
                                           int &full) {
    const int last = unit.position(unit.rows - 1);
    const int most = grid.causal ? run.template visible<of_keys>(of_keys ? unit.first : last) : run.count;
    const int least = grid.causal ? run.template visible<of_keys>(of_keys ? last : unit.first) : run.count;
    steps = quotient_up(most, step);
    full = least / step;
}

// Writes a run and where its first row is: in which tensor map, and at which coordinates. `own_stride` is that of the
// lane-th pair of maps.
template <int units>
__device__ __forceinline__ void write_run(const TileGrid &grid, int lane, int own_stride, const Run<units> &run,
                                          Run<units> &target) {
    const int row = grid.run_stride.quotient(run.first - grid.run_start);
    // Where rows are those that a branch left, another one may have a single row.
    const bool has_stride = grid.run_stride.remainder(run.stride) == 0;
    const int row_stride = has_stride ? grid.run_stride.quotient(run.stride) : 1;
    const int map = __ffs(__ballot_sync(~0u, own_stride == row_stride)) - 1;
    const int residue = grid.strides[map].remainder(row);
    if (lane == 0) {
        target.first = run.first;
        target.stride = run.stride;
        target.count = run.count;
        target.steps = run.steps;
        target.residue = residue;
        target.index = grid.strides[map].quotient(row);
        target.map = 2 * map + (residue >= grid.longer_residues[map]);
    }
}

// Appends a run of branch b, whose multiplicities are those of branches `below`, if a unit sees some of it.
template <bool of_keys, int step, int units>
__device__ __forceinline__ void add_run(const TileGrid &grid, const TileSearch &search, int lane, int b, unsigned below,
                                        int own_stride, Run<units> run, UnitTile<units> &tile, int &runs) {
    // Lane 8 u + j: unit u, column j.
    const int u = min(lane / multiplicity_period, units - 1), j = lane % multiplicity_period;
    const Unit &unit = tile.unit[u];
    const unsigned place = of_keys ? (run.count + j) % multiplicity_period : j;
    // Beyond the run it may be anything.
    const int position = static_cast<int>(static_cast<unsigned>(run.first) + place * static_cast<unsigned>(run.stride));
    const int multiplicity = multiplicity_of(grid, search, below, unit.branches, position);
    int steps = 0, full = 0;
    if (unit.branches >> b & 1)
        find_steps<of_keys, step>(grid, run, unit, steps, full);
    run.steps = __reduce_max_sync(~0u, steps);
    if (run.steps == 0)
        return;
    Run<units> &target = tile.run[runs++];
    const int of_next = __shfl_down_sync(~0u, multiplicity, 1);
    if (lane < units * multiplicity_period && j % 2 == 0) {
        target.unit[u].multiplicities[j / 2] = static_cast<std::uint8_t>(multiplicity | of_next << 4);
        target.unit[u].steps = steps;
        target.unit[u].full = full;
    }
    write_run(grid, lane, own_stride, run, target);
}

// Fills in the runs of a tile whose units take part in the branches `taking`; returns how many.
template <bool of_keys, int step, int units>
__device__ __forceinline__ int find_runs(const TileGrid &grid, const TileSearch &search, int lane, unsigned taking,
                                         UnitTile<units> &tile) {
    const int own_stride = lane < grid.stride_count ? grid.strides[lane].value : 0;
    int runs = 0;
    for (unsigned left = taking; left; left &= left - 1) {
        const int b = __ffs(left) - 1;
        const CellBranch &branch = search.branches[b];
        const int dilation = branch.run_dilation, parent = branch.parent;
        const bool counts_here = (taking >> lane & 1) && (search.branches[lane % most_branches].ancestors >> b & 1);
        const unsigned below = __ballot_sync(~0u, counts_here);
        const FastDivmod &of_grid = grid.branches[b].run_dilation;
        const int period = of_grid.quotient(
            __reduce_max_sync(~0u, counts_here ? search.branches[lane % most_branches].run_dilation : dilation));
        const int splits = splits_of_period(period);
        // Under causality queries meet nothing right of their own segment, keys nothing left of it.
        const int first_side = of_keys && parent >= 0 && grid.causal,
                  last_side = parent >= 0 && (of_keys || !grid.causal);
        for (int side = first_side; side <= last_side; ++side) {
            const int from = max(side == 0 ? branch.start : search.branches[parent].end, grid.run_start);
            const int to = min(side == 0 && parent >= 0 ? search.branches[parent].start : branch.end,
                               grid.run_start + grid.run_count);
            const Members rows(from, to, branch.run_residue, of_grid);
            for (int split = 0; split < min(splits, rows.count); ++split) {
                Run<units> run;
                run.first = rows.first + split * dilation;
                run.stride = splits * dilation;
                run.count = splits == 1 ? rows.count : (rows.count - 1 - split) / splits + 1;
                add_run<of_keys, step>(grid, search, lane, b, below, own_stride, run, tile, runs);
            }
        }
    }
    if (lane == 0)
        tile.runs = runs;
    return runs;
}

} // namespace annulus
