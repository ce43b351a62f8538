// SPDX-License-Identifier: Apache-2.0
#include "cli/ranks/shard.hpp"

#include <algorithm>

namespace annulus::cli {

Shard shard_of(std::int64_t tokens, std::int64_t rank, std::int64_t ranks) {
    const std::int64_t each = tokens / ranks, more = tokens % ranks;
    return {rank * each + std::min(rank, more), each + (rank < more ? 1 : 0)};
}

} // namespace annulus::cli
