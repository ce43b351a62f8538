// SPDX-License-Identifier: Apache-2.0
// How the fused kernels take a plan: in grids over some branches each, one if it can be.
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

// What grids compute. Row blocks are of queries and ranges of keys; for gradients of keys it is the other way round.
enum class GridOf { outputs, query_gradients, key_gradients };

struct PlannedGrid {
    TileGrid tiles;
    bool is_complete; // every row takes part in some branch of the grid
    // Of a grid over a branch in an order along a curve, on numbers instead of positions (curve_order.hpp): the branch,
    // else null; and where its order begins among those of all grids.
    const BranchPlan *curve = nullptr;
    std::int64_t order_start = 0;
    bool is_packed = false; // whether rows of its ranges are copied in that order first
    int classes = 1;        // of row blocks that a cell may have, at most
    int row_blocks = 1;     // of a tile
    // Of a grid over several sequences, the longest first, and their shapes.
    std::vector<PlacedSequence> sequences{};
    std::vector<SequenceGrid> shapes{};
};

inline std::span<const GridBranch> branches_of(const TileGrid &grid) {
    return {grid.branches, static_cast<std::size_t>(grid.branch_count)};
}

// The order of a grid's branches: by dilation, then by length.
inline bool comes_before(const GridBranch &a, const GridBranch &b) {
    return a.dilation.value != b.dilation.value ? a.dilation.value < b.dilation.value : a.length.value < b.length.value;
}

// The plan's positions and dilations are below position_limit. Branches of a grid have dilations that divide one
// another, and do not mix the query rules `dilated` and `residue`. Those in an order along a curve come last, a grid
// each. Branches that have no pairs are left out: most of them where the keys are those of another rank. The result
// points into the plan.
std::vector<PlannedGrid> make_grids(const Plan &plan, GridOf what, const KernelShape &shape);

// All rows of the window, or without those at its ends whose segments have no ranges.
enum class GridRows { all, with_ranges };

// The grid over some branches of others, by dilation, then by length; none where one grid cannot take them: there may
// be more classes of row blocks than it takes, to which fewer branches may come as well.
std::optional<PlannedGrid> grid_over(std::span<const GridBranch> branches, GridRows rows, const Plan &plan, GridOf what,
                                     const KernelShape &shape);

// Some batch entries and heads of a grid; of one over a single branch also some segments, or all (0); of one over a
// single sequence also the rows at some positions, or all (none).
struct GridPart {
    int first_batch, batches, first_head, heads;
    int first_segment = 0, segments = 0;
    Window rows{};

    bool operator==(const GridPart &) const = default;
};
// Leaves of a planned grid's tiles a part.
void restrict_grid(const PlannedGrid &planned, const GridPart &part, TileGrid &tiles);

// Whether tiles that meet more than others are so few for each multiprocessor that the longest ones of all cells must
// come first. Where they are many, those of a cell stay together, whose ranges the L2 then keeps.
bool go_by_length(const TileGrid &tiles, int multiprocessors);

// Of the rows of row blocks those that may meet rows of the other side beyond those of the grid.
PartialRows rows_with_more_ranges(const TileGrid &grid, GridOf what);

// How many numbers the order of a branch along a curve tells the positions of: whole segments are alike, the last one
// may be shorter.
std::int64_t curve_order_length(const BranchPlan &branch);

// Why the grids cannot do a plan that has an order along a curve; null if they can.
const char *curve_refusal(const Plan &plan);

// Why the grids of a plan cannot do it, null if they can: keys that count once need all branches in one grid, and tiles
// may be too many for their 32-bit numbers.
const char *grids_refusal(const Plan &plan, const std::vector<PlannedGrid> &grids);

} // namespace annulus
