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
inline constexpr double min_time_to_split = 3 * launch_rows;
// Least gain of a split, as a fraction of the time without it. Not recorded; the choices were compared with all splits
// of nine problems, and were within some 5 % of the fastest (doc/notes/planning.md). Two kernels that store dS use it,
// too, for storing and for more passes.
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

// For data that one kernel stores for another (partial results of a split grid, dS), if the workspace limit allows it.
// It is enough for tiles that fill a GPU. Not recorded.
inline constexpr std::size_t usual_room = std::size_t{5} << 28;
// The same for dS that one kernel both stores and multiplies. It holds three segments of 16384, so that the kernel can
// do both at a time. Longer segments are stored in slices of their keys, and then in passes (StoredTurns). Sums of dQ
// and partial results of keys use the same bytes. H100 and H200: see the constants below.
inline constexpr std::size_t usual_room_for_ds = std::size_t{3} << 29;
// The same for parts of a head's rows, which exist to save memory. Not recorded.
inline constexpr std::size_t max_room_for_rows = std::size_t{1} << 30;

// ---- Stored dS (stored_ds_plan.cpp)
//
// Measured by the rate of backward over one branch at D = 128, with the cases of tests/benchmarks/peers.py and other
// lengths. The program was not kept (doc/notes/backward.md). The constant for several passes is from an H100;
// for the other constants the GPU is not recorded, unless a constant says it.

// A launch has few tiles if it has at most this number for each CTA. Then all tiles of keys come first. Compared with
// the two kernels before, 16 cells of 2048 went from 0.95 to 1.01 times their rate. 32 causal cells of 4096 went from
// 0.92 to 1.00.
inline constexpr int few_tiles_of_cta = 4;
inline constexpr int few_causal_tiles_of_cta = 8;
// Least number of tiles of a group. 16 and 64 tiles were within 2 %.
inline constexpr int min_group_tiles = 32;
// Distance in the order of turns between the tiles of keys of a group and its tiles of queries, in tiles for two CTAs:
// 4 is two tiles for each CTA, 5 is 2.5. Compared with the two kernels before, 2048:1 went from 1.09 to 1.12 times
// their rate and 1024:1 from 0.90 to 1.07.
inline constexpr int tiles_apart_of_two_ctas = 4;
inline constexpr int causal_tiles_apart_of_two_ctas = 5;
// Least number of groups in memory, if a cell has all keys of a segment. Not recorded.
inline constexpr std::int64_t min_groups = 3;
// Greatest number of row blocks of keys in a slice. H200: 64, 128 and 256 were within 4 % at 65,536 and 131,072 rows if
// enough groups are in memory, 64 and 128 within 1 % (doc/notes/backward.md).
inline constexpr int slice_key_blocks = 64;
// Groups from a slice's tiles of queries to the next use of its memory. Not measured.
inline constexpr std::int64_t groups_until_read = 2;
// Least number of tiles in memory for each CTA. Not recorded.
inline constexpr int min_tiles_of_cta = 3;
// Several branches store dS, each in a launch of its own. The next three constants were chosen by 15 problems of two to
// six branches at D = 128 on one H200 (`annulus bench --device cuda --repeats 3 --dtype bfloat16 --head-dim 128`). By
// them, nine of the 15 store dS, which makes each 1.05 to 1.21 times as fast. The other six would be 0.73 to 0.98 times
// as fast (doc/notes/backward.md).

// One part in `partial_share` of the memory for dS is for partial results. Not measured.
inline constexpr std::size_t partial_share = 2;
// Time of the tiles, as a fraction of the time of two kernels that compute dS twice.
inline constexpr double storing_time = 0.82;
// Time of a launch beside its tiles, in range rows.
inline constexpr double storing_launch_rows = 5000;
// Time of the partial results of a row (dQ, dK and dV, written and read), in range rows of one multiprocessor.
inline constexpr double partial_row_rows = 6;

// Two kernels store and multiply dS: times of the second one for an image, in the time of a product of the first. With
// a multiprocessor for each tile it takes stored_product_time + stored_image_columns / D. All of a GPU's
// multiprocessors together take at least stored_traffic_columns / D, which memory needs. A fit to four rates on one
// H200 (32771:1 and 16411:1, D = 64 and 128, doc/notes/mma.md), each of which it gives within 3 %. By the same
// constants, 32771:1 with causality takes 1.55 times as long as computing dS twice at D = 64, and 0.83 at D = 128. 1.58
// and 0.83 were measured.
inline constexpr double stored_product_time = 0.28;
inline constexpr double stored_image_columns = 65;
inline constexpr double stored_traffic_columns = 128;
// If memory is slow, two kernels do not store dS. What it takes is estimated from the flops of a multiprocessor in a
// cycle, and from the part of memory's rate that kernels reach. The first is three quarters of 1024, the peak of
// compute capability 8.6, 8.9 and 12.0. On GeForce cards the peak is 512, which the driver does not tell. So on these
// cards dS is computed twice at some D where storing would be faster. Not measured.
inline constexpr double product_flops_per_cycle = 768;
inline constexpr double memory_efficiency = 0.8;
// Greatest number of passes of two kernels, as a multiple of the fewest that fit. Four times as many have room for four
// cells, which give multiprocessors enough tiles. Planning takes longer with more. Not measured.
inline constexpr int max_more_passes = 4;
// In several passes, partial results of keys take the time of products with this number of row blocks of queries: as
// many bytes are read and written as for their dS. Not measured.
inline constexpr double sums_in_query_blocks = 8;
// Greatest number of CTAs that share the keys of a tile of queries. A launch of twenty tiles then fills an H100. Not
// measured.
inline constexpr int max_splits = 8;
// CTAs that share a tile write and read a sum each, which takes as long as this number of blocks of keys: as many bytes
// are written or read as for their dS and K. Not measured.
inline constexpr double split_sum_key_blocks = 3;
// Least number of queries of a pass. With fewer, tiles of keys take a larger part of their time to begin and to add
// their results, and computing dS twice is faster. Not measured with slices.
inline constexpr int min_pass_queries = 4608;
// Sums of dQ and partial results of keys take at most one part in `sum_share` of the memory for dS, or the memory of
// one segment. Not recorded.
inline constexpr std::size_t sum_share = 8;

} // namespace annulus::tuning
