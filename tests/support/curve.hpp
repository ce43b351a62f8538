// SPDX-License-Identifier: Apache-2.0
// The generalised Hilbert curve by its recursive definition, as lists of cells. Independent of the library.
#pragma once

#include <cstdint>
#include <vector>

namespace annulus::test {

// Returns the positions row * columns + column of a rows x columns grid in the curve's order.
std::vector<std::int64_t> hilbert_positions(std::int64_t rows, std::int64_t columns);

// Returns the smallest divisor of `length` that is at least its square root.
std::int64_t hilbert_columns(std::int64_t length);

} // namespace annulus::test
