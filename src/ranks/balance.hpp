// SPDX-License-Identifier: Apache-2.0
// Finds shards with which all ranks have equally much to do.
#pragma once

#include "core/sequences.hpp"
#include "ranks/shard_layout.hpp"

#include <cstdint>

namespace annulus {

// The most steps of a search for shards, each of some 15 nanoseconds. A step looks at a rank or a window for a
// sequence. A limit in seconds would let ranks stop with different shards.
constexpr std::int64_t balance_steps = std::int64_t{1} << 26;

// Returns shards for `ranks` ranks, whose numbers of rows differ by at most 1. Compares even shards, zigzag shards and
// shards that keep sequences whole. Counts the pairs that each rank computes, and the rows and messages that it
// receives. Takes even shards unless others make the rank with most to do faster. Stops after `max_steps`, about a
// second, with the best shards so far. Ignores the problem's windows. Throws Error(ANNULUS_ERROR_ARGUMENT) if the
// pattern does not fit a sequence.
Shards balance_shards(const Pattern &pattern, const CallProblem &problem, int ranks,
                      std::int64_t max_steps = balance_steps);

} // namespace annulus
