// SPDX-License-Identifier: Apache-2.0
// Which engine computes a problem on a GPU that is not here: the limits of doc/limits.md.
#pragma once

#include "cli/commands/plan_estimates.hpp"
#include "cli/devices/gpu_models.hpp"

#include <cstdint>
#include <vector>

namespace annulus::cli {

// Returns the engine that computes a pass of a job on each rank's GPU. The job's --engine may be empty or auto: then it
// is the engine that the library would choose. Throws Failure if GPUs do not compute the job, or not with this engine.
annulus_engine engine_on(const GpuModel &model, const PlannedJob &job, annulus_pass pass, const Shards &shards);

// True if one launch of `fused` or `mma` computes all branches.
bool is_one_launch(const std::vector<annulus_branch> &branches);

// Returns the bounds of the sequences: their starts and the end of the last one.
std::vector<std::int64_t> sequence_bounds(const annulus_problem &problem);

// True if the branch follows a curve. With dilation 1 the order makes no difference.
bool is_curved(const annulus_branch &branch);

} // namespace annulus::cli
