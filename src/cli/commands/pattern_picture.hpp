// SPDX-License-Identifier: Apache-2.0
// Which keys each query attends to, as a picture: what the library does and not what it is said to do.
#pragma once

#include "cli/ranks/shard.hpp"

#include <annulus/config.h>

#include <cstdint>
#include <string>

namespace annulus::cli {

// An SVG with a panel for each pattern that heads have: a row for each query and a column for each key or, of a longer
// sequence, for as many positions as leave no more than 128. Of several ranks it has the borders of their shards,
// unless there are more than 64 shards. `caption` says what it is. Throws Failure with exit_bad_input for more than
// 2048 tokens or 64 heads.
std::string draw_pattern(const annulus_config *config, std::int64_t tokens, std::int32_t heads, const Shards &shards,
                         int ranks, const std::string &caption);

} // namespace annulus::cli
