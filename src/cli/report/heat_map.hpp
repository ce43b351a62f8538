// SPDX-License-Identifier: Apache-2.0
// A picture of numbers on a grid, with a bar that says which colour is how much.
#pragma once

#include "cli/report/drawing.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace annulus::cli {

struct HeatMap {
    std::int64_t columns;
    std::vector<double> values;     // row by row from the top; NaN where the grid has nothing, which is grey
    std::vector<std::string> lines; // above the picture; the first is its title
    std::string unit;               // of the bar
};

// The colours reach from 0 to the number that all but a hundredth of the others are below.
Drawing draw(const HeatMap &map);

} // namespace annulus::cli
