// SPDX-License-Identifier: Apache-2.0
// The generalised Hilbert curve as the recursion that defines it: lists of cells, and nothing of the library's.
#pragma once

#include <cstdint>
#include <vector>

namespace annulus::test {

// The positions row * columns + column of a rows x columns grid in the order in which the curve visits them.
std::vector<std::int64_t> hilbert_positions(std::int64_t rows, std::int64_t columns);

// The smallest divisor of `length` that is at least its square root.
std::int64_t hilbert_columns(std::int64_t length);

} // namespace annulus::test
