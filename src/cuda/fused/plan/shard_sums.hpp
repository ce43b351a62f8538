// SPDX-License-Identifier: Apache-2.0
// Which rows of a rank's shard need partial results: rows that launches leave for keys or queries of other ranks, and
// rows of branches that have a launch of their own.
#pragma once

#include "core/plan.hpp"
#include "cuda/fused/plan/backward_plan.hpp"
#include "cuda/fused/plan/forward_plan.hpp"
#include "engine/engine.hpp"

#include <optional>
#include <vector>

namespace annulus {

// Returns the rows of a side whose last grid finishes rows, and whose other grids leave all of their rows. Returns none
// if these are all rows of the window, or if there are too many intervals.
std::optional<SummedRows> summed_rows_of_grids(const std::vector<PlannedGrid> &grids, const Window &rows);

// Return the rows for the launches over a shard's own keys. A side has partial results of all rows if its launches do
// not finish rows, or if fewer rows would save nothing.
ShardSums summed_rows(const Plan &shard, const ForwardPlan &own_keys);
ShardSums summed_rows(const Plan &shard, const BackwardPlan &own_keys);

} // namespace annulus
