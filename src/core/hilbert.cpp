// SPDX-License-Identifier: Apache-2.0
#include "core/hilbert.hpp"

#include "core/divisors.hpp"

namespace annulus {

std::int64_t Curve::automatic_width(std::int64_t length) {
    // The largest divisor that is at most sqrt(length) has the smallest one above it as its partner.
    return length / largest_divisor_to_root(length);
}

} // namespace annulus
