// SPDX-License-Identifier: Apache-2.0
// Which exchange `auto` selects.
#pragma once

#include "core/plan.hpp"

#include <vector>

namespace annulus {

// True if no shard receives more slots than the longest shard has positions. Then `auto` selects `gather`, else `ring`.
// False also if the answer takes more than estimate_planning_steps, or if more than 2^26 pairs of shards reach one
// another.
bool gather_is_small(const Plan &plan, const std::vector<Window> &shards);

} // namespace annulus
