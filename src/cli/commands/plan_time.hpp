// SPDX-License-Identifier: Apache-2.0
// What a plan says of GPUs that are not here: how many ranks have enough memory, and how long forward and backward
// take.
#pragma once

#include "cli/commands/links.hpp"
#include "cli/commands/plan_estimates.hpp"
#include "cli/commands/plan_memory.hpp"
#include "cli/ranks/shard.hpp"
#include "cli/report/report.hpp"

#include <cstdint>
#include <vector>

namespace annulus::cli {

// Returns the least number of ranks with which a pass fits into the memory of each GPU, found by bisection and by the
// rank in the middle. If there is none, the text says why, and the value is null.
Cell least_ranks(const PlannedJob &job, annulus_pass pass, const Gpu &gpu, Sharding sharding);

// Returns the times of the slowest rank, with P ranks divided over hosts in their order. A pass that does not fit into
// the memory of each GPU has none. `context` is of the job.
Table time_table(annulus_context *context, const PlannedJob &job, const Shards &shards, int hosts,
                 const std::vector<RankEstimates> &ranks, const Gpu &gpu, const Links &links);

} // namespace annulus::cli
