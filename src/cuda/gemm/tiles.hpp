// SPDX-License-Identifier: Apache-2.0
// The work of a block of the problem, as sets of equal tiles. A tile is some queries of one class of a segment against
// some of its keys. Tiles of one shape go into the same launches, over batch entries, segments, residues, heads and
// steps along the class. Sets are pure data. The size of a set does not depend on its number of tiles. The number of
// sets grows only with the number of tiles along a class.
#pragma once

#include "core/plan.hpp"
#include "cuda/results/results.hpp"

#include <cstdint>
#include <vector>

namespace annulus {

// Tile (b, s, k, j, d) has batch entry first_batch + b and the head of (k, j). It is s segments, k residues and d steps
// along the class after the first tile. No two tiles of a set share a query of a head or a key of a head.
struct TileSet {
    // One tile. Its rows are places of a segment: first, first + stride, …
    std::int32_t queries = 0, keys = 0; // keys may be 0 if there are only padding keys
    std::int64_t query_stride = 1, key_stride = 1;
    bool is_masked = false;       // the bounds hide some of the keys from some of the queries
    bool has_absent_rows = false; // some rows are outside the block's windows (along a curve)
    bool covers_queries = false;  // the queries meet all their keys of the branch in this set
    bool covers_keys = false;     // no earlier set of the branch has these keys, and a tile has all keys of its class
    // Number of padding keys to add: 0 unless the set has the first keys of its queries in the branch.
    std::int64_t padding_keys = 0;
    KeyBounds bounds; // of the branch

    // The first tile.
    std::int64_t segment_start = 0; // position
    std::int64_t first_query = 0, first_key = 0;
    HeadSet head;
    std::int64_t first_batch = 0;
    Curve curve;

    // The number of tiles in each dimension, and how far a step moves the first query and the first key.
    std::int64_t batches = 1, segments = 1, steps = 1;
    std::int64_t segment_length = 0;
    std::int64_t query_step = 0, key_step = 0;

    constexpr std::int32_t last_head() const {
        return static_cast<std::int32_t>(head.first_head + (head.residues - 1) * head.head_step_residue +
                                         (head.heads - 1) * head.head_step);
    }
    constexpr std::int64_t count() const { return batches * segments * head.residues * head.heads * steps; }
};

// One tile of a set.
struct Tile {
    std::int64_t batch;
    std::int32_t head;
    std::int64_t segment_start; // position
    std::int64_t query, key;    // places of the first rows
};

// Returns tile i of a set, 0 <= i < count().
constexpr Tile tile_at(const TileSet &set, std::int64_t i) {
    const std::int64_t step = i % set.steps;
    i /= set.steps;
    const std::int64_t j = i % set.head.heads;
    i /= set.head.heads;
    const std::int64_t residue = i % set.head.residues;
    i /= set.head.residues;
    const std::int64_t segment = i % set.segments, batch = i / set.segments;
    return {
        set.first_batch + batch,
        static_cast<std::int32_t>(set.head.first_head + residue * set.head.head_step_residue + j * set.head.head_step),
        set.segment_start + segment * set.segment_length, set.first_query + residue + step * set.query_step,
        set.first_key + residue + step * set.key_step};
}

// Appends the sets of a block for one branch, in the order in which they must run. Tiles of one set may run at the same
// time. A tile has at most `tile` queries and keys.
void make_tiles(const Plan &plan, const BranchPlan &branch, const Block &block, std::int64_t tile,
                std::vector<TileSet> &sets);

// True if the other branch may give a query of a tile a key of the same tile.
bool may_share_keys(const BranchPlan &other, const TileSet &set);

} // namespace annulus
