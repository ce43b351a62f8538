// SPDX-License-Identifier: Apache-2.0
// From the number of a tile to its units of queries and the runs of keys that they meet, by one warp.
//
// Lane i finds out about branch i in the cell: its segment and the residues, modulo its dilation and in global
// positions, of its queries and keys. Classes of queries are the leaves of a tree: modulo levels[0] = 1 all positions
// are one class; a class falls apart modulo the next level while some branch has a part of it. Only classes that meet
// keys are kept, one a lane; ordered by the number of their keys, the longest first, their units follow one another,
// and a tile takes the next few.
//
// Merging. Where the keys of branch b, as far as they lie in the segment of branch a, are keys of branch a (and its
// queries are queries of a), b does not visit them: a does, with the multiplicity in which they count. Such an a is
// the parent of b; b visits what lies left and right of the parent's segment. How often a key counts depends on its
// position modulo the largest dilation of those below a; a run of keys is split until that is a period of at most 8
// keys, which a thread's columns of scores have as well.
#pragma once

#include "cuda/fused/forward_pass.hpp"
#include "cuda/prim/warp.cuh"

#include <cstdint>

namespace annulus {

// Queries first, first + stride, …: `rows` of them. None: nothing to compute and nothing to write.
struct Unit {
    int first, stride, rows;
    unsigned branches; // a bit for each that they take part in
    float padding_keys;
    bool has_more_keys; // outside the window

    // Row i; the last one again behind it.
    __device__ __forceinline__ int position(int i) const { return first + stride * min(i, rows - 1); }
};

// What a unit has of a run: the first `steps` steps, of which the first `full` hide no key from any row.
struct UnitRun {
    int steps, full;
    std::uint8_t multiplicities[multiplicity_period / 2]; // of keys 2 i and 2 i + 1, modulo the period: four bits each
};

// Keys first, first + stride, …: `count` of them, of which some unit sees those of the first `steps` steps. They are
// visited from the last step to the first.
template <int units> struct KeyRun {
    int first, stride, count, steps;
    int map, residue, index; // where the first row is: tensor map, and its coordinates
    UnitRun unit[units];

    // How many of the keys are visible to a query.
    __device__ __forceinline__ int visible(int query) const {
        return query < first ? 0 : min(count, (query - first) / stride + 1);
    }
};

template <int units> struct ForwardTile {
    int batch, head;
    int runs; // -1: no tile any more
    Unit unit[units];
    KeyRun<units> run[most_runs];
};

// A branch in a cell.
struct CellBranch {
    int start, end;               // of its segment
    int dilation, query_dilation; // the latter 1 where every query takes part
    int query_residue, key_residue;
    annulus_query_rule query_rule;
    bool serves;            // the head
    std::int8_t parent;     // -1: none
    std::uint8_t ancestors; // a bit each
    int root_dilation;      // of the last of them, or its own

    __device__ __forceinline__ CellBranch(const ForwardPass &pass, const PassBranch &branch, int head, int position) {
        serves = branch.serves(head);
        dilation = branch.dilation.value;
        query_rule = branch.query_rule;
        start = position - branch.length.remainder(position);
        end = min(start + branch.length.value, pass.sequence_length);
        key_residue = branch.dilation.remainder(start + (serves ? branch.phase(head) : 0));
        query_dilation = query_rule == ANNULUS_QUERY_EVERY ? 1 : dilation;
        query_residue = query_rule == ANNULUS_QUERY_EVERY ? 0 : key_residue;
        parent = -1;
        ancestors = 0;
        root_dilation = dilation;
    }

