// SPDX-License-Identifier: Apache-2.0
// Which branches of a grid share ranges. A tile visits their common keys (for gradients of keys: queries) once.
#pragma once

#include "cuda/fused/schedule/tile_grid.hpp"

#include <cstdint>

namespace annulus {

// Sets merged_ratio and the strides of the ranges, in a grid whose branches are set. The ratio is the one with which a
// tile meets the fewest blocks of `block_rows` rows. Tensors have `rows_of_ranges` rows of the ranges' side.
void set_merging(TileGrid &grid, int block_rows, std::int64_t rows_of_ranges);

} // namespace annulus
