// SPDX-License-Identifier: Apache-2.0
// What grids along curves read: the orders of their branches and, where they are packed, the rows of their ranges in
// that order, one grid after the other.
#pragma once

#include "core/plan.hpp"
#include "core/workspace.hpp"
#include "cuda/fused/plan/grids.hpp"

#include <cstdint>
#include <vector>

namespace annulus {

struct CurveMemory {
    int *residues;           // scratch, under causality
    int *orders;             // of all grids
    void *scores, *values;   // [B, rows, heads, D] of the ranges of a packed grid
    float *lse_log2, *delta; // [B, H, rows], where ranges are of queries

    // Of one of the grids; null where it is along no curve.
    int *order_of(const PlannedGrid &planned) const { return planned.curve ? orders + planned.order_start : nullptr; }
};

// Of grids whose ranges are of keys, and of those whose ranges are of queries: they are over the same branches along
// curves, of which either may have none.
CurveMemory book_curves(Workspace &workspace, const Problem &problem, const std::vector<PlannedGrid> &over_keys,
                        const std::vector<PlannedGrid> &over_queries);

} // namespace annulus
