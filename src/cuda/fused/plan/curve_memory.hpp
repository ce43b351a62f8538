// SPDX-License-Identifier: Apache-2.0
// Memory that grids along curves read: the permutations of their branches, and the packed range rows of one grid at a
// time.
#pragma once

#include "core/plan.hpp"
#include "core/workspace.hpp"
#include "cuda/fused/plan/grids.hpp"

#include <cstdint>
#include <vector>

namespace annulus {

struct CurveMemory {
    int *residues;           // scratch; only if causal
    int *orders;             // the permutations of all grids, one after the other
    void *q_or_k, *v_or_d_o; // [B, rows, heads, D]: the range rows of a packed grid
    float *lse_log2, *delta; // [B, H, rows], if ranges are queries

    // Returns the permutation of a grid, or null if the grid is not along a curve.
    int *order_of(const PlannedGrid &planned) const { return planned.curve ? orders + planned.order_start : nullptr; }
};

// Books the memory for grids whose ranges are keys, and grids whose ranges are queries. Both are over the same branches
// along curves. Either may be empty.
CurveMemory book_curves(Workspace &workspace, const Problem &problem, const std::vector<PlannedGrid> &over_keys,
                        const std::vector<PlannedGrid> &over_queries);

} // namespace annulus
