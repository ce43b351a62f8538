// SPDX-License-Identifier: Apache-2.0
// The branches of a grid in one cell. The warps that find tiles use them (find_tile.cuh). The host uses them to
// estimate how long a launch takes (grid_time.hpp).
#pragma once

#include "cuda/fused/schedule/tile_grid.hpp"

#include <cstdint>

namespace annulus {

// A branch in a cell: its segment, and the residues of the rows that take part in it.
struct CellBranch {
    int start, end;                   // of the branch's segment
    int range_dilation, row_dilation; // 1 if every position takes part
    int range_residue, row_residue;
    // Another branch visits this branch's range rows between these positions. This branch visits the rest. If no other
    // branch visits any, start >= end.
    int covered_start, covered_end;
    // If keys count once, a window may visit the range rows near each row. Then a row meets, to the left of what other
    // branches visit, range rows up to `left_after` positions after it. To the right it meets those from `right_before`
    // positions before it on. Both may be negative.
    int left_after, right_before;
    int root_dilation; // of the first branch of the chain of ancestors, or the branch's own
    // Bits of the branches that visit range rows of this branch. Each counts this branch in its multiplicity.
    std::uint8_t ancestors;
    std::uint8_t row_rule; // annulus_query_rule
    bool serves : 1;       // whether the branch serves the head
    bool is_window : 1;
    bool is_covered_by_window : 1;

    constexpr CellBranch(const GridBranch &branch, const FastDivmod &length, int sequence_length, int head,
                         int position) {
        serves = branch.serves(head);
        is_window = branch.is_window;
        right_before = branch.before;
        left_after = branch.after;
        is_covered_by_window = false;
        row_rule = static_cast<std::uint8_t>(branch.row_rule);
        row_dilation = row_rule == ANNULUS_QUERY_EVERY ? 1 : branch.dilation.value;
        range_dilation = branch.range_dilation.value;
        start = position - length.remainder(position);
        end = start + length.value < sequence_length ? start + length.value : sequence_length;
        const int residue = branch.dilation.remainder(start + (serves ? branch.phase(head) : 0));
        row_residue = row_dilation == 1 ? 0 : residue;
        range_residue = range_dilation == 1 ? 0 : residue;
        covered_start = end;
        covered_end = start;
        ancestors = 0;
        root_dilation = range_dilation;
    }

    constexpr bool has_covered() const { return covered_start < covered_end || is_covered_by_window; }

    // Marks the rows that `other` visits for this branch. `other` is branch `index` of the grid and comes before this
    // branch.
    constexpr void mark_covered(const TileGrid &grid, int index, const CellBranch &other) {
        if (!is_covered_by(grid.branches[index], other))
            return;
        if (grid.keys_count_once && other.is_window) {
            const GridBranch &window = grid.branches[index];
            left_after = left_after < -window.before - 1 ? left_after : -window.before - 1;
            right_before = right_before < -window.after - 1 ? right_before : -window.after - 1;
            is_covered_by_window = true;
        } else if (grid.keys_count_once) {
            // All segments contain the cell. So the union of the segments is one interval.
            covered_start = other.start < covered_start ? other.start : covered_start;
            covered_end = other.end > covered_end ? other.end : covered_end;
        } else if (!is_window && !other.is_window && start <= other.start && other.end <= end &&
                   range_dilation <= static_cast<std::int64_t>(grid.merged_ratio) * other.root_dilation) {
            covered_start = other.start;
            covered_end = other.end;
            ancestors = static_cast<std::uint8_t>(other.ancestors | 1u << index);
            root_dilation = other.root_dilation;
        }
    }

  private:
    // True if every range row and every row block of this branch inside the segment of `other` is also in `other`.
    // Requires other.range_dilation <= range_dilation. `grid_branch` is `other` as the grid has it.
    constexpr bool is_covered_by(const GridBranch &grid_branch, const CellBranch &other) const {
        return grid_branch.range_dilation.remainder(range_residue) == other.range_residue &&
               (other.row_dilation == 1 ||
                (other.row_rule == row_rule && (row_rule == ANNULUS_QUERY_RESIDUE ||
                                                grid_branch.dilation.remainder(row_residue) == other.row_residue)));
    }
};

// The positions of [start, end) that have a given residue modulo a number.
struct Members {
    int first, count;
    constexpr Members(int start, int end, int residue, const FastDivmod &modulus) {
        const int distance = residue - modulus.remainder(start);
        first = start + (distance < 0 ? distance + modulus.value : distance);
        count = first < end ? modulus.quotient(end - 1 - first) + 1 : 0;
    }
};

} // namespace annulus
