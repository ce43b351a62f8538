// SPDX-License-Identifier: Apache-2.0
// Says where the positions of a sequence lie in an image or a slide.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace annulus::cli {

// The options that say where positions lie.
struct PlaceOptions {
    std::optional<std::int64_t> width; // columns of a grid that the positions fill row by row
    std::string coordinates;           // path; empty: none
    std::optional<double> tile_size;   // in the coordinates' unit
    std::int64_t skip = 0;             // positions before the first tile, such as a class token
};

struct Point {
    double x, y;

    bool operator==(const Point &) const = default;
};

// Square tiles, one for each position from `skip` on. y grows downwards.
struct Tiles {
    std::vector<Point> corners; // upper left
    double side;

    // Return the upper left corner of the first column and row, and the width and height of the area of all tiles.
    Point origin() const;
    Point extent() const;
};

// Places `tokens` positions: row by row on a grid of unit squares, or as a file of coordinates says. Without a tile
// size, a tile is as large as the median distance of a tile to its nearest neighbour. Throws Failure with
// exit_bad_input.
Tiles place_tiles(const PlaceOptions &options, std::int64_t tokens);

} // namespace annulus::cli
