// SPDX-License-Identifier: Apache-2.0
// The measured constants of the fused engine's planner. Each says what it is, its unit, and what was measured on which
// GPU by which program. doc/notes/ has the measurements.
#pragma once

#include "cuda/fused/schedule/tile_grid.hpp"

#include <cstddef>
#include <cstdint>

namespace annulus::tuning {

// ---- Time of a launch (grid_time.hpp)
//
// The unit is a range row: the time of a tile for one row of a block of a range in which all row blocks of the tile
// take part. The next three constants are one fit to kernel times of Prov-GigaPath on an H200, at five lengths: of O,
// dQ, and dK with dV, without a split and with splits after one to three branches. The fit has an error of 6 % at most
// and 2 % on average (doc/notes/planning.md). The program is not recorded.

// Time of a launch beside its tiles, in rows.
inline constexpr double launch_rows = 4000;
// Time of a tile beside its blocks of ranges, in rows.
inline constexpr double tile_rows = 512;
// Time of a row block that waits for the other row blocks of its tile, as a fraction of its time when it computes.
inline constexpr double waiting_cost = 0.75;

// Greatest number of segments that are looked at to estimate the time of a grid. Not recorded.
inline constexpr int max_samples = 12;

// ---- Split branches (branch_split.hpp)

// Time of a grid below which a split is not considered, in rows. Not recorded.
inline constexpr double min_rows_to_split = 3 * launch_rows;
// Least gain of a split, as a fraction of the time without it. Not recorded; the choices were compared with all splits
// of nine problems, and were within some 5 % of the fastest (doc/notes/planning.md).
inline constexpr double min_gain = 0.05;

// ---- Grids (grids.hpp)

// A grid needs fewer tiles for each multiprocessor than this, if the longest tiles of all cells are to come first.
// H100, `annulus bench --device cuda --repeats 7 --dtype bfloat16`: Prov-GigaPath at 1,000 to 5,000 tokens 0.91 to 1.24
// times as fast forward, 1.08 to 1.17 times backward. With more tiles nothing was gained (doc/notes/planning.md).
inline constexpr unsigned by_length_tiles = 8;

// Ratios of dilations up to which branches are merged; the one with the fewest blocks is taken. Not recorded.
inline constexpr int merged_ratios[] = {8, 16, 32};

// Greatest number of classes that a warp visits to find the classes of a cell. Not recorded.
inline constexpr int max_class_visits = 3 * max_classes;

// ---- Memory, in bytes

// For partial results of a split grid, if the workspace limit allows it. It is enough for tiles that fill a GPU. Not
// recorded.
inline constexpr std::size_t usual_room = std::size_t{5} << 28;
// For the sums of dQ of a launch (query_sums.hpp), if the workspace limit allows it. Eight heads of 262,144 queries and
// 128 columns fit.
inline constexpr std::size_t max_room_for_query_sums = std::size_t{1} << 30;
// The same for parts of a head's rows, which exist to save memory. Not recorded.
inline constexpr std::size_t max_room_for_rows = std::size_t{1} << 30;

// ---- One kernel for all gradients (query_sums_plan.cpp)
//
// H100, backward of bfloat16 over one branch, 65,536 rows of 1024 features (tests/benchmarks/peers.py).

// Rows of a segment up to which two kernels are faster: in general, and under causality with more than 64 columns.
inline constexpr std::int64_t short_segment = 512, short_causal_segment_of_wide_rows = 2048;
// Bytes of Q, dO and sums of dQ of the cells that are worked on at once. H200, D = 64, 16,384 queries, causal: 487,
// 472, 441 and 384 TFLOP/s with 17, 34, 50 and 100 MB; 2,048 queries, causal: 144, 224, 315 and 359 with 8, 13, 25
// and 50.
inline constexpr std::int64_t bytes_of_cells_at_once = std::int64_t{40} << 20;

} // namespace annulus::tuning
