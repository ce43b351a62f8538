// SPDX-License-Identifier: Apache-2.0
// What `annulus bench` measured, as a picture.
#pragma once

#include "cli/report/report.hpp"

#include <string>

namespace annulus::cli {

// An SVG with a bar for each row of the report's tables of cases, lengths or sequences.
std::string draw_bench(const Report &report);

} // namespace annulus::cli
