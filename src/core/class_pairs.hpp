// SPDX-License-Identifier: Apache-2.0
// Which queries attend to which keys. This file alone says it, for the host and for GPU kernels: all is constexpr.
//
// The places of a segment fall into classes modulo the dilation. A class of keys and the queries that attend to it are
// a pair: two progressions of places. Every query of a pair attends to every key of it, and to its padding keys. In
// each branch a query of a head belongs to at most one pair. So does a key, with the queries of one head. The plan says
// which residues a head has (BranchPlan::residues, users). Causality and windows are applied on top of classes: a query
// sees the keys of its pair that are within the branch's bounds (seen_keys).
#pragma once

#include "core/plan.hpp"

#include <algorithm>
#include <cstdint>

namespace annulus {

// The queries and keys of one class, by their places in the segment.
struct ClassPair {
    Segment segment;
    Progression queries, keys;
    std::int64_t padding_keys = 0; // keys with score 0 and value 0 that each query sees in addition
};

// ---- Places by their positions. Along a line, the places in a window are a progression again.

// Returns the places that may lie in a window. Along a line these places do lie in it; along a curve they are all
// places.
constexpr Progression clip(const Segment &segment, const Progression &places, const Window &window) {
    const std::int64_t start = segment.range.start;
    return segment.curve.is_linear() ? clip(places, window.start - start, window.end() - start) : places;
}

constexpr ClassPair clip(const ClassPair &pair, const Window &queries, const Window &keys) {
    return {pair.segment, clip(pair.segment, pair.queries, queries), clip(pair.segment, pair.keys, keys),
            pair.padding_keys};
}

// Calls use(position) for the places in a window, until it returns false. Returns true if it never returned false.
template <class Use>
constexpr bool for_each_position(const Segment &segment, const Progression &places, const Window &window, Use use) {
    const Progression near = clip(segment, places, window);
    for (std::int64_t j = 0; j < near.count; ++j)
        if (const std::int64_t position = segment.position(near[j]);
            position >= window.start && position < window.end() && !use(position))
            return false;
    return true;
}

// True if one of the places has its position in a window. Closed form along a line. Along a curve this searches the
// places or the positions of the window, whichever are fewer.
constexpr bool has_row_in(const Segment &segment, const Progression &places, const Window &window) {
    const Window part = intersect(segment.range, window);
    if (segment.curve.is_linear()) {
        const std::int64_t j = first_from(places, part.start - segment.range.start);
        return j < places.count && places[j] < part.end() - segment.range.start;
    }
    if (places.count <= part.length)
        return !for_each_position(segment, places, part, [](std::int64_t) { return false; });
    for (std::int64_t position = part.start; position < part.end(); ++position)
        if (contains(places, segment.place(position)))
            return true;
    return false;
}

// ---- Causality and windows.

// Returns the keys of a window that a query may see, as far as causality says.
constexpr Window seen_keys(bool causal, std::int64_t query, const Window &keys) {
    return causal ? intersect(keys, {keys.start, query + 1 - keys.start}) : keys;
}

// Returns the queries of a window that may see a key.
constexpr Window seeing_queries(bool causal, std::int64_t key, const Window &queries) {
    return causal ? intersect(queries, {key, queries.end() - key}) : queries;
}

// Returns the keys of a window that a query may see in a branch.
constexpr Window seen_keys(const BranchPlan &branch, std::int64_t query, const Window &keys) {
    return intersect(keys, branch.bounds().keys(query, query));
}

// Returns the queries of a window that may see a key in a branch.
constexpr Window seeing_queries(const BranchPlan &branch, std::int64_t key, const Window &queries) {
    const KeyBounds &bounds = branch.bounds();
    return intersect(queries, {key - bounds.after, bounds.before + bounds.after + 1});
}

// True if a position is in a window.
constexpr bool contains(const Window &window, std::int64_t position) {
    return position >= window.start && position < window.end();
}

// ---- Pairs.

// Returns the pair whose keys have this residue.
constexpr ClassPair class_pair(const BranchPlan &branch, const Segment &segment, std::int64_t residue) {
    if (branch.kind() == ANNULUS_BRANCH_GLOBAL) {
        const Window &queries = branch.query_range(), &keys = branch.key_range();
        return {segment, {queries.start, 1, queries.length}, {keys.start, 1, keys.length}};
    }
    const std::int64_t length = segment.range.length, r = branch.dilation();
    const Progression keys{residue, r, residue < length ? (length - 1 - residue) / r + 1 : 0};
    return {segment, branch.queries_are_class() ? keys : Progression{0, branch.query_stride(), length}, keys,
            branch.has_zero_keys() ? branch.largest_class() - keys.count : 0};
}

// Returns the pair to which a query of a head belongs. It is empty if the query belongs to none.
constexpr ClassPair pair_of_query(const BranchPlan &branch, std::int32_t head, std::int64_t query) {
    const Segment segment = branch.segment_at(query);
    if (!branch.serves(head))
        return {segment, {}, {}};
    const std::int64_t place = segment.place(query);
    const ClassPair pair =
        class_pair(branch, segment, branch.has_all_residues() ? place % branch.dilation() : branch.phase(head));
    return contains(pair.queries, place) ? pair : ClassPair{segment, {}, {}};
}

// Returns the pair in which a key of a segment meets queries of heads first … last - 1. It is empty if there is none.
constexpr ClassPair pair_of_key(const BranchPlan &branch, const Segment &segment, std::int32_t first, std::int32_t last,
                                std::int64_t key) {
    const std::int64_t residue = segment.place(key) % branch.dilation();
    return branch.users(residue, first, last).count > 0 && contains(branch.key_range(), key)
               ? class_pair(branch, segment, residue)
               : ClassPair{segment, {}, {}};
}

// Returns the residues of the pairs that have a query among `count` consecutive places from `place` on.
constexpr ResidueRange residues_of_queries(const BranchPlan &branch, std::int64_t place, std::int64_t count) {
    const std::int64_t r = branch.dilation();
    return branch.queries_are_class() ? ResidueRange{place % r, std::min(count, r)} : ResidueRange{0, r};
}

// Calls use(pair) for each pair of a head in a segment that may have queries in a window. The pair is clipped to the
// window of queries and to a window of keys.
template <class Use>
constexpr void for_each_class_pair(const BranchPlan &branch, std::int32_t head, const Segment &segment,
                                   const Window &queries, const Window &keys, Use use) {
    const Window part = intersect(segment.range, queries);
    ResidueRange residues = branch.residues(head, head + 1);
    if (residues.count > 1 && segment.curve.is_linear())
        residues = residues_of_queries(branch, part.start - segment.range.start, part.length);
    for (std::int64_t i = 0; i < std::min(residues.count, segment.range.length); ++i) {
        const std::int64_t residue = residues.count > 1 ? (residues.first + i) % branch.dilation() : residues.first;
        if (const ClassPair pair = clip(class_pair(branch, segment, residue), part, keys); pair.queries.count > 0)
            use(pair);
    }
}

// ---- A query and a key.

// Returns the number of the class of keys that a key belongs to, or -2 if it belongs to none. No two classes of a
// branch have the same number.
constexpr std::int64_t class_of_key(const BranchPlan &branch, std::int64_t key) {
    if (!contains(branch.key_range(), key))
        return -2;
    if (branch.kind() == ANNULUS_BRANCH_GLOBAL)
        return branch.key_range().start; // the one class has this first key
    const Segment segment = branch.segment_at(key);
    return segment.range.start + segment.place(key) % branch.dilation();
}

// Returns the number of the class that a query of a head attends to, or -1 if it attends to none.
constexpr std::int64_t class_of_query(const BranchPlan &branch, std::int32_t head, std::int64_t query) {
    const ClassPair pair = pair_of_query(branch, head, query);
    return pair.queries.count > 0 && pair.keys.count > 0 ? pair.segment.range.start + pair.keys.first : -1;
}

// True if a query of a head attends to a key.
constexpr bool attends(const BranchPlan &branch, std::int32_t head, std::int64_t query, std::int64_t key) {
    return branch.segment_of(query) == branch.segment_of(key) && branch.bounds().has(query, key) &&
           class_of_query(branch, head, query) == class_of_key(branch, key);
}

// The same for any of `count` branches.
constexpr bool attends(const BranchPlan *branches, std::int32_t count, std::int32_t head, std::int64_t query,
                       std::int64_t key) {
    for (std::int32_t i = 0; i < count; ++i)
        if (attends(branches[i], head, query, key))
            return true;
    return false;
}

// True if a segment of the branch has positions in both windows, or lies between them. Neither window is empty.
constexpr bool segment_meets(const BranchPlan &branch, const Window &a, const Window &b) {
    return branch.segment_of(a.start) <= branch.segment_of(b.end() - 1) &&
           branch.segment_of(b.start) <= branch.segment_of(a.end() - 1);
}

// True unless it is known that no query in one window attends to a key in the other. Neither window is empty.
constexpr bool may_attend(const BranchPlan &branch, const Window &queries, const Window &keys) {
    return segment_meets(branch, queries, keys) &&
           branch.bounds().meets(queries.start, queries.end() - 1, keys.start, keys.end() - 1) &&
           intersect(branch.query_range(), queries).length > 0 && intersect(branch.key_range(), keys).length > 0;
}

// True if a query of a head attends to a real key, not a padding key, in `keys`.
constexpr bool has_keys(const BranchPlan &branch, std::int32_t head, std::int64_t query, const Window &keys) {
    const ClassPair pair = pair_of_query(branch, head, query);
    return has_row_in(pair.segment, pair.keys, seen_keys(branch, query, keys));
}

// The same in any branch.
inline bool has_keys(const Plan &plan, std::int32_t head, std::int64_t query, const Window &keys) {
    return std::any_of(plan.branches().begin(), plan.branches().end(),
                       [&](const BranchPlan &branch) { return has_keys(branch, head, query, keys); });
}

} // namespace annulus
