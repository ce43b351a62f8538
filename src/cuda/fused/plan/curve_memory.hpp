// SPDX-License-Identifier: Apache-2.0
// What grids along a curve need, one after the other: the order, and the rows that their ranges read, in that order.
#pragma once

#include "core/plan.hpp"
#include "core/workspace.hpp"
#include "cuda/fused/plan/grids.hpp"

#include <vector>

namespace annulus {

struct CurveMemory {
    int *residues, *order;   // [window]
    void *scores, *values;   // [B, window, heads, D] of the ranges
    float *lse_log2, *delta; // [B, H, window], where ranges are of queries
};

CurveMemory book_curve(Workspace &workspace, const Plan &plan, const std::vector<PlannedGrid> &grids,
                       bool ranges_are_queries);

} // namespace annulus
