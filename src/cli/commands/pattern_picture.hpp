// SPDX-License-Identifier: Apache-2.0
// Draws which keys each query attends to. The picture shows what the library computes, not a model of it.
#pragma once

#include "cli/ranks/shard.hpp"

#include <annulus/config.h>

#include <cstdint>
#include <string>

namespace annulus::cli {

// Returns an SVG with a panel for each distinct pattern of the heads. A panel has a row for each query and a column for
// each key. For more than 128 tokens a row or column stands for several positions. With several ranks the panels show
// the borders of the shards, if there are at most 64 shards. `caption` is the title. Throws Failure with exit_bad_input
// for more than 2048 tokens or 64 heads.
std::string draw_pattern(const annulus_config *config, std::int64_t tokens, std::int32_t heads, const Shards &shards,
                         int ranks, const std::string &caption);

} // namespace annulus::cli
