// SPDX-License-Identifier: Apache-2.0
// Decides whether a kernel of keys stores dS for the product that gives dQ, and in which parts that fit into memory.
#pragma once

#include "core/plan.hpp"
#include "cuda/fused/math/backward_work.hpp"
#include "cuda/fused/plan/grids.hpp"
#include "engine/engine.hpp"

#include <cstddef>
#include <optional>
#include <vector>

namespace annulus {

// How many batch entries, heads of K and segments a launch handles, or a pair of launches.
struct StoredDsParts {
    int batches, heads, segments;
    int all_segments;
    std::int64_t key_rows; // rows of keys of a head whose partial results several passes keep at a time
    StoredDs layout;       // for one cell; also how many cells are in memory at a time

    std::size_t cell_bytes() const;
    std::size_t bytes() const { return static_cast<std::size_t>(layout.cells) * cell_bytes(); }
    // Return the numbers of StoredDs::sums and StoredDs::sum_counters, which launches use if they divide the keys of
    // tiles of queries.
    std::int64_t sum_count() const;
    std::int64_t sum_counter_count() const;
};

// Plans how dS is stored in `bytes` bytes. Returns none if dS does not fit, if one kernel would have too few tiles at a
// time, or if memory is so slow that computing dS twice takes less time.
// - `sums_keys`: gradients of keys are partial results anyway. Otherwise the partial results of several passes
//   (StoredTurns) come out of `bytes`, as sums of dQ do.
// - There must be one branch, whose queries and keys are of the same classes.
// - The windows of queries and keys must be equal, or parts of one segment in which no keys are hidden.
std::optional<StoredDsParts> plan_stored_ds(const Problem &problem, KeyScope scope,
                                            const std::vector<PlannedGrid> &queries,
                                            const std::vector<PlannedGrid> &keys, bool sums_keys,
                                            const BackwardShapes &shapes, int multiprocessors, std::size_t bytes);

// True if the zeros of rows in no row block have more bytes than dS of the whole problem. `tiles` and the queries' grid
// have the same row blocks. The zeros are written beside the products, and dS is written and read. Memory would then
// take longer for dS than the two products that storing it saves.
bool zeros_outweigh_ds(const Problem &problem, const TileGrid &tiles, const StoredDsParts &parts);

} // namespace annulus
