// SPDX-License-Identifier: Apache-2.0
// Who attends to whom: the one place that says it, for hosts and (all is constexpr) for kernels on a GPU.
//
// The places of a segment fall into classes modulo the dilation. A class of keys and the queries that attend to it are
// a pair: two progressions of places, of which every query attends to every key, and to padding keys. A query of a head
// takes part in at most one pair of a branch, and so does a key with the queries of a head. Which residues a head has
// is the plan's to say (BranchPlan::residues, users). Causality comes on top of classes: of its pair a query sees the
// keys whose position is not behind its own (seen_keys).
#pragma once

#include "core/plan.hpp"

#include <algorithm>
#include <cstdint>

namespace annulus {

// Rows are places of the segment.
struct ClassPair {
    Segment segment;
    Progression queries, keys;
    std::int64_t padding_keys = 0; // keys of score 0 and value 0 that each query sees besides
};

// ---- Rows of a pair by their positions. Along a line those in a window are a progression again.

// The rows that may lie in a window: along a line they do.
constexpr Progression clip(const Segment &segment, const Progression &rows, const Window &window) {
    const std::int64_t start = segment.range.start;
    return segment.curve.is_linear() ? clip(rows, window.start - start, window.end() - start) : rows;
}

constexpr ClassPair clip(const ClassPair &pair, const Window &queries, const Window &keys) {
    return {pair.segment, clip(pair.segment, pair.queries, queries), clip(pair.segment, pair.keys, keys),
            pair.padding_keys};
}

// Calls use(position) for the rows in a window, until it returns false. Returns whether it never did.
template <class Use>
constexpr bool for_each_position(const Segment &segment, const Progression &rows, const Window &window, Use use) {
    const Progression near = clip(segment, rows, window);
    for (std::int64_t j = 0; j < near.count; ++j)
        if (const std::int64_t position = segment.position(near[j]);
            position >= window.start && position < window.end() && !use(position))
            return false;
    return true;
}

// Whether a row lies in a window. Closed form along a line; along a curve a search, through the rows or the window's
// positions, whichever are fewer.
constexpr bool has_row_in(const Segment &segment, const Progression &rows, const Window &window) {
    const Window part = intersect(segment.range, window);
    if (segment.curve.is_linear()) {
        const std::int64_t index = first_from(rows, part.start - segment.range.start);
        return index < rows.count && rows[index] < part.end() - segment.range.start;
    }
    if (rows.count <= part.length)
        return !for_each_position(segment, rows, part, [](std::int64_t) { return false; });
    for (std::int64_t position = part.start; position < part.end(); ++position)
        if (contains(rows, segment.place(position)))
            return true;
    return false;
}

// ---- Causality.

// The keys of a window that a query may see.
constexpr Window seen_keys(bool causal, std::int64_t query, const Window &keys) {
    return causal ? intersect(keys, {keys.start, query + 1 - keys.start}) : keys;
}

// The queries of a window that may see a key.
constexpr Window seeing_queries(bool causal, std::int64_t key, const Window &queries) {
    return causal ? intersect(queries, {key, queries.end() - key}) : queries;
}

// ---- Pairs.

// Of a residue.
constexpr ClassPair class_pair(const BranchPlan &branch, const Segment &segment, std::int64_t residue) {
    const std::int64_t length = segment.range.length, r = branch.dilation();
    const Progression keys{residue, r, residue < length ? (length - 1 - residue) / r + 1 : 0};
    return {segment, branch.queries_are_class() ? keys : Progression{0, branch.query_stride(), length}, keys,
            branch.has_zero_keys() ? branch.largest_class() - keys.count : 0};
}

// The one in which a query of a head takes part; without rows where there is none.
constexpr ClassPair pair_of_query(const BranchPlan &branch, std::int32_t head, std::int64_t query) {
    const Segment segment = branch.segment_at(query);
    if (!branch.serves(head))
        return {segment, {}, {}};
    const std::int64_t place = segment.place(query);
    const ClassPair pair =
        class_pair(branch, segment, branch.has_all_residues() ? place % branch.dilation() : branch.phase(head));
    return contains(pair.queries, place) ? pair : ClassPair{segment, {}, {}};
}

// The one in which a key of a segment meets queries of heads first … last - 1; without rows where it meets none.
constexpr ClassPair pair_of_key(const BranchPlan &branch, const Segment &segment, std::int32_t first, std::int32_t last,
                                std::int64_t key) {
    const std::int64_t residue = segment.place(key) % branch.dilation();
    return branch.users(residue, first, last).count > 0 ? class_pair(branch, segment, residue)
                                                        : ClassPair{segment, {}, {}};
}

// The residues of whose pairs there is a query among `count` places that follow one another.
constexpr ResidueRange residues_of_queries(const BranchPlan &branch, std::int64_t place, std::int64_t count) {
    const std::int64_t r = branch.dilation();
    return branch.queries_are_class() ? ResidueRange{place % r, std::min(count, r)} : ResidueRange{0, r};
}

// Calls use(pair) for the pairs of a head in a segment that may have queries in a window, clipped to it and to a window
// of keys.
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

// The class of keys that a key is one of, as a number; no two classes of a branch have the same.
constexpr std::int64_t class_of_key(const BranchPlan &branch, std::int64_t key) {
    const Segment segment = branch.segment_at(key);
    return segment.range.start + segment.place(key) % branch.dilation();
}

// The class that a query of a head attends to; -1 where there is none.
constexpr std::int64_t class_of_query(const BranchPlan &branch, std::int32_t head, std::int64_t query) {
    const ClassPair pair = pair_of_query(branch, head, query);
    return pair.queries.count > 0 && pair.keys.count > 0 ? pair.segment.range.start + pair.keys.first : -1;
}

// Whether a query of a head attends to a key, causality apart.
constexpr bool attends(const BranchPlan &branch, std::int32_t head, std::int64_t query, std::int64_t key) {
    return branch.segment_of(query) == branch.segment_of(key) &&
           class_of_query(branch, head, query) == class_of_key(branch, key);
}

// The same in any of some branches.
constexpr bool attends(const BranchPlan *branches, std::int32_t count, std::int32_t head, std::int64_t query,
                       std::int64_t key) {
    for (std::int32_t i = 0; i < count; ++i)
        if (attends(branches[i], head, query, key))
            return true;
    return false;
}

// Whether a segment of a branch has positions in both windows, or between; neither is empty.
constexpr bool segment_meets(const BranchPlan &branch, const Window &a, const Window &b) {
    return branch.segment_of(a.start) <= branch.segment_of(b.end() - 1) &&
           branch.segment_of(b.start) <= branch.segment_of(a.end() - 1);
}

// Whether a query of a head attends to a real key in `keys`.
constexpr bool has_keys(const BranchPlan &branch, std::int32_t head, std::int64_t query, const Window &keys) {
    const ClassPair pair = pair_of_query(branch, head, query);
    return has_row_in(pair.segment, pair.keys, seen_keys(branch.causal(), query, keys));
}

// The same in any branch.
inline bool has_keys(const Plan &plan, std::int32_t head, std::int64_t query, const Window &keys) {
    return std::any_of(plan.branches().begin(), plan.branches().end(),
                       [&](const BranchPlan &branch) { return has_keys(branch, head, query, keys); });
}

} // namespace annulus
