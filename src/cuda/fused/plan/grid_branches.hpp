// SPDX-License-Identifier: Apache-2.0
// The branches of a grid: how a kernel sees a branch, and which branches one grid can take together.
#pragma once

#include "core/plan.hpp"
#include "cuda/fused/plan/grids.hpp"
#include "cuda/fused/schedule/tile_grid.hpp"

#include <optional>

namespace annulus {

// Returns a branch as the kernels of a grid use it. For gradients of keys its rows are keys and its ranges are queries.
GridBranch make_branch(const BranchPlan &branch, GridResult what);

// Returns a global branch as a grid of all rows takes it: every row meets the range rows at these positions.
GridBranch make_global_branch(const BranchPlan &branch, GridResult what, const Window &ranges);

// Returns the grid with one more branch, or none if it cannot take the branch. The branch must not be less dilated than
// the grid's branches, nor shorter than an equally dilated one.
std::optional<TileGrid> with_branch(TileGrid grid, const GridBranch &branch);

// Sets the levels, and returns the greatest number of classes that a cell may have. Returns none if it would take too
// long to find the classes.
std::optional<int> set_levels(TileGrid &grid);

} // namespace annulus
