// SPDX-License-Identifier: Apache-2.0
// The range of numbers that a picture's colours show.
#pragma once

#include <string>
#include <vector>

namespace annulus::cli {

// One end of the range.
struct RangeEnd {
    double value;
    bool is_quantile; // true: `value` is a quantile, from 0 to 1
};

struct ColorRange {
    RangeEnd low{0.01, true}, high{0.99, true};
};

// Reads the value of --range, LOW:HIGH. Each is a number, or a percentage that names a quantile. Throws Failure with
// exit_bad_input.
ColorRange parse_color_range(const std::string &text);

struct Bounds {
    double low, high;
};

// Returns the numbers of the first colour and the last one, low < high. Quantiles are those of the finite values, with
// linear interpolation. Throws Failure with exit_bad_input if no value is finite, or if the ends are in the wrong
// order.
Bounds bounds_of(const ColorRange &range, const std::vector<double> &values);

} // namespace annulus::cli
