// SPDX-License-Identifier: Apache-2.0
// Finds how far tiles are from one another.
#pragma once

#include "cli/commands/tile_places.hpp"

#include <optional>
#include <vector>

namespace annulus::cli {

// Returns the median over the points of the distance to the nearest point in another place, in O(N log N). Points in
// one place count once. Returns nothing if there is one place.
std::optional<double> median_nearest_distance(std::vector<Point> points);

} // namespace annulus::cli
