// SPDX-License-Identifier: Apache-2.0
// Checks which rows of K and V go from rank to rank, against the definition.
#pragma once

#include "ranks/schedule.hpp"

#include "support/problem.hpp"

#include <cstdint>
#include <limits>
#include <tuple>
#include <vector>

namespace annulus::test {

inline constexpr std::int64_t int64_max = std::numeric_limits<std::int64_t>::max();

// Returns all fields of a message, to compare two messages.
inline auto fields(const Message &m) {
    return std::tuple(m.from, m.to, m.queries.start, m.queries.length, m.keys.start, m.keys.length, m.stride, m.rows,
                      m.firsts);
}

// Returns the exchange that `auto` selects for one sequence.
annulus_exchange chosen_exchange(const Problem &problem, const Shards &shards);

// Checks, for each exchange, that the messages of all ranks have exactly the rows that the definition requires. Sender
// and receiver must plan the same messages, in the same rounds. Also checks what `auto` selects.
void expect_schedules(const Problem &problem, const std::vector<std::int64_t> &lengths);

} // namespace annulus::test
