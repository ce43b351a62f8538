// SPDX-License-Identifier: Apache-2.0
// What `annulus plan` asks the library: what each rank of a problem computes, holds, sends and receives.
#pragma once

#include "cli/commands/pattern_options.hpp"
#include "cli/devices/execution_options.hpp"
#include "cli/devices/handles.hpp"
#include "cli/ranks/shard.hpp"

#include <annulus/annulus.h>

#include <cstdint>
#include <vector>

namespace annulus::cli {

// A problem, the pattern of its keys, and the options of the context that plans it.
struct PlannedJob {
    annulus_problem problem;
    PatternOptions pattern;
    ExecutionOptions execution;
};

struct RankEstimates {
    annulus_estimate forward, backward;
    std::int64_t rows;
    // By branch: the pairs, and the bytes that forward would receive if the pattern had this branch alone.
    std::vector<double> branch_pairs;
    std::vector<std::uint64_t> branch_received;
    std::uint64_t float32_message_bytes;
};

annulus_estimate estimate_of_rank(annulus_context *context, const annulus_problem &problem, annulus_pass pass,
                                  const Shards &shards, std::int32_t rank);

// Returns the bytes that a rank needs in backward for rows of other ranks and their gradients, all of them in float32;
// 0 on one rank. That is the workspace of the engine `cpu` in float32, which has no sums of its own. `context` has no
// workspace limit.
std::uint64_t float32_message_bytes(annulus_context *context, annulus_problem problem, const Shards &shards,
                                    std::int32_t rank);

// Returns the options without a workspace limit.
ExecutionOptions without_limit(ExecutionOptions execution);

// Returns the estimates of all ranks. `context` is of the job.
std::vector<RankEstimates> estimate_ranks(annulus_context *context, const PlannedJob &job, const Shards &shards);

} // namespace annulus::cli
