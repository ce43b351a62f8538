// SPDX-License-Identifier: Apache-2.0
// Places the positions of a sequence in an image or a slide.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace annulus::cli {

// The options that describe the grid.
struct GridOptions {
    std::optional<std::int64_t> width;
    std::string coordinates; // path; empty: none
    std::int64_t skip = 0;   // positions before the first one on the grid, such as a class token
};

struct Grid {
    std::int64_t columns, rows;
    std::vector<std::int64_t> cells; // cell of each position from `skip` on; cells count row by row

    // Returns a value for each cell: that of the position in it, NaN for a cell without a position. `position_values`
    // begins at position 0.
    std::vector<double> spread(const std::vector<double> &position_values, std::int64_t skip) const;
};

// Makes the grid of `tokens` positions: row by row, or as a file of coordinates says. Throws Failure with
// exit_bad_input.
Grid make_grid(const GridOptions &options, std::int64_t tokens);

} // namespace annulus::cli
