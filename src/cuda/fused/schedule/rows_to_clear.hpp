// SPDX-License-Identifier: Apache-2.0
// Result rows that attend to nothing and are in no row block. A launch writes their zeros beside its products.
#pragma once

#include "cuda/fused/schedule/tile_grid.hpp"

#include <cstdint>

namespace annulus {

// One to three tensors with the same rows, of a grid over one sequence. The rows are cleared in pieces. A piece is 32
// positions (along a curve: numbers) of 32 heads, or fewer at the ends. Pieces are numbered, from the fastest index:
// positions, heads, batch entries, tensors.
struct RowsToClear {
    static constexpr int piece_rows = 32, piece_heads = 32; // a bit for each row, a lane for each head
    static constexpr int max_tensors = 3;

    TensorRows tensors[max_tensors], lse; // if lse.data is not null, LSE becomes -infinity
    int rows, heads;
    FastDivmod row_pieces, head_pieces, batches; // number of each
    int first_piece, end_piece;                  // the pieces of this launch
    int pieces_of_tile;                          // how many pieces are cleared beside a tile
};

// Returns a bit mask of the 32 positions from `first` on. A bit is 1 if the position's row of the head is in a row
// block of the grid.
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
            if (row < from) { // move to the next row of the class that is not before `from`
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
