// SPDX-License-Identifier: Apache-2.0
// How many slots the shards of a sequence receive with the exchange `gather`.
#pragma once

#include "ranks/shard_layout.hpp"
#include "ranks/steps.hpp"

#include <cstdint>
#include <optional>
#include <vector>

namespace annulus {

// The steps that are left for all sequences of a call. A look at a pair of shards takes some nanoseconds if its slots
// are cached; 2^26 of them are every pair of 8192 shards.
struct GatherEffort {
    Steps steps{estimate_planning_steps}, pairs{std::int64_t{1} << 26};
};

// Returns an upper bound of the slots of each shard in closed form, without a look at each pair of shards. It is near
// their number except for messages that make_bands() divides. Returns nothing if the steps run out.
std::optional<std::vector<std::int64_t>> bound_slots(const ShardLayout &layout, GatherEffort &effort);

// Returns the slots of each shard. Along a curve, and in some cases of the query rule `residue`, it counts a shard
// whole. Returns nothing if a shard has more than `limit`, or if the steps run out.
std::optional<std::vector<std::int64_t>> count_slots(const ShardLayout &layout, std::int64_t limit,
                                                     GatherEffort &effort);

} // namespace annulus
