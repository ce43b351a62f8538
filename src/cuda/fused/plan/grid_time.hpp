// SPDX-License-Identifier: Apache-2.0
// The time that a launch over a grid is expected to take. Its unit is a row of a range: what a tile takes for one of a
// block of such rows in which all row blocks of the tile take part.
#pragma once

#include "cuda/fused/schedule/kernel_shape.hpp"
#include "cuda/fused/schedule/tile_grid.hpp"

namespace annulus {

// A launch beside its tiles, by a fit to times on an H200 (doc/notes/planning.md).
constexpr double rows_of_launch = 4000;

// All tiles of a grid, one after the other, by a look at some of its cells.
double rows_of_tiles(const TileGrid &grid, const KernelShape &shape);

} // namespace annulus
