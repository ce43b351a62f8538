// SPDX-License-Identifier: Apache-2.0
// Which branches of a grid share ranges.
#pragma once

#include "cuda/fused/schedule/tile_grid.hpp"

#include <cstdint>

namespace annulus {

// Sets up to which ratio of dilations branches are merged, that tiles meet the fewest blocks of so many rows, and the
// strides of the ranges, which are over so many rows.
void set_merging(TileGrid &grid, int block_rows, std::int64_t rows_of_ranges);

} // namespace annulus
