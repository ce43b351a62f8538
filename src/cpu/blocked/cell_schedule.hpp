// SPDX-License-Identifier: Apache-2.0
// The order in which backward computes the cells of a branch (backward.cpp): a step has cells that share no row of a
// gradient.
#pragma once

#include "core/class_pairs.hpp"
#include "cpu/blocked/tile.hpp"

#include <algorithm>
#include <cstdint>

namespace annulus {

// Number of keys in a cell. Its queries are one query_tile.
constexpr std::int64_t key_chunk = 2 * query_tile;

// Numbers the cells of a branch. A unit is (batch entry, key/value head, segment, slot). A slot stands for one of the
// residues that the group of heads has.
class CellSchedule {
  public:
    CellSchedule(const Plan &plan, const BranchPlan &branch) : problem_(plan.problem()), branch_(branch) {
        const Window &queries = problem_.queries;
        first_segment_ = branch.segment_of(queries.start);
        segments_ = branch.segment_of(queries.end() - 1) - first_segment_ + 1;
        group_ = problem_.heads / problem_.kv_heads;
        slots_ = std::min(branch.dilation(), branch.has_all_residues() ? branch.segment_length() : group_);
        // Residue 0 has the most keys and queries. How many queries are in the window is known beforehand only for a
        // line.
        std::int64_t query_rows = 0;
        for (const Segment &segment : {branch.segment(0), branch.segment(branch.segment_count() - 1)}) {
            const Progression all = class_pair(branch, segment, 0).queries;
            const std::int64_t in_window = divide_up(queries.length, all.stride) + 1;
            query_rows = std::max(query_rows, segment.curve.is_linear() ? std::min(all.count, in_window) : all.count);
        }
        query_chunks_ = divide_up(query_rows, query_tile);
        const Progression keys = class_pair(branch, branch.segment(0), 0).keys;
        const std::int64_t in_window = divide_up(problem_.keys.length, keys.stride) + 1;
        key_chunks_ =
            divide_up(branch.segment(0).curve.is_linear() ? std::min(keys.count, in_window) : keys.count, key_chunk);
        // The most queries that see a key of one chunk. They may begin anywhere in a chunk of queries.
        const KeyBounds &bounds = branch.bounds();
        const std::int64_t seeing = key_chunk + 1 + (bounds.before + bounds.after) / branch.dilation();
        const std::int64_t near_chunks = (seeing + query_tile - 2) / query_tile + 1;
        const std::int64_t all_chunks = std::max(query_chunks_, key_chunks_);
        visits_near_ = branch.kind() == ANNULUS_BRANCH_WINDOW && near_chunks < all_chunks;
        steps_ = visits_near_ ? near_chunks : all_chunks;
    }

    std::int64_t steps() const { return steps_; }
    std::int64_t cells() const { return problem_.batch * problem_.kv_heads * segments_ * slots_ * key_chunks_; }

    struct Cell {
        std::int64_t b;
        std::int32_t kv_head;
        std::int64_t segment, slot, key_chunk, step;
    };
    // Returns cell number `index` of a step.
    Cell cell(std::int64_t step, std::int64_t index) const {
        Cell c{};
        c.key_chunk = index % key_chunks_;
        index /= key_chunks_;
        c.slot = index % slots_;
        index /= slots_;
        c.segment = first_segment_ + index % segments_;
        index /= segments_;
        c.kv_head = static_cast<std::int32_t>(index % problem_.kv_heads);
        c.b = index / problem_.kv_heads;
        c.step = step;
        return c;
    }

    // Returns the query chunk of a cell, which may not exist. `pair` is that of the cell's unit, clipped to the
    // windows. Different key chunks of a unit have different query chunks in a step:
    //
    // - key chunk i meets query chunk (i q + step) mod steps, where q is the number of query chunks for each key chunk;
    // - in a window branch, the chunk `step` chunks after that of the first query that sees key chunk i. From one key
    //   chunk to the next this query moves by the length of a key chunk, a multiple of the length of a query chunk.
    std::int64_t query_chunk(const Cell &c, const ClassPair &pair) const {
        if (!visits_near_) {
            const std::int64_t spread = std::max<std::int64_t>(1, query_chunks_ / key_chunks_);
            return (c.key_chunk * spread + c.step) % steps_;
        }
        static_assert(key_chunk % query_tile == 0);
        const std::int64_t first_query =
            pair.keys[c.key_chunk * key_chunk] - branch_.bounds().after - pair.queries.first;
        return divide_down(divide_down(first_query, pair.queries.stride), query_tile) + c.step;
    }

    // Returns the residue of a slot, or -1 if the group has fewer residues.
    std::int64_t residue(std::int32_t kv_head, std::int64_t slot) const {
        const ResidueRange own = branch_.residues(kv_head * group_, (kv_head + 1) * group_);
        return slot < own.count ? (own.first + slot) % branch_.dilation() : -1;
    }

  private:
    const Problem &problem_;
    const BranchPlan &branch_;
    std::int32_t group_;
    std::int64_t first_segment_, segments_, slots_, query_chunks_, key_chunks_, steps_;
    bool visits_near_; // only chunks that are near enough to one another for the window branch
};

} // namespace annulus
