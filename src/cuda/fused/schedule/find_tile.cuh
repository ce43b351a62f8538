// SPDX-License-Identifier: Apache-2.0
// From the number of a tile to its units and the runs that they meet, by one warp. Units are of queries and runs of
// keys, or with `of_keys` the other way round: who attends to whom is the same question from either side, but for
// causality.
//
// Lane i finds out about branch i in the cell: its segment and the residues, modulo its dilation and in global
// positions, of the rows of units and of runs. Classes of unit rows are the leaves of a tree: modulo levels[0] = 1 all
// positions are one class; a class falls apart modulo the next level while some branch has a part of it. Only classes
// that take part in a branch are kept, one a lane; ordered by the number of rows that they meet, the longest first,
// their units follow one another, and a tile takes the next few.
//
// Merging. Where the runs of branch b, as far as they lie in the segment of branch a, belong to runs of branch a (and
// its units take part in a), b does not visit them: a does, with the multiplicity in which they count. Such an a is
// the parent of b; b visits what lies left and right of the parent's segment. How often a row counts depends on its
// position modulo the largest dilation of those below a; a run is split until that is a period of at most 8 rows,
// which a thread's columns of scores have as well.
#pragma once

#include "cuda/device/warp.cuh"
#include "cuda/fused/schedule/cell.hpp"

#include <cstdint>

namespace annulus {

// Positions first, first + stride, …: `rows` of them. None: nothing to compute and nothing to write.
struct Unit {
    int first, stride, rows;
    unsigned branches; // a bit for each that they take part in
    float padding_keys;

    // Row i; the last one again behind it.
    __device__ __forceinline__ int position(int i) const { return first + stride * min(i, rows - 1); }
};

// What a unit has of a run: the first `steps` steps, of which the first `full` hide nothing from any row.
struct UnitRun {
    int steps, full;
    // Of columns 2 i and 2 i + 1 of a step, modulo the period: four bits each.
    std::uint8_t multiplicities[multiplicity_period / 2];
};

// Positions first, first + stride, …: `count` of them, of which some unit sees those of the first `steps` steps. They
// are visited from the last step to the first. Steps count from the first key, but from the last query: causality then
// lets a row see the first so many in either case. Columns of a step are always in the order of positions.
template <int units> struct Run {
    int first, stride, count, steps;
    int map, residue, index; // where the first row is: tensor map, and its coordinates
    UnitRun unit[units];

    // How many are visible to a row of the other side, under causality.
    template <bool of_keys> __device__ __forceinline__ int visible(int position) const {
        if (of_keys)
            return position <= first ? count : count - min(count, quotient_up(position - first, stride));
        return position < first ? 0 : min(count, (position - first) / stride + 1);
    }
};

template <int units> struct UnitTile {
    int batch, head;
    int runs; // -1: no tile any more
    Unit unit[units];
    Run<units> run[most_runs];
};

// A class of units.
struct UnitClass {
    int residue; // modulo pass.levels[level]
    std::uint8_t level;
    std::uint8_t branches; // a bit for each that they take part in
};

// What the warp that finds tiles has in shared memory for itself.
static_assert(most_branches <= 8, "ancestors, branches of classes, and multiplicities of four bits");
struct TileSearch {
    CellBranch branches[most_branches];
    // The classes that were found last, and for which dilations and residues of units: most tiles have the same ones as
    // the tile before.
    UnitClass classes[most_classes];
    int class_count;
    int dilations[most_branches], residues[most_branches];

