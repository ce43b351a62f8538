// SPDX-License-Identifier: Apache-2.0
// The tensor maps by which a grid's kernel copies the rows of its ranges.
#pragma once

#include "core/plan.hpp"
#include "cuda/fused/schedule/matrices.hpp"
#include "cuda/fused/schedule/tile_grid.hpp"

#include <annulus/tensor.h>
#include <cuda.h>

namespace annulus {

// The tensor maps of one matrix in a kernel's parameters, two for each stride of the grid (TileGrid). They are encoded
// if the matrix has other strides than the last one. If only its address differs, they get the new address.
class RangeMaps {
  public:
    // Dimensions are (column, row of a residue, residue, head, batch). A box is 64 columns and `box_rows` rows, with
    // 128-byte swizzle, and zeros beyond the matrix's end. `maps` must be the same every time. Throws
    // Error(ANNULUS_ERROR_DEVICE).
    void bind(const RangeMatrix &matrix, const TileGrid &tiles, const Problem &problem, int box_rows,
              CUtensorMap *maps);

  private:
    DeviceRows bound_; // data is null before the first time
};

} // namespace annulus
