// SPDX-License-Identifier: Apache-2.0
// When dS is stored where a kernel of keys computes it, for a product that gives dQ: in parts that fit into memory.
#pragma once

#include "core/plan.hpp"
#include "cuda/fused/math/backward_work.hpp"
#include "cuda/fused/plan/grids.hpp"
#include "engine/engine.hpp"

#include <cstddef>
#include <optional>
#include <vector>

namespace annulus {

// So many batch entries, heads of K and segments by a launch, or two.
struct StoredDsParts {
    int batches, heads, segments;
    int all_segments;
    StoredDs of_segment; // of one head; and how many of them are in memory at a time

    std::size_t bytes_of_cell() const;
    std::size_t bytes() const { return static_cast<std::size_t>(of_segment.cells) * bytes_of_cell(); }
};

// None where dS cannot be stored in so many bytes, or not by enough tiles at a time. `sums_keys`: gradients of keys are
// partial results anyhow; else those of several passes (StoredTurns) come out of these bytes. There must be one branch,
// whose queries and keys are of the same classes, and the windows the same, or parts of one segment in which no keys
// are hidden. For two kernels the classes have a multiple of 64 queries and keys in each segment, or its part.
std::optional<StoredDsParts> plan_stored_ds(const Problem &problem, KeyScope scope,
                                            const std::vector<PlannedGrid> &queries,
                                            const std::vector<PlannedGrid> &keys, bool sums_keys,
                                            const BackwardShapes &shapes, int multiprocessors, std::size_t bytes);

// Whether dS of the whole problem has fewer bytes than the zeros of rows that are in no row block of `tiles` or of the
// queries' grid. Where these are written beside the products, dS, which is written and read, would have the memory take
// longer than the two products do that storing it saves.
bool zeros_outweigh_ds(const Problem &problem, const TileGrid &tiles, const StoredDsParts &parts);

} // namespace annulus
