// SPDX-License-Identifier: Apache-2.0
// Splits the branches of a call over several launches.
//
// One grid over all branches visits the keys of nested branches once. But its cells are as short as the shortest
// segments. In a cell, a few row blocks may meet many keys of the more dilated branches, while the other row blocks of
// their tiles wait. Then two grids can take less time. The first is over the more dilated branches, has longer cells,
// and leaves partial results of its rows. The second is over the less dilated branches, adds the partial results to its
// own and writes all rows.
#pragma once

#include "cuda/fused/plan/grids.hpp"
#include "cuda/fused/plan/launch.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

namespace annulus {

// Splits a grid of linear order without classes of residues into two. The first is over all but its `less_dilated`
// least dilated branches, and leaves partial results of its rows. The second is over the remaining branches and adds
// the partial results. Over the own keys of a rank, the second grid may leave partial results, too. Returns none if a
// grid cannot take its branches, or if the second grid leaves rows out.
std::optional<std::vector<PlannedGrid>> split_after(int less_dilated, const PlannedGrid &whole, const Plan &plan,
                                                    GridResult what, const KernelShape &shape);

// Makes a split of two or more grids, if one grid cannot take the branches. The first of `grids` becomes the last one,
// which writes all rows. Returns none if they cannot be such a split.
std::optional<std::vector<PlannedGrid>> as_split(const std::vector<PlannedGrid> &grids, GridResult what);

// Returns the expected time of a launch of each grid, one after the other, in range rows (grid_time.hpp).
double time_of_launches(const std::vector<PlannedGrid> &grids, const KernelShape &shape, int multiprocessors);

// The rows of batch entries and heads that have partial results in a split grid.
struct SplitRows {
    int batches, heads, rows; // `rows` are of each head
    int stride;               // among `stride` consecutive rows of a head at most one has a partial result
    std::size_t row_bytes;    // of the partial results of a row
};

// Returns the number of parts in `all`.
std::int64_t count_parts(const SplitParts &parts, const SplitRows &all);

// Returns parts of whole heads that fit into `room` bytes, or none if a head does not fit.
std::optional<SplitParts> heads_within(const SplitRows &all, std::size_t room);

// Branches split over several launches. Earlier launches write float32 partial sums, the last one adds them. A launch
// may be cut into parts of the rows, to bound the memory.
struct BranchSplit {
    std::vector<PlannedGrid> grids;
    // Times in range rows (grid_time.hpp). `max_time`: two grids are worth it below this time; infinity if one grid
    // cannot take the branches. `tile_times`: of all tiles of each grid, one after the other.
    double max_time;
    std::array<double, 2> tile_times;
    int multiprocessors; // how many share the tiles

    // Returns a stride: among `stride` consecutive rows of any head at most one has a partial result.
    int partial_stride(int heads) const;

    // Returns the largest parts whose partial results fit into `room` bytes. Returns none if no parts fit, or if one
    // grid can take the branches and is not slower. Without `room`, returns the parts that need the least memory for
    // partial results and counters. Returns none if one grid can take the branches.
    std::optional<SplitParts> parts(const SplitRows &all, const std::optional<std::size_t> &room) const {
        return room ? parts_within(all, *room) : least_parts(all);
    }
    bool has_alternative() const { return !std::isinf(max_time); } // one grid can take the branches

  private:
    std::optional<SplitParts> parts_within(const SplitRows &all, std::size_t room) const;
    std::optional<SplitParts> least_parts(const SplitRows &all) const;
    // True if the split takes less time than one grid, with a launch of each grid for each part.
    bool is_worth(std::int64_t parts) const;
};

// Splits a single grid in two if that is expected to save time on this number of multiprocessors. Several grids are
// divided anew into the grids that are expected to take the least time. If the new grids cannot be a split or are more
// than `max_grids`, the given grids are used. Returns none if the given grids cannot be a split either. Kernels of the
// same shape take the same time, whatever they compute.
std::optional<BranchSplit> split_branches(const std::vector<PlannedGrid> &grids, const Plan &plan, GridResult what,
                                          const KernelShape &shape, int multiprocessors,
                                          std::size_t max_grids = std::numeric_limits<std::size_t>::max());

// Does the same for one grid over the keys of other ranks. Its results are added to partial results in any order.
// Replaces the grid by two, with the one over the least dilated branches first.
void split_ranges_elsewhere(std::vector<PlannedGrid> &grids, const Plan &plan, GridResult what,
                            const KernelShape &shape, int multiprocessors);

// A plan of a whole call with split branches.
template <class CallPlan> struct Candidate {
    CallPlan plan;
    std::size_t bytes;         // of the workspace
    std::size_t partial_bytes; // of the partial results of one part, which are in the workspace
};

// Returns the plan with the largest parts within a workspace limit (0: none). If no such plan exists, returns the plan
// that needs the least memory, although it exceeds the limit. make(room) returns a candidate whose parts are
// BranchSplit::parts(…, room), or none if there are no such parts. Returns none if make(std::nullopt) does: one grid is
// better. `used`: bytes of the workspace without partial results.
template <class CallPlan, class Make>
std::optional<CallPlan> plan_within(std::uint64_t limit, std::size_t used, const Make &make) {
    std::optional<Candidate<CallPlan>> best = make(std::optional(room_within(limit, used)));
    while (best && !is_within_limit(limit, best->bytes)) // more launches have more counters
        best = make(std::optional(best->partial_bytes - std::min(best->partial_bytes, best->bytes - limit)));
    if (!best)
        best = make(std::nullopt);
    return best ? std::optional(std::move(best->plan)) : std::nullopt;
}

} // namespace annulus
