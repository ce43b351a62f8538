// SPDX-License-Identifier: Apache-2.0
// Draws numbers at places of a plane, with axes, and with a bar that shows the number of each colour.
#pragma once

#include "cli/report/drawing.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace annulus::cli {

struct HeatMap {
    std::int64_t columns;
    std::vector<double> values;     // row by row from the top; NaN: an empty place, drawn grey
    double x, y;                    // coordinates of the upper left corner; y grows downwards
    double point_side;              // of a value's square, in the coordinates' unit
    double low, high;               // numbers of the first and the last colour, low < high
    std::vector<std::string> lines; // above the picture; the first is its title
    std::string unit;               // of the values; written at the bar
};

Drawing draw(const HeatMap &map);

} // namespace annulus::cli