    __device__ __forceinline__ void start(int lane) {
        if (lane < most_branches)
            dilations[lane] = -1;
        __syncwarp();
    }
};

// The classes of the units of a cell.
__device__ __forceinline__ void find_classes(const TileGrid &pass, TileSearch &search, int lane) {
    const bool is_branch = lane < pass.branch_count, serves = is_branch && search.branches[lane].serves;
    const int own_dilation = serves ? search.branches[lane].unit_dilation : 0;
    const int own_residue = serves ? search.branches[lane].unit_residue : 0;
    if (__all_sync(~0u, !is_branch || (search.dilations[lane] == own_dilation && search.residues[lane] == own_residue)))
        return;
    if (is_branch) {
        search.dilations[lane] = own_dilation;
        search.residues[lane] = own_residue;
    }
    const FastDivmod &dilation = pass.branches[serves ? lane : 0].dilation;
    int count = 0, level = 0, residue = 0;
    do {
        const FastDivmod &modulus = pass.levels[level];
        const bool whole = own_dilation <= modulus.value;
        if (__any_sync(~0u, !whole && modulus.remainder(own_residue) == residue)) { // it has parts
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
        // The next class of the same level, or of the nearest level above that has one left.
        for (; level > 0; --level) {
            const int above = pass.levels[level - 1].value;
            if (residue + above < pass.levels[level].value) {
                residue += above;
                break;
            }
            residue = pass.levels[level - 1].remainder(residue);
        }
    } while (level > 0);
    if (lane == 0)
        search.class_count = count;
    __syncwarp();
}

// Fills in the units of tile `index` of a cell; returns the union of their branches, 0 if there is no such tile.
template <bool of_keys, int units>
__device__ __forceinline__ unsigned find_units(const TileGrid &pass, TileSearch &search, int lane, int index,
                                               int cell_start, int cell_end, UnitTile<units> &tile) {
    const bool is_branch = lane < pass.branch_count;
    const unsigned serving = __ballot_sync(~0u, is_branch && search.branches[lane].serves);
    // Of the lane's class.
    int residue, classes = 1;
    FastDivmod modulus;
    unsigned own_branches = serving;
    if (pass.has_residue_classes) {
        // Each residue is a class, which meets the same class of the other side.
        residue = pass.tiles_of_class.quotient(index);
        modulus = pass.residue_classes;
        index = pass.tiles_of_class.remainder(index);
        if (is_branch && search.branches[lane].unit_rule == ANNULUS_QUERY_RESIDUE)
            search.branches[lane].run_residue = pass.branches[lane].dilation.remainder(residue);
        __syncwarp();
    } else if (pass.branch_count == 1) {
        residue = search.branches[0].unit_residue;
        modulus = search.branches[0].unit_dilation > 1 ? pass.branches[0].dilation : FastDivmod(1);
    } else {
        find_classes(pass, search, lane);
        classes = search.class_count;
        const UnitClass &of_lane = search.classes[lane < classes ? lane : 0];
        residue = of_lane.residue;
        modulus = pass.levels[of_lane.level];
        own_branches = of_lane.branches;
    }
    if (lane >= classes)
        own_branches = 0;
    const Members rows(cell_start, cell_end, residue, modulus);
    const int own_units = own_branches ? quotient_up(rows.count, unit_rows) : 0;
    if (index * units >= __reduce_add_sync(~0u, own_units))
        return 0;

    unsigned met = 0; // rows of runs; only to order classes: it may wrap around
    float padding_keys = 0;
    for (unsigned left = own_branches; left; left &= left - 1) {
        const CellBranch &branch = search.branches[__ffs(left) - 1];
        const GridBranch &of_pass = pass.branches[__ffs(left) - 1];
        const int count = Members(branch.start, branch.end, branch.run_residue, of_pass.run_dilation).count;
        met += count;
        if (pass.zero_keys)
            padding_keys += of_pass.run_dilation.quotient(of_pass.length.value - 1) + 1 - count;
    }
    int before = 0; // units of classes that meet more
    for (int i = 0; i < classes; ++i) {
        const unsigned other_met = __shfl_sync(~0u, met, i);
        const int other_units = __shfl_sync(~0u, own_units, i);
        before += other_met > met || (other_met == met && i < lane) ? other_units : 0;
    }

    unsigned all = 0;
#pragma unroll
    for (int i = 0; i < units; ++i) {
        const int place = index * units + i - before;
        const bool is_owner = place >= 0 && place < own_units;
        const unsigned owner = __ballot_sync(~0u, is_owner);
        if (is_owner) {
            // The longest first: later queries see more keys, earlier keys are seen by more queries.
            const int j = (pass.causal && !of_keys ? own_units - 1 - place : place) * unit_rows;
            tile.unit[i] = {rows.first + j * modulus.value, modulus.value, min(unit_rows, rows.count - j), own_branches,
                            padding_keys};
        } else if (!owner && lane == 0) {
            tile.unit[i] = {0, 0, 0, 0, 0};
        }
        if (owner)
            all |= __shfl_sync(~0u, own_branches, __ffs(owner) - 1);
    }
    __syncwarp();
    return all;
}

// Finds the parents among the branches `taking`.
__device__ __forceinline__ void find_parents(const TileGrid &pass, TileSearch &search, int lane, unsigned taking) {
    for (unsigned left = taking; left; left &= left - 1) {
        const int i = __ffs(left) - 1;
        const CellBranch &other = search.branches[i];
        if (lane > i && (taking >> lane & 1))
            search.branches[lane].try_parent(pass, i, other);
        __syncwarp();
    }
}

// Fills in the runs of a tile whose units take part in the branches `taking`; returns how many.
template <bool of_keys, int step, int units>
__device__ __forceinline__ int find_runs(const TileGrid &pass, const TileSearch &search, int lane, unsigned taking,
                                         UnitTile<units> &tile) {
    const int own_stride = lane < pass.stride_count ? pass.strides[lane].value : 0;
    int runs = 0;
    for (unsigned left = taking; left; left &= left - 1) {
        const int b = __ffs(left) - 1;
        const CellBranch &branch = search.branches[b];
        const int dilation = branch.run_dilation, parent = branch.parent;
        const bool counts_here = (taking >> lane & 1) && (search.branches[lane % most_branches].ancestors >> b & 1);
        const unsigned below = __ballot_sync(~0u, counts_here);
        const FastDivmod &of_pass = pass.branches[b].run_dilation;
        const int period = of_pass.quotient(
            __reduce_max_sync(~0u, counts_here ? search.branches[lane % most_branches].run_dilation : dilation));
        const int splits = splits_of_period(period);
        // Under causality queries meet nothing right of their own segment, keys nothing left of it.
        const int first_side = of_keys && parent >= 0 && pass.causal,
                  last_side = parent >= 0 && (of_keys || !pass.causal);
        for (int side = first_side; side <= last_side; ++side) {
            const int from = max(side == 0 ? branch.start : search.branches[parent].end, pass.run_start);
            const int to = min(side == 0 && parent >= 0 ? search.branches[parent].start : branch.end,
                               pass.run_start + pass.run_count);
            const Members rows(from, to, branch.run_residue, of_pass);
            for (int split = 0; split < min(splits, rows.count); ++split) {
                Run<units> run;
                run.first = rows.first + split * dilation;
                run.stride = splits * dilation;
                run.count = splits == 1 ? rows.count : (rows.count - 1 - split) / splits + 1;
                // Lane 8 u + j: unit u, column j.
                const int u = min(lane / multiplicity_period, units - 1), j = lane % multiplicity_period;
                const Unit &unit = tile.unit[u];
                const unsigned place = of_keys ? (run.count + j) % multiplicity_period : j;
                // Beyond the run it may be anything.
                const int position =
                    static_cast<int>(static_cast<unsigned>(run.first) + place * static_cast<unsigned>(run.stride));
                int multiplicity = 1;
                for (unsigned others = below; others; others &= others - 1) {
                    const int other = __ffs(others) - 1;
                    multiplicity +=
                        (unit.branches & others & -others) &&
                        pass.branches[other].run_dilation.remainder(position) == search.branches[other].run_residue;
                }
                int steps = 0, full = 0;
                if (unit.branches >> b & 1) {
                    const int last = unit.position(unit.rows - 1);
                    const int most =
                        pass.causal ? run.template visible<of_keys>(of_keys ? unit.first : last) : run.count;
                    const int least =
                        pass.causal ? run.template visible<of_keys>(of_keys ? last : unit.first) : run.count;
                    steps = quotient_up(most, step);
                    full = least / step;
                }
                run.steps = __reduce_max_sync(~0u, steps);
                if (run.steps == 0)
                    continue;
                Run<units> &target = tile.run[runs++];
                const int of_next = __shfl_down_sync(~0u, multiplicity, 1);
                if (lane < units * multiplicity_period && j % 2 == 0) {
                    target.unit[u].multiplicities[j / 2] = static_cast<std::uint8_t>(multiplicity | of_next << 4);
                    target.unit[u].steps = steps;
                    target.unit[u].full = full;
                }
                const int row = pass.run_stride.quotient(run.first - pass.run_start);
                // Where rows are those that a branch left, another one may have a single row.
                const bool has_stride = pass.run_stride.remainder(run.stride) == 0;
                const int row_stride = has_stride ? pass.run_stride.quotient(run.stride) : 1;
                const int map = __ffs(__ballot_sync(~0u, own_stride == row_stride)) - 1;
                const int residue = pass.strides[map].remainder(row);
                if (lane == 0) {
                    target.first = run.first;
                    target.stride = run.stride;
                    target.count = run.count;
                    target.steps = run.steps;
                    target.residue = residue;
                    target.index = pass.strides[map].quotient(row);
                    target.map = 2 * map + (residue >= pass.longer_residues[map]);
                }
            }
        }
    }
    if (lane == 0)
        tile.runs = runs;
    return runs;
}

// Tile `id`, or false where there is none of this number; `step` rows of a run are a step.
template <bool of_keys, int step, int units>
__device__ __forceinline__ bool find_tile(const TileGrid &pass, TileSearch &search, unsigned id,
                                          UnitTile<units> &tile) {
    const int lane = static_cast<int>(threadIdx.x) % warp_threads;
    int rest = static_cast<int>(id);
    const auto take = [&](const FastDivmod &count) { // the next digit of the number
        const int digit = count.remainder(rest);
        rest = count.quotient(rest);
        return digit;
    };
    int index;
    if (of_keys && pass.by_length) {
        const int cells = static_cast<int>(pass.tiles) / pass.tiles_of_cell.value;
        index = rest / cells;
        rest %= cells;
    } else {
        index = take(pass.tiles_of_cell);
    }
    const int cell = take(pass.cells_of_block);
    int block = take(pass.blocks_of_section);
    const int head = pass.first_head + take(pass.heads) * pass.head_step;
    block += take(pass.sections) * pass.blocks_of_section.value;
    if (block >= pass.blocks)
        return false;

    // Cells lie between the ends of segments.
    const int block_start = (pass.first_block + block) * pass.block_length;
    const int block_end = min(block_start + pass.block_length, pass.sequence_length);
    int cell_start = block_start, cell_end = block_end;
    for (int i = 0;; ++i) {
        int cut = block_end;
        if (lane < pass.branch_count) {
            const FastDivmod &length = pass.branches[lane].length;
            cut = min(cut, (length.quotient(cell_start) + 1) * length.value);
        }
        cell_end = __reduce_min_sync(~0u, cut);
        if (i == cell)
            break;
        if (cell_end == block_end)
            return false;
        cell_start = cell_end;
    }
    if (lane < pass.branch_count)
        search.branches[lane] = CellBranch(pass, pass.branches[lane], head, cell_start);
    __syncwarp();
    cell_start = max(cell_start, pass.unit_start);
    cell_end = min(cell_end, pass.unit_start + pass.unit_count);
    if (cell_start >= cell_end)
        return false;

    const unsigned taking = find_units<of_keys>(pass, search, lane, index, cell_start, cell_end, tile);
    if (!taking)
        return false;
    find_parents(pass, search, lane, taking);
    const int runs = find_runs<of_keys, step>(pass, search, lane, taking, tile);
    if (runs == 0 && pass.skips_empty)
        return false;
    if (lane == 0) {
        tile.head = head;
        tile.batch = pass.first_batch + rest;
    }
    __syncwarp();
    return true;
}

} // namespace annulus
