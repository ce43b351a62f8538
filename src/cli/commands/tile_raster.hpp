// SPDX-License-Identifier: Apache-2.0
// Draws tiles as the points of a picture.
#pragma once

#include "cli/commands/tile_places.hpp"

#include <cstdint>
#include <vector>

namespace annulus::cli {

// A raster over all tiles. Its points are squares.
struct Raster {
    Point origin;      // upper left corner of the first point
    double point_side; // in the coordinates' unit
    std::int64_t columns, rows;

    // Returns the number of each point: the mean of the values of the tiles over it, weighted by their area in it. A
    // point is NaN if the tiles cover less than half of it. Values of NaN are not drawn.
    std::vector<double> spread(const Tiles &tiles, const std::vector<double> &values) const;
};

// Makes the raster. If all tiles lie on a grid of their own size, a tile is one point. Otherwise it is at least 2 x 2
// points, so that it fills one wherever it lies. Throws Failure with exit_bad_input if that takes more points than a
// picture may have.
Raster make_raster(const Tiles &tiles, const PlaceOptions &options);

} // namespace annulus::cli
