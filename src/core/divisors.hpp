// SPDX-License-Identifier: Apache-2.0
// Divisors of 64-bit numbers, in time that grows with the fourth root of the number, not with the number.
#pragma once

#include <cstdint>

namespace annulus {

// Returns the largest divisor of n that is at most sqrt(n), for n >= 1.
std::int64_t largest_divisor_to_root(std::int64_t n);

} // namespace annulus
