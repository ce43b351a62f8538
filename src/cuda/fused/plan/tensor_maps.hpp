// SPDX-License-Identifier: Apache-2.0
// Tensor maps of the caller's K and V, kept from call to call.
#pragma once

#include <annulus/tensor.h>
#include <cuda.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace annulus {

// Rows residue, residue + stride, … of [batch, row, head, column]; element strides.
struct MapKey {
    const void *data;
    annulus_dtype dtype;
    std::int64_t columns, heads, batches;
    std::int64_t rows, residues; // of each residue, and how many of these
    std::int64_t row_stride, head_stride, batch_stride;
    std::int64_t dilation;
    std::int64_t box_rows;
    bool operator==(const MapKey &) const = default;
};

class TensorMaps {
  public:
    // Dimensions (column, row of a residue, residue, head, batch); a box is 64 columns and box_rows rows, with 128-byte
    // swizzle and zeros beyond the tensor's end. Throws Error(ANNULUS_ERROR_CUDA).
    const CUtensorMap &get(const MapKey &key);

  private:
    struct Entry {
        MapKey key{};
        CUtensorMap map;
    };
    std::array<Entry, 128> entries_;
    std::size_t count_ = 0, next_ = 0;
};

} // namespace annulus
