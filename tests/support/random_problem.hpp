// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "support/problem.hpp"

#include <cstdint>

namespace annulus::test {

// A small problem with everything left to chance: sizes, rules, head ranges, windows, layout and dtype.
Problem random_problem(std::uint64_t seed);

} // namespace annulus::test
