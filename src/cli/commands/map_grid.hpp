// SPDX-License-Identifier: Apache-2.0
// Where the positions of a sequence lie in an image or a slide.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace annulus::cli {

// What the user says of it.
struct GridOptions {
    std::optional<std::int64_t> width;
    std::string coordinates; // a path; empty: none
    std::int64_t skip = 0;   // positions before the first one that lies somewhere, such as a class token
};

struct Grid {
    std::int64_t columns, rows;
    std::vector<std::int64_t> cells; // of the positions after those that are skipped, counted row by row

    // The number of a position in its cell, and NaN where there is none.
    std::vector<double> spread(const std::vector<double> &of_positions, std::int64_t skip) const;
};

// Of `tokens` positions: row by row, or as a file of coordinates says. Throws Failure with exit_bad_input.
Grid make_grid(const GridOptions &options, std::int64_t tokens);

} // namespace annulus::cli
