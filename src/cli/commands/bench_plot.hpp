// SPDX-License-Identifier: Apache-2.0
// What `annulus bench` measured, as a picture.
#pragma once

#include "cli/report/report.hpp"

#include <string>

namespace annulus::cli {

// An SVG with the machine, and with a bar for each row of the report's tables of cases, lengths or sequences: the
// median, and a line from the least to the most.
std::string draw_bench(const Report &report);

} // namespace annulus::cli
