// SPDX-License-Identifier: Apache-2.0
// What a launch of the fused forward kernel is given: branches and rows in 32 bits, and the grid of tiles in closed form.
//
// The queries of a cell, a range of positions in which every branch has one segment, fall into classes modulo the
// dilations; the queries of a class take part in the same branches. So 64 queries of a class are one progression of
// rows, a unit, whose keys are, for each branch, one progression of rows. A tile is some units of a cell and head.
#pragma once

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

// Positions, dilations and rows are below 2^30, so that sums of two fit into 32 bits.
constexpr std::int64_t position_limit = std::int64_t{1} << 30;

struct PassBranch {
    int length, dilation;
    int first_head, head_count;
    int heads_of_phase, first_phase;
    annulus_query_rule query_rule;

    constexpr bool serves(int head) const { return head >= first_head && head < first_head + head_count; }
    constexpr int phase(int head) const { return first_phase + (head - first_head) / heads_of_phase % dilation; }
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
    int strides[most_strides];
    int stride_count;

    // Each dilation divides the next, and each is a level. Of two branches the one with the longer segments is later.
    PassBranch branches[most_branches];
    int branch_count;
    int levels[most_levels]; // 1, …, the largest dilation; each divides the next
    // Query rule `residue`: the largest dilation, every class of which is one of queries; else 0.
    int residue_classes;
    // A branch whose dilation is up to so many times that of another which has all its keys in its segment does not
    // visit them again: they count more than once there. 0: each branch visits all its keys.
    int merged_ratio;
    bool causal, zero_keys;

    // Tile ids count, from the fastest: tiles of a cell, cells of a block, blocks of a section, heads, sections, batch.
    // Blocks are the segments of a branch with the shortest ones; those of others may cut them into cells.
    unsigned tiles;
    int tiles_of_cell, tiles_of_class; // the latter with residue_classes
    int cells_of_block, blocks_of_section, sections;
    int block_length, first_block, blocks;

    int sequence_length, query_start, query_count, key_start, key_count, key_stride, key_rows;
    int batches, heads, heads_of_kv_head, head_dim;
    float scale_log2, inverse_scale_log2; // scale log2(e), above 0
    PassRows q;

    // Results: either O and LSE (which may be null) of the dtype, or sums: O unnormalised and (m, l) in units of log2.
    PassRows out, lse;
    float *sum_o;      // [B, H, queries, D], or null
    float2 *sum_state; // [B, H, queries]
    bool is_first;     // rows without keys are written, too; sums are set, not added to
    bool may_be_bare;  // there may be such rows
    unsigned *next_tile; // 0 before; how many tiles were taken beyond the first of every block
    int *has_nan;        // causal and no sums; becomes 1 where O is NaN or infinite. Else null
};

} // namespace annulus
