// SPDX-License-Identifier: Apache-2.0
// Which branches of a grid share ranges, so that a tile visits their common keys (of gradients of keys: queries) once.
#pragma once

#include "cuda/fused/schedule/tile_grid.hpp"

#include <cstdint>

namespace annulus {

// Of a grid whose branches are set: sets merged_ratio, by which a tile meets the fewest blocks of `block_rows` rows,
// and the strides of the ranges, which lie in `rows_of_ranges` rows of their tensors.
void set_merging(TileGrid &grid, int block_rows, std::int64_t rows_of_ranges);

} // namespace annulus
