// SPDX-License-Identifier: Apache-2.0
// The context that a command computes with.
#pragma once

#include "cli/commands/pattern_options.hpp"
#include "cli/devices/execution_options.hpp"
#include "cli/devices/handles.hpp"

#include <cstdint>

namespace annulus::cli {

Context make_context(annulus_config *config, const ExecutionOptions &execution);
// Makes a context for problems with `heads` query heads.
Context make_context(const PatternOptions &pattern, const ExecutionOptions &execution, std::int32_t heads);

// Returns what a pass of a problem costs, or one branch of it.
annulus_estimate estimate_of(annulus_context *context, const annulus_problem &problem, annulus_pass pass,
                             std::int32_t branch = ANNULUS_ALL_BRANCHES);

// Estimates the FLOPs of forward on the `rows` query rows from position query_start on. If `has_ranks`, the context has
// a communicator, and the FLOPs are those of the rank's own rows.
double forward_flops(annulus_context *context, annulus_problem problem, std::int64_t query_start, std::int64_t rows,
                     bool has_ranks);

// Returns the largest dilation of the branches of the context's config.
std::int64_t largest_dilation(const annulus_context *context);

} // namespace annulus::cli
