// SPDX-License-Identifier: Apache-2.0
// How callers say which rank holds which part of a sequence.
#pragma once

#include "ranks/shard_layout.hpp"

#include <annulus/comm.h>

namespace annulus {

// A copy of the caller's struct. Throws Error(ANNULUS_ERROR_ARGUMENT) where it is NULL or of no version.
annulus_shards read_shards(const annulus_shards *shards);

// The shards that the struct's arrays tell, for given.ranks ranks. Throws Error(ANNULUS_ERROR_ARGUMENT).
Shards checked_shards(const annulus_shards &given);

} // namespace annulus
