// SPDX-License-Identifier: Apache-2.0
// How the fused kernels take a plan: as grids over some branches each, and as one grid if possible.
#pragma once

#include "core/plan.hpp"
#include "cuda/fused/schedule/kernel_shape.hpp"
#include "cuda/fused/schedule/tile_grid.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace annulus {

// What a grid computes. Row blocks are queries and ranges are keys. For the gradients of keys it is the other way
// round.
enum class GridResult { outputs, query_gradients, key_gradients };

struct PlannedGrid {
    TileGrid tiles;
    bool is_complete; // every row takes part in some branch of the grid
    // For a grid over a branch along a curve, which counts numbers instead of positions (curve_order.hpp): the branch.
    // Null for a linear order. `order_start` is where its permutation begins in the array of all permutations.
    const BranchPlan *curve = nullptr;
    std::int64_t order_start = 0;
    bool is_packed = false; // its range rows are first copied into that permutation
    int classes = 1;        // greatest number of classes of row blocks in a cell
    int row_blocks = 1;     // row blocks of a tile
    // True if the grid leaves out rows or range rows of the call, which are outside an area of queries and keys.
    bool is_confined = false;
    bool fills_rows = false; // the grid has every row of its window of rows
    int area = 0;            // grids of different areas have no pair in common
    int range_parts = 1;     // the parts into which its ranges are divided (range_parts.hpp)
    // Only for a grid over several sequences, or range parts: the sequences, the longest first, and their sequence
    // grids.
    std::vector<PlacedSequence> sequences{};
    std::vector<SequenceGrid> sequence_grids{};
    // True if all rows of the sequences take part in some branch, and other calls write the rows of no sequence.
    bool leaves_rows = false;
};

inline std::span<const GridBranch> branches_of(const TileGrid &grid) {
    return {grid.branches, static_cast<std::size_t>(grid.branch_count)};
}

// The order of a grid's branches: by dilation, then by length.
inline bool comes_before(const GridBranch &a, const GridBranch &b) {
    return a.dilation.value != b.dilation.value ? a.dilation.value < b.dilation.value : a.length.value < b.length.value;
}

// Returns the grids of a plan, whose positions and dilations must be below position_limit. The dilations of a grid's
// branches divide one another, and a grid does not mix the query rules `dilated` and `residue`. Branches along a curve
// come last, with a grid each, then the parts of global branches whose rows are the global positions, with a grid each.
// Branches without pairs are left out. If the keys belong to another rank, most branches have no pairs. The result
// points into the plan.
//
// The part of a global branch with all rows shares a grid with other branches: there the global positions are one more
// range of each tile, as if they were a window.
//
// If keys count once beside global positions, the global branch takes its pairs, and the other branches are confined to
// the areas that it leaves: queries before and after the global positions (all queries, if the global positions are
// keys alone) against keys before and after them.
std::vector<PlannedGrid> make_grids(const Plan &plan, GridResult what, const KernelShape &shape);

// Whether a grid has all rows of the window, or leaves out rows at its ends whose segments have no ranges.
enum class GridRows { all, with_ranges };

// Returns the grid over these branches, which must be sorted by dilation, then by length. Returns none if one grid
// cannot take them. A subset of a grid's branches may need more classes of row blocks than the grid, and so too many.
std::optional<PlannedGrid> grid_over(std::span<const GridBranch> branches, GridRows rows, const Plan &plan,
                                     GridResult what, const KernelShape &shape);

// Some batch entries and heads of a grid. For a grid over one branch also some segments (segments = 0: all). For a grid
// over one sequence also the rows at some positions (rows.length = 0: all).
struct GridPart {
    int first_batch, batches, first_head, heads;
    int first_segment = 0, segments = 0;
    Window rows{};

    bool operator==(const GridPart &) const = default;
};
// Restricts a planned grid's tiles to a part.
void restrict_grid(const PlannedGrid &planned, const GridPart &part, TileGrid &tiles);

// True if tiles differ in length and there are few for each multiprocessor. Then the longest tiles of all cells must
// come first. With many tiles, the tiles of a cell stay together, so that the L2 cache keeps their ranges.
bool go_by_length(const TileGrid &tiles, int multiprocessors);

// Returns the rows that may meet rows of the other side outside the grid's ranges, or whose row blocks may have such a
// row. `largest_dilation`: of all branches of the call.
PartialRows rows_with_more_ranges(const TileGrid &grid, GridResult what, int largest_dilation);
// Returns the rows of all heads, from the first head on, that are outside a grid's window of rows.
PartialRows rows_outside(const TileGrid &grid, int heads);
// Returns the largest dilation of the grids' branches.
int largest_dilation(std::span<const PlannedGrid> grids);

// Returns the length of the permutation of a branch along a curve. Whole segments share one permutation; a shorter last
// segment has its own.
std::int64_t curve_order_length(const BranchPlan &branch);

// Returns why the grids cannot do a plan along a curve, or null if they can.
const char *curve_refusal(const Plan &plan);

// Returns why the grids of a plan cannot do it, or null if they can. Keys that count once need one grid in each area,
// and there may be too many tiles for 32-bit numbers.
const char *grids_refusal(const Plan &plan, const std::vector<PlannedGrid> &grids);

} // namespace annulus
