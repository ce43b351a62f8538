// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "support/problem.hpp"

#include <cstdint>

namespace annulus::test {

// Returns a small problem with random sizes, rules, head ranges, windows, layout and dtype.
Problem random_problem(std::uint64_t seed);

// The same with windows and global positions among the branches.
Problem random_sliding_problem(std::uint64_t seed);

// The same with windows alone, which ranks can share.
Problem random_window_problem(std::uint64_t seed);

} // namespace annulus::test
