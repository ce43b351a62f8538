// SPDX-License-Identifier: Apache-2.0
// What the exchange `auto` comes to.
#pragma once

#include "core/plan.hpp"

#include <vector>

namespace annulus {

// Whether for every rank the slots of all it receives are no more than the longest shard has positions. False as well
// where it takes more than estimate_steps to find out, or more than 2^26 pairs of shards are in reach of one another.
bool gather_is_small(const Plan &plan, const std::vector<Window> &shards);

} // namespace annulus
