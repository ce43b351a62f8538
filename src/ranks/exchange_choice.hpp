// SPDX-License-Identifier: Apache-2.0
// Which exchange `auto` selects.
#pragma once

#include "core/sequences.hpp"
#include "ranks/shard_layout.hpp"

#include <cstdint>
#include <vector>

namespace annulus {

// The most memory for rows of other ranks that `auto` lets `gather` take, in the rows of K and V of the rank that has
// most rows: if the ring has few rounds, and if it has many. The rows of a round are then few, and nothing hides what
// the round costs beside them.
constexpr std::int64_t room_beside_short_ring = 1, room_beside_long_ring = 4;
constexpr std::size_t most_rounds_of_short_ring = 8;

// If a rank has few rows, the rows of a round are few, too. Then there is room for this multiple of the rank's rows, up
// to this number of bytes of K and V. So a slide of 70,001 tiles is gathered on up to 8 GPUs. On four H200s that takes
// 0.92 times as long as a ring (doc/performance.md).
constexpr std::int64_t room_beside_few_rows = 8, most_bytes_of_few_rows = std::int64_t{256} << 20;

// Returns the exchange that `auto` selects for each sequence: `gather` as long as the slots that each rank receives for
// it and for shorter sequences need no more than the room above, else `ring`. Also `ring` if finding out takes more
// than estimate_planning_steps, or if more than 2^26 pairs of shards reach one another. `rows` is the problem of all
// rows. All ranks get the same answer.
std::vector<annulus_exchange> choose_exchanges(const Pattern &pattern, const Problem &rows,
                                               const std::vector<Sequence> &sequences, const Shards &shards);

} // namespace annulus
