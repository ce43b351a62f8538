// SPDX-License-Identifier: Apache-2.0
// Draws numbers on a grid, with a bar that shows the number of each colour.
#pragma once

#include "cli/report/drawing.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace annulus::cli {

struct HeatMap {
    std::int64_t columns;
    std::vector<double> values;     // row by row from the top; NaN: an empty place, drawn grey
    std::vector<std::string> lines; // above the picture; the first is its title
    std::string unit;               // written at the bar
};

// Draws the map. The colours reach from 0 to the 99th percentile of the numbers.
Drawing draw(const HeatMap &map);

} // namespace annulus::cli
