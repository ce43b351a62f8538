// SPDX-License-Identifier: Apache-2.0
// Scratch of the tile-finding warp in shared memory.
#pragma once

#include "cuda/device/warp.cuh"
#include "cuda/fused/schedule/cell.hpp"

#include <cstdint>

namespace annulus {

// A class of row blocks.
struct RowClass {
    int residue; // modulo grid.levels[level]
    std::uint8_t level;
    std::uint8_t branches; // a bit for each branch that the class takes part in
};

static_assert(max_branches <= 8, "ancestors, branches of classes, and multiplicities of four bits");
struct TileSearch {
    CellBranch branches[max_branches];
    // The classes that were found last, and the row dilations and row residues they were found for. Most tiles have the
    // same ones as the tile before.
    RowClass classes[max_classes];
    int class_count;
    int dilations[max_branches], residues[max_branches];

    __device__ __forceinline__ void start(int lane) {
        if (lane < max_branches)
            dilations[lane] = -1;
        __syncwarp();
    }
};

} // namespace annulus
