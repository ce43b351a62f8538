// SPDX-License-Identifier: Apache-2.0
// The tensor maps by which a grid's kernel copies the rows of its ranges.
#pragma once

#include "core/plan.hpp"
#include "cuda/fused/schedule/matrices.hpp"
#include "cuda/fused/schedule/tile_grid.hpp"

#include <annulus/tensor.h>
#include <cuda.h>

namespace annulus {

// The maps of one matrix, two for each stride of the grid (TileGrid), in a kernel's parameters. They are encoded when
// the matrix has other strides than the one before; where it only lies elsewhere, they get its address.
class RangeMaps {
  public:
    // Dimensions (column, row of a residue, residue, head, batch); a box is 64 columns and box_rows rows, with 128-byte
    // swizzle and zeros beyond the matrix's end. `maps` are the same every time. Throws Error(ANNULUS_ERROR_DEVICE).
    void bind(const RangeMatrix &matrix, const TileGrid &tiles, const Problem &problem, int box_rows,
              CUtensorMap *maps);

  private:
    DeviceRows bound_; // data is null before the first time
};

} // namespace annulus
