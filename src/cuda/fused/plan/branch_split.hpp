// SPDX-License-Identifier: Apache-2.0
// One grid over all branches visits keys of nested branches once. But its cells are as short as the shortest segments:
// where a few row blocks of a cell meet many times the keys of the others, these wait in most blocks of the tile's
// ranges. Then two grids can take less time: one over the more dilated branches, with longer cells, which leaves
// partial results of its rows, and one over the others, which adds these to its own and writes all rows.
#pragma once

#include "cuda/fused/plan/grids.hpp"
#include "cuda/fused/plan/launch.hpp"

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

namespace annulus {

// A grid of linear order, without classes of residues, as two: over all but its `less_dilated` least dilated branches,
// which leaves partial results of its rows, and over these, which adds them. Of a call's own keys the second may leave
// partial results in turn. None where that cannot be: either would be no grid, or the second leaves rows out.
std::optional<std::vector<PlannedGrid>> split_after(int less_dilated, const PlannedGrid &whole, const Plan &plan,
                                                    GridOf what, const KernelShape &shape);

// Two or more grids that branches have to take, as such a split: the first of them comes last. None where that cannot
// be.
std::optional<std::vector<PlannedGrid>> as_split(const std::vector<PlannedGrid> &grids, GridOf what);

// Two grids for one, or those that branches have to take, whose partial results may be those of a part of the rows at a
// time.
struct BranchSplit {
    std::vector<PlannedGrid> grids;
    // Times in rows, as grid_time.hpp counts them: below which two grids are worth it (infinity where one grid
    // cannot take the branches), and of all tiles of either, one after the other.
    double most_rows;
    std::array<double, 2> rows_of_tiles;
    int multiprocessors; // that share the tiles

    // Of so many neighbouring rows of each of the heads no more than one has partial results.
    int partial_stride(int heads) const;

    // The parts, if there is room for them and one grid, where there is one, does not take less time.
    std::optional<SplitParts> parts_within(const SplitRows &all, std::size_t room) const;

    // Those that take the least memory together with the counters of their launches; none where there is one grid.
    std::optional<SplitParts> least_parts(const SplitRows &all) const;
    bool has_alternative() const { return !std::isinf(most_rows); } // one grid

  private:
    // Whether they take less time in so many parts, with a launch of either grid for each.
    bool is_worth(std::int64_t parts) const;
};

// The only one of `grids` in two, if that is expected to save time on so many multiprocessors. Of several the branches
// in those grids that are expected to take the least, or, if these cannot be a split or are more than `most_grids`, the
// grids as they are. None if those cannot either.
// Kernels of the same shape take the same time, whatever they compute.
std::optional<BranchSplit> split_branches(const std::vector<PlannedGrid> &grids, const Plan &plan, GridOf what,
                                          const KernelShape &shape, int multiprocessors,
                                          std::size_t most_grids = std::numeric_limits<std::size_t>::max());

// The same for one grid over the keys of other ranks, whose results are added to partial ones whatever the order: takes
// its place with two, the one over the least dilated branches first.
void split_ranges_elsewhere(std::vector<PlannedGrid> &grids, const Plan &plan, GridOf what, const KernelShape &shape,
                            int multiprocessors);

} // namespace annulus
