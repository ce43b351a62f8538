// SPDX-License-Identifier: Apache-2.0
// What two shards have to do with each other: in each branch that has a segment with both, what the queries of one
// (the receiver) want of the keys of the other (the sender), told without a look at each row where that can be.
#pragma once

#include "core/class_pairs.hpp"
#include "ranks/residues.hpp"
#include "ranks/steps.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace annulus {

// Progressions to which the rows of a head are taken apart: more tell nothing of how far apart rows lie.
constexpr std::size_t most_progressions = 32;

// The segment of a branch that the shards have in common, and their parts of it.
struct SharedBranch {
    std::int32_t index;
    const BranchPlan *branch;
    Segment segment;
    Window keys, queries;
    // In the linear order: residues that occur among the keys and that some query asks for.
    ResidueSet asked = {};

    bool is_linear() const { return segment.curve.is_linear(); }
    std::int64_t dilation() const { return branch->dilation(); }
    // Every key is asked for.
    bool asks_all() const { return branch->has_all_residues() && queries.length >= dilation(); }
    // Whether the rows that a head wants are few progressions for each of its residues.
    bool has_progressions() const {
        return is_linear() && (!branch->has_all_residues() || asks_all() ||
                               queries.length <= static_cast<std::int64_t>(most_progressions));
    }
    Progression progression(std::int64_t residue) const {
        Progression rows = clip(segment, class_pair(*branch, segment, residue).keys, keys);
        rows.first += segment.range.start;
        return rows;
    }
};

// Those of all branches that have one.
std::vector<SharedBranch> shared_branches(const Plan &plan, const Window &keys, const Window &queries, Steps &steps);

// Heads first … last - 1 share a key/value head.
struct HeadGroup {
    std::int32_t first, last;
};
HeadGroup heads_of(const Plan &plan, std::int32_t kv_head);

// Whether the rows of a key/value head are a few progressions: lists these, all different.
bool list_progressions(const std::vector<SharedBranch> &branches, const HeadGroup &heads,
                       std::vector<Progression> &rows);

// A message without its rows. Where these are no progressions there may be none.
struct Outline {
    Window keys;
    std::int64_t stride = 1;
    std::int64_t slots() const { return divide_up(keys.length, stride); }
};

// Keys that lie next to one another, what the branches have in common there, and the message that is made of it.
struct Band {
    std::vector<SharedBranch> branches;
    Outline outline;
};

// The bands of keys that make a message each, the nearest to the receiver first; none is without slots. `branches` are
// the shared ones of keys and queries. Shards' parts of segments all begin or all end towards the other shard, so that
// one is inside the next: what only the longer ones reach is a band of its own, with the larger stride of their
// dilations, where that saves more slots than messages cost. Nothing where the steps have run out.
std::optional<std::vector<Band>> make_bands(const Plan &plan, std::vector<SharedBranch> branches, const Window &keys,
                                            const Window &queries, Steps &steps);

} // namespace annulus
