// SPDX-License-Identifier: Apache-2.0
// The branches of a pass in a cell, for the warps that find tiles (tile.cuh) and for the host, which looks at some
// cells to see what a pass takes (pass_cut.hpp).
#pragma once

#include "cuda/fused/schedule/tile_grid.hpp"

#include <cstdint>

namespace annulus {

// A branch in a cell.
struct CellBranch {
    int start, end;                  // of its segment
    int run_dilation, unit_dilation; // 1 where every position takes part
    int run_residue, unit_residue;
    annulus_query_rule unit_rule;
    bool serves;            // the head
    std::int8_t parent;     // -1: none
    std::uint8_t ancestors; // a bit each
    int root_dilation;      // of the last of them, or its own

    constexpr CellBranch(const TileGrid &grid, const GridBranch &branch, int head, int position) {
        serves = branch.serves(head);
        unit_rule = branch.unit_rule;
        unit_dilation = unit_rule == ANNULUS_QUERY_EVERY ? 1 : branch.dilation.value;
        run_dilation = branch.run_dilation.value;
        start = position - branch.length.remainder(position);
        end = start + branch.length.value < grid.sequence_length ? start + branch.length.value : grid.sequence_length;
        const int residue = branch.dilation.remainder(start + (serves ? branch.phase(head) : 0));
        unit_residue = unit_dilation == 1 ? 0 : residue;
        run_residue = run_dilation == 1 ? 0 : residue;
        parent = -1;
        ancestors = 0;
        root_dilation = run_dilation;
    }

    // Whether `other`, of no larger dilation, visits all that runs of this branch have in the segment of `other`, for
    // all units of this one.
    constexpr bool has_runs_in(const CellBranch &other, const FastDivmod &other_dilation) const {
        return other_dilation.remainder(run_residue) == other.run_residue && start <= other.start && other.end <= end &&
               (other.unit_dilation == 1 || other.unit_rule == unit_rule);
    }

    // Makes `other`, branch `index` of the pass, which comes before this one, its parent if it can be.
    constexpr void try_parent(const TileGrid &grid, int index, const CellBranch &other) {
        if (!has_runs_in(other, grid.branches[index].run_dilation) ||
            run_dilation > static_cast<std::int64_t>(grid.merged_ratio) * other.root_dilation)
            return;
        parent = static_cast<std::int8_t>(index);
        ancestors = static_cast<std::uint8_t>(other.ancestors | 1u << index);
        root_dilation = other.root_dilation;
    }
};

// Positions of [start, end) in a class modulo a number.
struct Members {
    int first, count;
    constexpr Members(int start, int end, int residue, const FastDivmod &modulus) {
        const int distance = residue - modulus.remainder(start);
        first = start + (distance < 0 ? distance + modulus.value : distance);
        count = first < end ? modulus.quotient(end - 1 - first) + 1 : 0;
    }
};

} // namespace annulus
