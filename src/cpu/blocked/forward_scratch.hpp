// SPDX-License-Identifier: Apache-2.0
// The length of forward's blocks on the CPU, and the memory of a thread that computes one.
#pragma once

#include "core/plan.hpp"
#include "core/workspace.hpp"
#include "cpu/blocked/repeated_keys.hpp"
#include "cpu/blocked/tile.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace annulus {

// Returns the number of positions in a block. A branch of dilation r works on 1/r of them at a time, so sparse branches
// need long blocks. The upper bound keeps the block's O in a cache of a few megabytes. Blocks are shortened until there
// are enough of them for the threads. The length is a power of two that depends on the whole sequence alone. So cutting
// a job into query windows at multiples of the longest block changes no bit.
inline std::int64_t block_length(const Plan &plan) {
    constexpr std::int64_t longest = 16384, enough_blocks = 64;
    std::int64_t dilation = 1;
    for (const BranchPlan &branch : plan.branches())
        dilation = std::max(dilation, std::min(branch.query_stride(), longest));
    const Problem &problem = plan.problem();
    auto length =
        static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(std::min(longest, query_tile * dilation))));
    while (length > query_tile &&
           divide_up(problem.sequence_length, length) * problem.batch * problem.heads < enough_blocks)
        length /= 2;
    return length;
}

// The memory of a thread that computes a block.
template <class T> struct ForwardScratch {
    // The block.
    T *o;                          // [block, D]
    T *m;                          // [block]
    T *l;                          // [block]
    std::int64_t *places;          // [block], places of the positions along the curve of the current branch
    std::int64_t *query_positions; // [block], of the queries of one class
    // A tile of the block's queries.
    T *q;          // [query_tile, D]
    T *q_t;        // transposed
    T *tile_o;     // [query_tile, D]
    T *tile_m;     // [query_tile]
    T *tile_l;     // [query_tile]
    T *correction; // [group_columns]
    // A tile of keys.
    T *k, *v;                        // [key_tile, D]
    T *scores;                       // [key_tile, group_columns]
    std::int64_t *key_positions;     // [key_tile]
    std::int64_t *masking_positions; // [group_columns]
    RepeatedKeys::Table *repeated;
};

template <class T> ForwardScratch<T> book_forward_scratch(Workspace &workspace, const Plan &plan) {
    const std::int64_t block = block_length(plan);
    const std::int64_t d = plan.problem().head_dim, keys = key_tile(plan.problem().head_dim);
    ForwardScratch<T> s;
    s.o = workspace.take<T>(block * d);
    s.m = workspace.take<T>(block);
    s.l = workspace.take<T>(block);
    s.places = workspace.take<std::int64_t>(block);
    s.query_positions = workspace.take<std::int64_t>(block);
    s.q = workspace.take<T>(query_tile * d);
    s.q_t = workspace.take<T>(query_tile * d);
    s.tile_o = workspace.take<T>(query_tile * d);
    s.tile_m = workspace.take<T>(query_tile);
    s.tile_l = workspace.take<T>(query_tile);
    s.correction = workspace.take<T>(group_columns);
    s.k = workspace.take<T>(keys * d);
    s.v = workspace.take<T>(keys * d);
    s.scores = workspace.take<T>(keys * group_columns);
    s.key_positions = workspace.take<std::int64_t>(keys);
    s.masking_positions = workspace.take<std::int64_t>(group_columns);
    s.repeated = RepeatedKeys::book(workspace, plan);
    return s;
}

template <class T> std::size_t forward_scratch_bytes(const Plan &plan) {
    Workspace ledger;
    book_forward_scratch<T>(ledger, plan);
    return ledger.used();
}

} // namespace annulus
