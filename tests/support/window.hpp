// SPDX-License-Identifier: Apache-2.0
// Takes a part of a problem's query rows and of its results.
#pragma once

#include "support/run.hpp"

#include <cstdint>
#include <vector>

namespace annulus::test {

// Returns the positions start … start + count - 1 of [batch, length, row elements].
inline std::vector<double> slice(const std::vector<double> &values, std::int64_t batch, std::int64_t length,
                                 std::int64_t start, std::int64_t count) {
    const std::int64_t row = static_cast<std::int64_t>(values.size()) / (batch * length);
    std::vector<double> part;
    for (std::int64_t b = 0; b < batch; ++b) {
        const auto first = values.begin() + (b * length + start) * row;
        part.insert(part.end(), first, first + count * row);
    }
    return part;
}

// The problem and its inputs, with only the query rows start … start + count - 1.
struct Windowed {
    Problem problem;
    Inputs inputs;
    Windowed(const Problem &whole, const Inputs &all, std::int64_t start, std::int64_t count)
        : problem(whole), inputs(all) {
        problem.window = QueryWindow{start, count};
        inputs.q = slice(all.q, whole.batch, whole.length, start, count);
        inputs.d_out = slice(all.d_out, whole.batch, whole.length, start, count);
        inputs.d_lse = slice(all.d_lse, whole.batch * whole.heads, whole.length, start, count);
    }
    // Returns the results of the window's queries out of the whole problem's results.
    Results rows_of(const Results &whole) const {
        const std::int64_t batch = problem.batch, length = problem.length;
        const auto [start, count] = *problem.window;
        return {slice(whole.out, batch, length, start, count),
                slice(whole.lse, batch * problem.heads, length, start, count),
                slice(whole.d_q, batch, length, start, count),
                {},
                {}};
    }
};

} // namespace annulus::test