    // Whether `other`, of no larger dilation, visits all keys that this branch has in the segment of `other`, for all
    // queries of this one.
    __device__ __forceinline__ bool has_keys_in(const CellBranch &other, const Divisor &other_dilation) const {
        return other_dilation.remainder(key_residue) == other.key_residue && start <= other.start && other.end <= end &&
               (other.query_dilation == 1 || other.query_rule == query_rule);
    }
};

// What the warp that finds tiles has in shared memory for itself.
static_assert(most_branches <= 8, "ancestors, and multiplicities of four bits");
union CellBranches {
    CellBranch of[most_branches];
    __device__ CellBranches() {}
};

// A class of queries, of a lane.
struct QueryClass {
    int residue = 0;
    Divisor modulus{1};
    unsigned branches = 0;
};

// Positions of [start, end) in a class modulo a number.
struct Members {
    int first, count;
    __device__ __forceinline__ Members(int start, int end, int residue, const Divisor &modulus) {
        const int distance = residue - modulus.remainder(start);
        first = start + (distance < 0 ? distance + modulus.value : distance);
        count = first < end ? modulus.quotient(end - 1 - first) + 1 : 0;
    }
};

// The classes of the queries of a cell, one a lane; returns how many.
__device__ __forceinline__ int find_classes(const ForwardPass &pass, const CellBranches &branches, int lane,
                                            QueryClass &own) {
    const bool serves = lane < pass.branch_count && branches.of[lane].serves;
    const int own_dilation = serves ? branches.of[lane].query_dilation : 1;
    const int own_residue = serves ? branches.of[lane].query_residue : 0;
    const Divisor &dilation = pass.branches[serves ? lane : 0].dilation;
    int found = 0, level = 0, residue = 0;
    for (;;) {
        const Divisor &modulus = pass.levels[level];
        const bool whole = own_dilation <= modulus.value;
        if (__any_sync(~0u, !whole && modulus.remainder(own_residue) == residue)) { // it has parts
            ++level;
            continue;
        }
        const bool is_member = serves && whole && (own_dilation == 1 || dilation.remainder(residue) == own_residue);
        const unsigned members = __ballot_sync(~0u, is_member);
        if (members) {
            if (lane == found)
                own = {residue, modulus, members};
            ++found;
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
        if (level == 0)
            return found;
    }
}

// Fills in the units of tile `index` of a cell; returns the union of their branches, 0 if there is no such tile.
template <int units>
__device__ __forceinline__ unsigned find_units(const ForwardPass &pass, CellBranches &branches, int lane, int index,
                                               int cell_start, int cell_end, ForwardTile<units> &tile) {
    const bool is_branch = lane < pass.branch_count;
    const unsigned serving = __ballot_sync(~0u, is_branch && branches.of[lane].serves);
    QueryClass own;
    int classes = 1;
    if (pass.has_residue_classes) {
        // Each residue is a class, whose queries meet keys of their own.
        own = {pass.tiles_of_class.quotient(index), pass.residue_classes, serving};
        index = pass.tiles_of_class.remainder(index);
        if (is_branch && branches.of[lane].query_rule == ANNULUS_QUERY_RESIDUE)
            branches.of[lane].key_residue = pass.branches[lane].dilation.remainder(own.residue);
        __syncwarp();
    } else if (pass.branch_count == 1) {
        const bool is_divided = branches.of[0].query_dilation > 1;
        own = {branches.of[0].query_residue, is_divided ? pass.branches[0].dilation : Divisor(1), serving};
    } else {
        classes = find_classes(pass, branches, lane, own);
    }
    if (lane >= classes)
        own.branches = 0;

    unsigned keys = 0; // only to order classes: it may wrap around
    float padding_keys = 0;
    bool has_more_keys = false;
    for (unsigned left = own.branches; left; left &= left - 1) {
        const CellBranch &branch = branches.of[__ffs(left) - 1];
        const PassBranch &of_pass = pass.branches[__ffs(left) - 1];
        const int count = Members(branch.start, branch.end, branch.key_residue, of_pass.dilation).count;
        keys += count;
        has_more_keys |=
            branch.start < pass.key_start || (!pass.causal && branch.end > pass.key_start + pass.key_count);
        if (pass.zero_keys)
            padding_keys += of_pass.dilation.quotient(of_pass.length.value - 1) + 1 - count;
    }
    const Members queries(cell_start, cell_end, own.residue, own.modulus);
    const int own_units = own.branches ? quotient_up(queries.count, unit_rows) : 0;
    int before = 0; // units of classes with more keys
    for (int i = 0; i < classes; ++i) {
        const unsigned other_keys = __shfl_sync(~0u, keys, i);
        const int other_units = __shfl_sync(~0u, own_units, i);
        before += other_keys > keys || (other_keys == keys && i < lane) ? other_units : 0;
    }

    unsigned all = 0;
#pragma unroll
    for (int i = 0; i < units; ++i) {
        const int place = index * units + i - before;
        const bool is_owner = place >= 0 && place < own_units;
        const unsigned owner = __ballot_sync(~0u, is_owner);
        if (is_owner) {
            // The longest first: later queries see more keys.
            const int j = (pass.causal ? own_units - 1 - place : place) * unit_rows;
            tile.unit[i] = {queries.first + j * own.modulus.value,
                            own.modulus.value,
                            min(unit_rows, queries.count - j),
                            own.branches,
                            padding_keys,
                            has_more_keys};
        } else if (!owner && lane == 0) {
            tile.unit[i] = {0, 0, 0, 0, 0, false};
        }
        if (owner)
            all |= __shfl_sync(~0u, own.branches, __ffs(owner) - 1);
    }
    __syncwarp();
    return all;
}

// Finds the parents among the branches `taking`.
__device__ __forceinline__ void find_parents(const ForwardPass &pass, CellBranches &branches, int lane,
                                             unsigned taking) {
    for (unsigned left = taking; left; left &= left - 1) {
        const int i = __ffs(left) - 1;
        const CellBranch &other = branches.of[i];
        if (lane > i && (taking >> lane & 1)) {
            CellBranch &own = branches.of[lane];
            if (own.has_keys_in(other, pass.branches[i].dilation) &&
                own.dilation <= static_cast<std::int64_t>(pass.merged_ratio) * other.root_dilation) {
                own.parent = static_cast<std::int8_t>(i);
                own.ancestors = static_cast<std::uint8_t>(other.ancestors | 1u << i);
                own.root_dilation = other.root_dilation;
            }
        }
        __syncwarp();
    }
}

// Fills in the runs of a tile whose units take part in the branches `taking`; returns how many.
template <int step, int units>
__device__ __forceinline__ int find_runs(const ForwardPass &pass, const CellBranches &branches, int lane,
                                         unsigned taking, ForwardTile<units> &tile) {
    int runs = 0;
    for (unsigned left = taking; left; left &= left - 1) {
        const int b = __ffs(left) - 1;
        const CellBranch &branch = branches.of[b];
        const int dilation = branch.dilation, parent = branch.parent;
        const bool counts_here = (taking >> lane & 1) && (branches.of[lane % most_branches].ancestors >> b & 1);
        const unsigned below = __ballot_sync(~0u, counts_here);
        const Divisor &of_pass = pass.branches[b].dilation;
        const int period = of_pass.quotient(
            __reduce_max_sync(~0u, counts_here ? branches.of[lane % most_branches].dilation : dilation));
        const int splits = splits_of_period(period);
        for (int side = 0; side < (parent < 0 || pass.causal ? 1 : 2); ++side) {
            const int from = max(side == 0 ? branch.start : branches.of[parent].end, pass.key_start);
            const int to =
                min(side == 0 && parent >= 0 ? branches.of[parent].start : branch.end, pass.key_start + pass.key_count);
            const Members keys(from, to, branch.key_residue, of_pass);
            for (int split = 0; split < min(splits, keys.count); ++split) {
                KeyRun<units> run;
                run.first = keys.first + split * dilation;
                run.stride = splits * dilation;
                run.count = splits == 1 ? keys.count : (keys.count - 1 - split) / splits + 1;
                // Lane 8 u + j: unit u, key j.
                const int u = min(lane / multiplicity_period, units - 1), j = lane % multiplicity_period;
                const Unit &unit = tile.unit[u];
                // Beyond the run it may be anything.
                const int key =
                    static_cast<int>(static_cast<unsigned>(run.first) + j * static_cast<unsigned>(run.stride));
                int multiplicity = 1;
                for (unsigned others = below; others; others &= others - 1) {
                    const int other = __ffs(others) - 1;
                    multiplicity += (unit.branches & others & -others) &&
                                    pass.branches[other].dilation.remainder(key) == branches.of[other].key_residue;
                }
                int steps = 0, full = 0;
                if (unit.branches >> b & 1) {
                    const int most = pass.causal ? run.visible(unit.position(unit.rows - 1)) : run.count;
                    const int least = pass.causal ? run.visible(unit.first) : run.count;
                    steps = quotient_up(most, step);
                    full = least / step;
                }
                run.steps = __reduce_max_sync(~0u, steps);
                if (run.steps == 0)
                    continue;
                KeyRun<units> &target = tile.run[runs++];
                const int of_next = __shfl_down_sync(~0u, multiplicity, 1);
                if (lane < units * multiplicity_period && j % 2 == 0) {
                    target.unit[u].multiplicities[j / 2] = static_cast<std::uint8_t>(multiplicity | of_next << 4);
                    target.unit[u].steps = steps;
                    target.unit[u].full = full;
                }
                if (lane == 0) {
                    const int row = pass.key_stride.quotient(run.first - pass.key_start);
                    // Where rows are those that a branch left, another one may have a single row.
                    const bool has_stride = pass.key_stride.remainder(run.stride) == 0;
                    const int row_stride = has_stride ? pass.key_stride.quotient(run.stride) : 1;
                    int map = 0;
                    while (pass.strides[map].value != row_stride)
                        ++map;
                    target.first = run.first;
                    target.stride = run.stride;
                    target.count = run.count;
                    target.steps = run.steps;
                    target.residue = pass.strides[map].remainder(row);
                    target.index = pass.strides[map].quotient(row);
                    target.map = 2 * map + (target.residue >= pass.longer_residues[map]);
                }
            }
        }
    }
    if (lane == 0)
        tile.runs = runs;
    return runs;
}

// Tile `id`, or false where there is none of this number; `step` keys are a step.
template <int step, int units>
__device__ __forceinline__ bool find_tile(const ForwardPass &pass, CellBranches &branches, unsigned id,
                                          ForwardTile<units> &tile) {
    const int lane = static_cast<int>(threadIdx.x) % warp_threads;
    int rest = static_cast<int>(id);
    const auto take = [&](const Divisor &count) { // the next digit of the number
        const int digit = count.remainder(rest);
        rest = count.quotient(rest);
        return digit;
    };
    const int index = take(pass.tiles_of_cell);
    const int cell = take(pass.cells_of_block);
    int block = take(pass.blocks_of_section);
    const int head = take(pass.heads);
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
            const Divisor &length = pass.branches[lane].length;
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
        branches.of[lane] = CellBranch(pass, pass.branches[lane], head, cell_start);
    __syncwarp();
    cell_start = max(cell_start, pass.query_start);
    cell_end = min(cell_end, pass.query_start + pass.query_count);
    if (cell_start >= cell_end)
        return false;

    const unsigned taking = find_units(pass, branches, lane, index, cell_start, cell_end, tile);
    if (!taking)
        return false;
    find_parents(pass, branches, lane, taking);
    const int runs = find_runs<step>(pass, branches, lane, taking, tile);
    const bool adds_nothing = runs == 0 && pass.sum_o && !pass.sets_sums && !pass.zero_keys;
    if (adds_nothing)
        return false;
    if (lane == 0) {
        tile.head = head;
        tile.batch = rest;
    }
    __syncwarp();
    return true;
}

} // namespace annulus
