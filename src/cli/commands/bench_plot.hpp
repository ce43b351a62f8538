// SPDX-License-Identifier: Apache-2.0
// Draws what `annulus bench` measured.
#pragma once

#include "cli/report/report.hpp"

#include <string>

namespace annulus::cli {

// Returns an SVG with the machine and a bar for each row of the tables "cases", "scaling", "scaling_backward" and
// "sequences". A bar is the median. A line on it reaches from the lowest to the highest measurement.
std::string draw_bench(const Report &report);

} // namespace annulus::cli
