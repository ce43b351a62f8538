// SPDX-License-Identifier: Apache-2.0
// The memory that ranks need at most on GPUs that are not here.
#pragma once

#include "cli/commands/plan_estimates.hpp"
#include "cli/devices/gpu_models.hpp"
#include "cli/ranks/shard.hpp"

#include <annulus/annulus.h>

#include <cstdint>

namespace annulus::cli {

// A GPU that is not here, and the engines that would compute the two passes on it.
struct Gpu {
    const GpuModel &model;
    annulus_engine forward, backward;

    annulus_engine engine(annulus_pass pass) const { return pass == ANNULUS_PASS_BACKWARD ? backward : forward; }
};

// Returns the most workspace that a rank's call takes on a GPU: rows of other ranks, sums, and what the engine takes
// besides. `estimate` is the CPU's; its own workspace does not count. `message_bytes` are float32_message_bytes().
std::uint64_t gpu_workspace_bytes(const PlannedJob &job, annulus_pass pass, const Gpu &gpu,
                                  const annulus_estimate &estimate, std::uint64_t message_bytes, const Shards &shards,
                                  std::int32_t rank);

} // namespace annulus::cli
