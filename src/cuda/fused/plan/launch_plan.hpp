// SPDX-License-Identifier: Apache-2.0
// How the fused kernels take a plan: in passes over some branches each, one if it can be.
#pragma once

#include "core/plan.hpp"
#include "cuda/fused/schedule/tile_grid.hpp"

#include <optional>
#include <vector>

namespace annulus {

// What passes compute. Units are of queries and runs of keys; for gradients of keys it is the other way round.
enum class GridOf { outputs, query_gradients, key_gradients };

// What the host must know of a kernel.
struct KernelShape {
    int row_blocks;       // of a tile
    int range_block_rows; // of a range
    bool operator==(const KernelShape &) const = default;
};

struct PlannedGrid {
    TileGrid tiles;
    bool is_complete; // every row of units takes part in some branch of the pass
    // Of a pass over a branch in an order along a curve, on numbers instead of positions (curve_order.hpp): the branch,
    // else null; and the window of the numbers.
    const BranchPlan *curve = nullptr;
    Window window{};
};

// The plan's positions and dilations are below position_limit. Branches of a pass have dilations that divide one
// another, and do not mix the query rules `dilated` and `residue`. Those in an order along a curve come last, a pass
// each. Branches that have no pairs are left out: most of them where the keys are those of another rank. The result
// points into the plan.
std::vector<PlannedGrid> make_grids(const Plan &plan, GridOf what, const KernelShape &shape);

// The pass over `count` branches of another one, from its `first` on; none where that would be more classes of units
// than one pass takes, which fewer branches may come to as well.
std::optional<PlannedGrid> grid_over(const PlannedGrid &planned, int first, int count, const Plan &plan, GridOf what,
                                     const KernelShape &shape);

// Some batch entries and heads of a grid; of one over a single branch also some segments, or all (0).
struct GridPart {
    int first_batch, batches, first_head, heads;
    int first_segment = 0, segments = 0;
};
// Leaves of a grid a part.
void restrict_grid(TileGrid &tiles, const GridPart &part);

// Of the rows of units those that may meet rows of the other side beyond those of the pass.
PartialRows rows_with_more_ranges(const TileGrid &pass, GridOf what);

// Why the passes cannot do a plan that has an order along a curve; null if they can.
const char *curve_refusal(const Plan &plan);

// Tiles of a pass may be too many for their 32-bit numbers.
bool has_too_many_tiles(const std::vector<PlannedGrid> &grids);

} // namespace annulus
