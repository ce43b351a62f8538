// SPDX-License-Identifier: Apache-2.0
// Rows of results that attend to nothing, whose zeros a launch writes beside its products: no row block has them.
#pragma once

#include "cuda/fused/schedule/tile_grid.hpp"

#include <cstdint>

namespace annulus {

// Of one to three tensors of the same rows, of a grid over one sequence. Pieces are 32 positions, or along a curve
// numbers, of 32 heads, or less at the ends; they are counted, from the fastest: positions, heads, batch entries,
// tensors.
struct RowsToClear {
    static constexpr int piece_rows = 32, piece_heads = 32; // a bit each, a lane each
    static constexpr int most_tensors = 3;

    TensorRows tensors[most_tensors], lse; // where lse.data is not null, LSE becomes - infinity
    int rows, heads;
    FastDivmod row_pieces, head_pieces, batches; // how many
    int first_piece, end_piece;                  // those of the launch
    int pieces_of_tile;                          // what is cleared beside a tile
};

// Which of 32 positions from `first` on have rows of a head that are in row blocks of the grid: a bit each.
constexpr std::uint32_t rows_in_row_blocks(const TileGrid &grid, int head, int first) {
    const int row_start = grid.sequence.row_start, row_end = row_start + grid.sequence.row_count;
    const int from = row_start > first ? row_start : first;
    const int end = row_end - first < RowsToClear::piece_rows ? row_end : first + RowsToClear::piece_rows;
    std::uint32_t found = 0;
    for (int i = 0; i < grid.branch_count; ++i) {
        const GridBranch &branch = grid.branches[i];
        if (!branch.serves(head))
            continue;
        const bool has_all = branch.row_rule != ANNULUS_QUERY_DILATED;
        const int phase = has_all ? 0 : branch.phase(head), step = has_all ? 1 : branch.dilation.value;
        for (int start = from - branch.length.remainder(from); start < end; start += branch.length.value) {
            const int segment_end = end - start < branch.length.value ? end : start + branch.length.value;
            int row = start + phase;
            if (row < from) { // the next one of its class that is not
                const int over = has_all ? 0 : branch.dilation.remainder(from - row);
                row = over == 0 ? from : from + step - over;
            }
            for (; row < segment_end; row += step)
                found |= std::uint32_t{1} << (row - first);
        }
    }
    return found;
}

} // namespace annulus
