// SPDX-License-Identifier: Apache-2.0
// What a plan says of GPUs that are not here: the memory that ranks need at most, how many ranks have enough, and how
// long forward and backward take.
#pragma once

#include "cli/commands/links.hpp"
#include "cli/commands/plan_estimates.hpp"
#include "cli/devices/gpu_models.hpp"
#include "cli/ranks/shard.hpp"
#include "cli/report/report.hpp"

#include <cstdint>
#include <vector>

namespace annulus::cli {

// A GPU that is not here, and the engines that would compute the two passes on it.
struct Gpu {
    const GpuModel &model;
    annulus_engine forward, backward;

    annulus_engine engine(annulus_pass pass) const { return pass == ANNULUS_PASS_BACKWARD ? backward : forward; }
};

// Returns the most workspace that a rank's call takes on a GPU. `estimate` is the CPU's: of it count, on several ranks,
// the rows of other ranks and the sums. The engine adds as much as it ever takes.
std::uint64_t gpu_workspace_bytes(const PlannedJob &job, annulus_pass pass, annulus_engine engine,
                                  const annulus_estimate &estimate, std::int64_t rows, bool has_ranks);

// Returns the least number of ranks with which a pass fits into the memory of each GPU, found by bisection and by the
// rank in the middle. If there is none, the text says why, and the value is null.
Cell least_ranks(const PlannedJob &job, annulus_pass pass, const Gpu &gpu, Sharding sharding);

// Returns the times of the slowest rank, with P ranks divided over hosts in their order. A pass that does not fit into
// the memory of each GPU has none. `context` is of the job.
Table time_table(annulus_context *context, const PlannedJob &job, const Shards &shards, int hosts,
                 const std::vector<RankEstimates> &ranks, const Gpu &gpu, const Links &links);

} // namespace annulus::cli
