// SPDX-License-Identifier: Apache-2.0
// Decides whether one kernel finds all gradients (query_sums.hpp), and in which parts, so that the sums of dQ fit into
// memory.
#pragma once

#include "core/plan.hpp"
#include "cuda/fused/plan/grids.hpp"
#include "cuda/fused/schedule/query_sums.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace annulus {

// The batch entries, heads of K and segments of a launch.
struct QuerySumsParts {
    int batches, heads, segments;
    int first_segment, all_segments;
    int head_dim; // of the kernel
    int tiles, blocks, block_rows;
    int multiprocessors;

    // Returns the number of sums of a launch, and their bytes.
    std::int64_t sums() const;
    std::size_t bytes() const;

    // Returns the order and the places of a launch with this number of cells in each direction.
    QuerySums layout(int launch_batches, int launch_heads, int launch_segments) const;
};

// Plans the launches of the kernel of all gradients, whose sums have at most `bytes` bytes. Returns none if two kernels
// find the gradients instead:
//
// - There is no such kernel for the head dimension.
// - There are several grids, branches or sequences, a window, or row blocks for each residue.
// - Segments are short, and two kernels faster (tuning.hpp).
// - The sums of one segment of a head do not fit.
std::optional<QuerySumsParts> plan_query_sums(const Problem &problem, const std::vector<PlannedGrid> &queries,
                                              const std::vector<PlannedGrid> &keys, const BackwardShapes &shapes,
                                              int multiprocessors, std::size_t bytes);

} // namespace annulus
