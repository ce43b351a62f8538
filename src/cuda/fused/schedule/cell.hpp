// SPDX-License-Identifier: Apache-2.0
// The branches of a grid in a cell, for the warps that find tiles (find_tile.cuh) and for the host, which looks at some
// cells to see how long a launch takes (branch_split.hpp).
#pragma once

#include "cuda/fused/schedule/tile_grid.hpp"

#include <cstdint>

namespace annulus {

// A branch in a cell.
struct CellBranch {
    int start, end;                   // of its segment
    int range_dilation, row_dilation; // 1 where every position takes part
    int range_residue, row_residue;
    annulus_query_rule row_rule;
    bool serves; // the head
    // Other branches visit what its ranges have between these positions, it the rest; where there are no such branches
    // the start is not before the end.
    int others_start, others_end;
    std::uint8_t ancestors; // of them, which count this branch's in their multiplicity; a bit each
    int root_dilation;      // of the last of them, or its own

    constexpr CellBranch(const GridBranch &branch, const FastDivmod &length, int sequence_length, int head,
                         int position) {
        serves = branch.serves(head);
        row_rule = branch.row_rule;
        row_dilation = row_rule == ANNULUS_QUERY_EVERY ? 1 : branch.dilation.value;
        range_dilation = branch.range_dilation.value;
        start = position - length.remainder(position);
        end = start + length.value < sequence_length ? start + length.value : sequence_length;
        const int residue = branch.dilation.remainder(start + (serves ? branch.phase(head) : 0));
        row_residue = row_dilation == 1 ? 0 : residue;
        range_residue = range_dilation == 1 ? 0 : residue;
        others_start = end;
        others_end = start;
        ancestors = 0;
        root_dilation = range_dilation;
    }

    constexpr bool has_others() const { return others_start < others_end; }

    // Leaves what it can to `other`, branch `index` of the grid, which comes before this one.
    constexpr void leave_to(const TileGrid &grid, int index, const CellBranch &other) {
        if (!has_ranges_in(grid.branches[index], other))
            return;
        if (grid.keys_count_once) {
            // All segments have the cell in common, so that what several visit is one interval.
            others_start = other.start < others_start ? other.start : others_start;
            others_end = other.end > others_end ? other.end : others_end;
        } else if (start <= other.start && other.end <= end &&
                   range_dilation <= static_cast<std::int64_t>(grid.merged_ratio) * other.root_dilation) {
            others_start = other.start;
            others_end = other.end;
            ancestors = static_cast<std::uint8_t>(other.ancestors | 1u << index);
            root_dilation = other.root_dilation;
        }
    }

  private:
    // Whether `other`, of no larger dilation, has all that ranges of this branch have in the segment of `other`, and
    // all row blocks of this one.
    constexpr bool has_ranges_in(const GridBranch &of_other, const CellBranch &other) const {
        return of_other.range_dilation.remainder(range_residue) == other.range_residue &&
               (other.row_dilation == 1 ||
                (other.row_rule == row_rule &&
                 (row_rule == ANNULUS_QUERY_RESIDUE || of_other.dilation.remainder(row_residue) == other.row_residue)));
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
