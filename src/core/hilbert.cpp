// SPDX-License-Identifier: Apache-2.0
#include "core/hilbert.hpp"

#include <cmath>

namespace annulus {

std::int64_t Curve::automatic_width(std::int64_t length) {
    // The largest divisor that is at most sqrt(length) has the smallest one above it as its partner.
    std::int64_t rows = static_cast<std::int64_t>(std::sqrt(static_cast<double>(length)));
    while (rows > length / rows)
        --rows;
    while (rows + 1 <= length / (rows + 1))
        ++rows;
    while (length % rows != 0)
        --rows;
    return length / rows;
}

} // namespace annulus
