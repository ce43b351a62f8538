// SPDX-License-Identifier: Apache-2.0
// The time that a launch over a grid is expected to take. Its unit is a range row: the time of a tile for one row of a
// block of a range in which all row blocks of the tile take part.
#pragma once

#include "cuda/fused/schedule/kernel_shape.hpp"
#include "cuda/fused/schedule/tile_grid.hpp"

namespace annulus {

// Returns the time of all tiles of a grid, one after the other, estimated from some of its cells.
double time_of_tiles(const TileGrid &grid, const KernelShape &shape);

} // namespace annulus
