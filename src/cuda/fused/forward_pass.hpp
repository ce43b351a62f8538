// SPDX-License-Identifier: Apache-2.0
// What a launch of the fused forward kernel is given: branches and rows in 32 bits, and the grid of tiles in closed
// form.
//
// The queries of a cell, a range of positions in which every branch has one segment, fall into classes modulo the
// dilations; the queries of a class take part in the same branches. So 64 queries of a class are one progression of
// rows, a unit, whose keys are, for each branch, one progression of rows. A tile is some units of a cell and head.
#pragma once

#include "cuda/prim/divisor.hpp"
#include "cuda/softmax_state.hpp"

#include <annulus/config.h>
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace annulus {

constexpr int most_branches = 8; // of a pass
constexpr int most_strides = 8;  // of key rows
constexpr int most_levels = 31;  // between a dilation of 1 and one of 2^30
constexpr int most_classes = 32; // of the queries of a cell and head
constexpr int most_runs = 16;    // of a tile
constexpr int unit_rows = 64;
constexpr int multiplicity_period = 8; // of keys of a run

// Into how many runs keys are split that are visited for branches of up to `period` times their dilation.
constexpr int splits_of_period(int period) {
    const int power_of_two = period & -period;
    return period / (power_of_two < multiplicity_period ? power_of_two : multiplicity_period);
}

// Positions, dilations and rows are below 2^30, so that sums of two fit into 32 bits.
constexpr std::int64_t position_limit = std::int64_t{1} << 30;

struct PassBranch {
    Divisor length, dilation;
    int first_head, head_count;
    Divisor heads_of_phase;
    int first_phase;
    annulus_query_rule query_rule;

    constexpr bool serves(int head) const { return head >= first_head && head < first_head + head_count; }
    // Of a head that it serves.
    constexpr int phase(int head) const {
        return first_phase + dilation.remainder(heads_of_phase.quotient(head - first_head));
    }
};

// Row 0 is that of position `start`; strides in elements.
struct PassRows {
    void *data;
    std::int64_t batch, row, head;
    int start;
};

struct ForwardPass {
    // For each stride of rows: of the residues below rows modulo stride, and of the others, which have a row less.
    CUtensorMap k[2 * most_strides], v[2 * most_strides];
    Divisor strides[most_strides];
    int longer_residues[most_strides]; // rows modulo stride
    int stride_count;

    // By dilation, then by length. Each dilation divides the next; those that divide queries into classes are levels.
    PassBranch branches[most_branches];
    int branch_count;
    Divisor levels[most_levels]; // 1, …, the largest dilation; each divides the next
    // Query rule `residue`: the largest dilation, every class of which is one of queries.
    Divisor residue_classes;
    bool has_residue_classes;
    // Branches of up to so many times the dilation of the first of a chain are merged (tile.cuh): of two, the one that
    // has the other's keys in its segment visits them, with their multiplicity. 0: each branch visits all its keys.
    int merged_ratio;
    bool causal, zero_keys;

    // Tile ids count, from the fastest: tiles of a cell, cells of a block, blocks of a section, heads, sections, batch.
    // Blocks are the segments of a branch with the shortest ones; those of others may cut them into cells.
    unsigned tiles;
    Divisor tiles_of_cell, cells_of_block, blocks_of_section, heads, sections;
    Divisor tiles_of_class; // with residue_classes
    int block_length, first_block, blocks;

    int sequence_length, query_start, query_count, key_start, key_count;
    Divisor key_stride; // positions to a row
    int batches, heads_of_kv_head, head_dim;
    float scale_log2, inverse_scale_log2; // scale log2(e), above 0
    PassRows q;
    // Where queries and keys have numbers other than their positions (curve_order.hpp): the index, from query_start, of
    // the position with number query_start + i; results are then sums. Else null.
    const int *query_order;
    int query_offset; // of query_start, in the rows of Q and the sums

    // The row of a query in Q and the sums.
    __host__ __device__ int query_row(int number) const {
        const int index = number - query_start;
        return (query_order ? query_order[index] : index) + query_offset;
    }

    // Results, of queries that have keys: either O and LSE (which may be null) of the dtype, or sums: O unnormalised
    // and (m, l) in units of log2.
    PassRows out, lse;
    float *sum_o;      // [B, H, queries, D], or null
    float2 *sum_state; // [B, H, queries]
    int sum_rows;      // the queries
    bool sets_sums;    // instead of adding to them
    // With sums: queries all of whose keys lie in the window get O and LSE at once; finished_state() tells of them.
    bool finishes_rows;
    unsigned *next_tile; // 0 before; how many tiles were taken beyond the first of every block
    int *has_nan;        // causal; becomes 1 where O, not a sum, is NaN or infinite. Else null
};

} // namespace annulus
