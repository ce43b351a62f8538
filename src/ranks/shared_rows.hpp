// SPDX-License-Identifier: Apache-2.0
// What two shards share: for each branch with a segment in both, which keys of one shard (the sender) the queries of
// the other shard (the receiver) want. It is closed form where possible, without a look at each row.
#pragma once

#include "core/class_pairs.hpp"
#include "ranks/residues.hpp"
#include "ranks/steps.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace annulus {

// The rows of a head are listed as at most this many progressions. Rows of more progressions have no common stride
// worth finding.
constexpr std::size_t max_progressions = 32;

// The segment of a branch that the shards have in common, with the sender's keys and the receiver's queries in it.
struct SharedBranch {
    std::int32_t index; // of the branch
    const BranchPlan *branch;
    Segment segment;
    Window keys, queries;
    // In the linear order: the residues that a key has and that a query asks for. Empty along a curve.
    ResidueSet asked = {};

    bool is_linear() const { return segment.curve.is_linear(); }
    std::int64_t dilation() const { return branch->dilation(); }
    // True if each head that the branch serves wants every key.
    bool asks_for_all_keys() const { return branch->has_all_residues() && queries.length >= dilation(); }
    // True if the rows that a head wants are listed as progressions, one for each residue or one for all keys.
    bool has_progressions() const {
        return is_linear() && (!branch->has_all_residues() || asks_for_all_keys() ||
                               queries.length <= static_cast<std::int64_t>(max_progressions));
    }
    // Returns the positions of the keys with this residue.
    Progression progression(std::int64_t residue) const {
        Progression rows = clip(segment, class_pair(*branch, segment, residue).keys, keys);
        rows.first += segment.range.start;
        return rows;
    }
};

// Returns the shared branch of each branch that has one. Returns none if causality hides the keys from the queries.
std::vector<SharedBranch> shared_branches(const Plan &plan, const Window &keys, const Window &queries, Steps &steps);

// Returns the bytes of K and V at a position of a batch entry, over all key/value heads.
std::int64_t key_bytes_of_position(const Problem &problem);

// Heads first … last - 1 share a key/value head.
struct HeadGroup {
    std::int32_t first, last;
};
// Returns the query heads of a key/value head.
HeadGroup heads_of(const Plan &plan, std::int32_t kv_head);

// Writes the wanted rows of a key/value head to `rows`, as different progressions. Returns false if they are not a few
// progressions.
bool list_progressions(const std::vector<SharedBranch> &branches, const HeadGroup &heads,
                       std::vector<Progression> &rows);

// The window and stride of a message. The message may turn out to have no rows if they are not listed as progressions.
struct Outline {
    Window keys;
    std::int64_t stride = 1;
    std::int64_t slots() const { return divide_up(keys.length, stride); }
};

// A band: consecutive keys of the sender that make one message, with the shared branches there.
struct Band {
    std::vector<SharedBranch> branches;
    Outline outline;
};

// Returns the windows between neighbouring ends of these windows, in order. Some may lie in none of them.
std::vector<Window> cut_at_ends(const std::vector<Window> &windows);

// Returns the bands of keys, the nearest to the receiver first. Each has at least one slot. `branches` are the shared
// branches of keys and queries. Returns nothing if the steps have run out.
//
// The keys of a shared branch begin at the sender's border towards the receiver, except global positions, which may lie
// anywhere. Keys beyond a gap always become a band of their own. Keys that only longer segments reach may have a larger
// stride. They become a band of their own if that saves more bytes of slots than a further message is worth.
std::optional<std::vector<Band>> make_bands(const Plan &plan, const std::vector<SharedBranch> &branches,
                                            const Window &keys, const Window &queries, Steps &steps);

} // namespace annulus
