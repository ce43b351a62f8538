// SPDX-License-Identifier: Apache-2.0
// Divides the ranges of a grid with few tiles among CTAs.
//
// A few rows may meet very many: the queries of global positions meet all keys, their keys meet all queries, and a step
// of decoding has one query. Such a grid has one tile for each head and batch entry, and most CTAs would have nothing
// to do. So the positions of its ranges are cut into parts of equal length, of which the last one may be shorter. The
// kernels see each part of each batch entry as a sequence, which has the same rows and other range rows. Its results
// are float32 partial results of its own. merge_range_parts.hpp then merges the parts of each row, in their order, and
// sets or adds to the partial results of all rows.
#pragma once

#include "cuda/fused/plan/grids.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace annulus {

// Divides the ranges of each grid that then takes less time on a GPU that runs `ctas` CTAs at a time. Returns whether
// it has divided any. The launches over a divided grid must set or add to partial results of all rows.
bool divide_ranges(const Problem &problem, GridResult what, const KernelShape &shape, int ctas,
                   std::vector<PlannedGrid> &grids);

// Divides a grid's ranges at these positions into parts of `length` positions. The grid must be over one sequence.
void cut_ranges(const Window &positions, std::int64_t length, PlannedGrid &planned);

// True if the ranges of some grid are divided.
bool has_range_parts(const std::vector<PlannedGrid> &grids);

// Returns how many rows of partial results the parts of a grid have, or the parts of the largest one of several grids.
// Only one grid's parts are needed at a time.
std::int64_t rows_of_range_parts(std::span<const PlannedGrid> grids);

// Returns the row of the first partial result of the parts of a grid (Launch::first_partial_row).
inline std::int64_t first_row_of_range_parts(const PlannedGrid &planned) {
    return planned.tiles.sequence.row_start - planned.tiles.first_row;
}

} // namespace annulus
