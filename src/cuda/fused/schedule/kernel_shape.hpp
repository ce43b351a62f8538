// SPDX-License-Identifier: Apache-2.0
// What the host must know of a kernel to plan its grids.
#pragma once

namespace annulus {

struct KernelShape {
    int row_blocks;       // of a tile
    int range_block_rows; // rows of a block of a range
    bool operator==(const KernelShape &) const = default;
};

} // namespace annulus
