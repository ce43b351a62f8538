// SPDX-License-Identifier: Apache-2.0
// Which rows of K and V go from rank to rank, against the definition.
#pragma once

#include "ranks/schedule.hpp"

#include "support/problem.hpp"

#include <cstdint>
#include <limits>
#include <tuple>
#include <vector>

namespace annulus::test {

inline constexpr std::int64_t int64_max = std::numeric_limits<std::int64_t>::max();

// Everything that a message says of itself.
inline auto fields(const Message &m) {
    return std::tuple(m.from, m.to, m.queries.start, m.queries.length, m.keys.start, m.keys.length, m.stride, m.rows,
                      m.firsts);
}

// The messages of all ranks are those that the definition asks for, each told alike by sender and receiver, in rounds
// that fit together; by each exchange.
void expect_schedules(const Problem &problem, const std::vector<std::int64_t> &lengths);

} // namespace annulus::test
