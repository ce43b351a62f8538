// SPDX-License-Identifier: Apache-2.0
// Reads the caller's annulus_shards, which say which rank has which rows of a sequence.
#pragma once

#include "ranks/shard_layout.hpp"

#include <annulus/comm.h>

namespace annulus {

// Returns a copy of the caller's struct. Throws Error(ANNULUS_ERROR_ARGUMENT) if it is NULL or has no version's size.
annulus_shards read_shards(const annulus_shards *shards);

// Returns the shards in the struct's arrays, for given.ranks ranks. Throws Error(ANNULUS_ERROR_ARGUMENT).
Shards checked_shards(const annulus_shards &given);

} // namespace annulus
