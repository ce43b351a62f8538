// SPDX-License-Identifier: Apache-2.0
// Finds shards that give all ranks as much to do.
#pragma once

#include "core/sequences.hpp"
#include "ranks/shard_layout.hpp"

#include <cstdint>

namespace annulus {

// Returns shards for `ranks` ranks, whose numbers of rows differ by at most 1, by the pairs that each rank computes and
// the rows that it receives. Takes even shards, or zigzag shards, or shards that keep sequences whole, in this order:
// later ones only if they make the rank with most to do faster. Ignores the problem's windows. Throws
// Error(ANNULUS_ERROR_ARGUMENT) if the pattern does not fit a sequence.
Shards balance_shards(const Pattern &pattern, const CallProblem &problem, int ranks);

} // namespace annulus
