// SPDX-License-Identifier: Apache-2.0
// How callers say which rank holds which part of a sequence.
#pragma once

#include "ranks/shard_layout.hpp"

#include <cstdint>

namespace annulus {

// `count` shards, one behind the other: shard i has lengths[i] positions and is rank owners[i]'s, or rank i's where
// owners is null. Throws Error(ANNULUS_ERROR_ARGUMENT).
Shards checked_shards(const std::int64_t *lengths, const std::int32_t *owners, std::int32_t count, std::int32_t ranks);

} // namespace annulus
