// SPDX-License-Identifier: Apache-2.0
// What the kernels are expected to take for a grid, in rows of a block of a range in which all row blocks of a tile
// take part.
#pragma once

#include "cuda/fused/schedule/kernel_shape.hpp"
#include "cuda/fused/schedule/tile_grid.hpp"

namespace annulus {

// A launch beside its tiles, by a fit to times on an H200 (notes.md).
constexpr double rows_of_launch = 4000;

// All tiles of a grid, one after the other, by a look at some of its cells.
double rows_of_tiles(const TileGrid &grid, const KernelShape &shape);

} // namespace annulus
