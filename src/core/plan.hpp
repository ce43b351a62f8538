// SPDX-License-Identifier: Apache-2.0
// A pattern meets a problem. Everything is closed form: a plan's size and the time to make it and to ask it grow with
// the number of branches, never with the sequence length or the number of heads.
//
// A branch cuts the sequence into segments; inside a segment the places p = 0, 1, 2, … (along the segment's curve) fall
// into classes p mod r. The keys of a query are one class of its segment: the arithmetic progression residue,
// residue + r, residue + 2r, … of places.
#pragma once

#include "core/hilbert.hpp"
#include "core/pattern.hpp"
#include "core/progression.hpp"

#include <annulus/attention.h>
#include <annulus/tensor.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace annulus {

// The global positions start … start + length - 1.
struct Window {
    std::int64_t start = 0;
    std::int64_t length = 0;
    constexpr std::int64_t end() const { return start + length; }
    bool operator==(const Window &) const = default;
};

constexpr Window intersect(const Window &a, const Window &b) {
    const std::int64_t start = std::max(a.start, b.start);
    return {start, std::max<std::int64_t>(0, std::min(a.end(), b.end()) - start)};
}

struct Problem {
    annulus_dtype dtype = ANNULUS_FLOAT32;
    std::int64_t batch = 0;
    std::int64_t sequence_length = 0;
    std::int32_t heads = 0;
    std::int32_t kv_heads = 0;
    std::int32_t head_dim = 0;
    Window queries; // the query rows at hand
    Window keys;    // the key rows at hand
    // Position m of the keys is row (m - keys.start) / key_stride of a head, rounded down: more than 1 where the rows
    // at hand are those that a dilated branch left.
    std::int64_t key_stride = 1;
    bool operator==(const Problem &) const = default;
    std::int32_t kv_head(std::int32_t head) const { return head / (heads / kv_heads); }
    std::int64_t key_rows() const { return divide_up(keys.length, key_stride); }
};

// With no more elements in a whole tensor, the bytes of all tensors, gradients and float64 copies together fit into 64
// bits, and whoever computes sizes of a checked problem need not think of overflow. Throws
// Error(ANNULUS_ERROR_ARGUMENT).
void check_element_count(const Problem &problem);

struct Segment {
    Window range; // global positions
    Curve curve;  // place -> position inside the segment
    // Global position of a place.
    constexpr std::int64_t position(std::int64_t place) const {
        return range.start + (curve.is_linear() ? place : curve.position(place));
    }
    constexpr std::int64_t place(std::int64_t position) const {
        return curve.is_linear() ? position - range.start : curve.index(position - range.start);
    }
};

// Heads and the residues they use: head first_head + k * head_step_residue + j * head_step, for 0 <= k < residues and
// 0 <= j < heads, uses the residue first_residue + k.
struct HeadSet {
    std::int32_t first_head = 0;
    std::int64_t first_residue = 0, residues = 1;
    std::int32_t heads = 1;
    std::int64_t head_step_residue = 0;
    std::int64_t head_step = 1;
};

// Up to three of them.
class HeadSets {
  public:
    void add(const HeadSet &set) { sets_[count_++] = set; }
    const HeadSet *begin() const { return sets_.data(); }
    const HeadSet *end() const { return sets_.data() + count_; }

  private:
    std::array<HeadSet, 3> sets_;
    std::size_t count_ = 0;
};

// The residues first, first + 1, … modulo the dilation, `count` of them.
struct ResidueRange {
    std::int64_t first = 0, count = 0;
};

class BranchPlan {
  public:
    BranchPlan(const Branch &branch, std::int32_t index, const Pattern &pattern, const Problem &problem);

    constexpr std::int64_t dilation() const { return dilation_; }
    constexpr annulus_query_rule query_rule() const { return query_rule_; }

    constexpr bool serves(std::int32_t head) const { return head >= first_head_ && head < first_head_ + head_count_; }
    constexpr std::int32_t head_count() const { return head_count_; }
    // The residue phi of a served head under the phase rule.
    constexpr std::int64_t phase(std::int32_t head) const;
    // Heads first … last - 1, as far as the branch serves them, as at most three sets. Under the query rule `residue`
    // every head has all residues.
    HeadSets head_sets(std::int32_t first, std::int32_t last) const;
    // Whether a served head has keys of this residue (query rule `residue`: of every residue).
    constexpr bool uses(std::int32_t head, std::int64_t residue) const;
    // The heads among first … last - 1 that do, in order.
    constexpr Progression users(std::int64_t residue, std::int32_t first, std::int32_t last) const;
    // The residues of which heads first … last - 1 have keys.
    constexpr ResidueRange residues(std::int32_t first, std::int32_t last) const;

    constexpr std::int64_t segment_count() const;
    constexpr std::int64_t segment_of(std::int64_t position) const { return position / length_; }
    constexpr Segment segment(std::int64_t index) const;
    // Length of every segment but the last.
    constexpr std::int64_t segment_length() const { return length_; }

    // Members of the largest class.
    constexpr std::int64_t largest_class() const { return divide_up(length_, dilation_); }
    // The keys of a residue, and the queries that attend to them, as places of a segment.
    constexpr Progression key_class(const Segment &segment, std::int64_t residue) const;
    constexpr Progression query_class(const Segment &segment, std::int64_t residue) const;
    // Keys of score 0 and value 0 that a query sees besides the real ones (padding rule zero_keys).
    constexpr std::int64_t padding_keys(const Segment &segment, std::int64_t residue) const;

    // Whether a query attends to a real key in `keys`. Closed form along a line; along a curve the first such key ends
    // the search.
    constexpr bool has_keys(std::int32_t head, std::int64_t query, const Window &keys) const;

    // Of one batch entry, over the heads: (query, key) pairs, queries inside `queries`; and over the key/value heads:
    // key rows outside the key window that a query in the query window attends to.
    double pairs(const Window &queries) const;
    double remote_rows(const Problem &problem) const;

  private:
    constexpr std::int64_t class_size(std::int64_t length, std::int64_t residue) const;
    // Heads that share a residue under the phase rule `block`.
    constexpr std::int64_t block_heads() const { return divide_up(head_count_, dilation_); }
    // Served heads among first … last - 1, counted inside the head range.
    constexpr Window served(std::int32_t first, std::int32_t last) const;
    // How many (group of `group` heads, residue) there are with a residue in from … to - 1 that the group uses.
    std::int64_t count_group_residues(std::int32_t group, std::int64_t from, std::int64_t to) const;

    std::int64_t length_;
    std::int64_t sequence_length_;
    std::int64_t dilation_;
    std::int32_t first_head_;
    std::int32_t head_count_;
    annulus_phase_rule phase_rule_;
    std::int64_t fixed_residue_;
    annulus_query_rule query_rule_;
    annulus_order order_;
    bool zero_keys_;
    bool causal_;
    Curve curve_;      // of a full segment
    Curve last_curve_; // of the last segment
};

constexpr std::int64_t BranchPlan::phase(std::int32_t head) const {
    const std::int64_t h = head - first_head_;
    switch (phase_rule_) {
    case ANNULUS_PHASE_BLOCK:
        return h / block_heads();
    case ANNULUS_PHASE_INTERLEAVE:
        return h % dilation_;
    case ANNULUS_PHASE_FIXED:
        break;
    }
    return fixed_residue_ % dilation_;
}

constexpr bool BranchPlan::uses(std::int32_t head, std::int64_t residue) const {
    return serves(head) && (query_rule_ == ANNULUS_QUERY_RESIDUE || phase(head) == residue);
}

constexpr Window BranchPlan::served(std::int32_t first, std::int32_t last) const {
    const Window asked{std::int64_t{first} - first_head_, std::max<std::int64_t>(0, std::int64_t{last} - first)};
    return intersect(Window{0, head_count_}, asked);
}

constexpr Progression BranchPlan::users(std::int64_t residue, std::int32_t first, std::int32_t last) const {
    const Window heads = served(first, last);
    Progression users{0, 1, head_count_};
    if (query_rule_ != ANNULUS_QUERY_RESIDUE) {
        const bool block = phase_rule_ == ANNULUS_PHASE_BLOCK;
        if (phase_rule_ == ANNULUS_PHASE_FIXED ? residue != fixed_residue_ % dilation_ : residue >= head_count_)
            users.count = 0;
        else if (block)
            users = slice(users, residue * block_heads(), (residue + 1) * block_heads());
        else if (phase_rule_ == ANNULUS_PHASE_INTERLEAVE)
            users = {residue, dilation_, (head_count_ - 1 - residue) / dilation_ + 1};
    }
    users = clip(users, heads.start, heads.end());
    users.first += first_head_;
    return users;
}

constexpr ResidueRange BranchPlan::residues(std::int32_t first, std::int32_t last) const {
    const Window heads = served(first, last);
    if (heads.length == 0)
        return {};
    if (query_rule_ == ANNULUS_QUERY_RESIDUE)
        return {0, dilation_};
    switch (phase_rule_) {
    case ANNULUS_PHASE_BLOCK:
        return {heads.start / block_heads(), (heads.end() - 1) / block_heads() - heads.start / block_heads() + 1};
    case ANNULUS_PHASE_INTERLEAVE:
        return {heads.start % dilation_, std::min(heads.length, dilation_)};
    case ANNULUS_PHASE_FIXED:
        break;
    }
    return {fixed_residue_ % dilation_, 1};
}

constexpr std::int64_t BranchPlan::segment_count() const {
    return divide_up(sequence_length_, length_);
}

constexpr Segment BranchPlan::segment(std::int64_t index) const {
    const bool last = index == segment_count() - 1;
    const Curve &curve = last ? last_curve_ : curve_;
    return {{index * length_, curve.length()}, curve};
}

constexpr std::int64_t BranchPlan::class_size(std::int64_t length, std::int64_t residue) const {
    return residue < length ? (length - 1 - residue) / dilation_ + 1 : 0;
}

constexpr Progression BranchPlan::key_class(const Segment &segment, std::int64_t residue) const {
    return {residue, dilation_, class_size(segment.range.length, residue)};
}

constexpr Progression BranchPlan::query_class(const Segment &segment, std::int64_t residue) const {
    if (query_rule_ == ANNULUS_QUERY_EVERY)
        return {0, 1, segment.range.length};
    return key_class(segment, residue);
}

constexpr std::int64_t BranchPlan::padding_keys(const Segment &segment, std::int64_t residue) const {
    return zero_keys_ ? largest_class() - class_size(segment.range.length, residue) : 0;
}

constexpr bool BranchPlan::has_keys(std::int32_t head, std::int64_t query, const Window &keys) const {
    if (!serves(head))
        return false;
    const Segment own = segment(segment_of(query));
    const std::int64_t query_residue = own.place(query) % dilation_;
    const std::int64_t residue = query_rule_ == ANNULUS_QUERY_RESIDUE ? query_residue : phase(head);
    if (query_rule_ == ANNULUS_QUERY_DILATED && query_residue != residue)
        return false;
    const std::int64_t end = causal_ ? std::min(keys.end(), query + 1) : keys.end();
    const Progression places = key_class(own, residue);
    if (own.curve.is_linear())
        return clip(places, keys.start - own.range.start, end - own.range.start).count > 0;
    for (std::int64_t i = 0; i < places.count; ++i)
        if (const std::int64_t key = own.position(places[i]); key >= keys.start && key < end)
            return true;
    return false;
}

class Plan {
  public:
    // Throws Error(ANNULUS_ERROR_ARGUMENT) where the pattern does not fit the problem.
    Plan(const Pattern &pattern, const Problem &problem);
    // The same pattern for other windows: shares all with `plan` but the problem.
    Plan(const Plan &plan, const Problem &problem) : problem_(problem), shape_(plan.shape_) {}

    const Pattern &pattern() const { return shape_->pattern; }
    const Problem &problem() const { return problem_; }
    const std::vector<BranchPlan> &branches() const { return shape_->branches; }
    bool causal() const { return shape_->pattern.causal; }
    double scale() const { return shape_->scale; }
    std::uint64_t bytes() const {
        return sizeof *this + sizeof *shape_ + shape_->pattern.branches.capacity() * sizeof(Branch) +
               shape_->branches.capacity() * sizeof(BranchPlan);
    }

    // Whether a query attends to a real key in `keys`, in any branch.
    bool has_keys(std::int32_t head, std::int64_t query, const Window &keys) const {
        return std::any_of(branches().begin(), branches().end(),
                           [&](const BranchPlan &branch) { return branch.has_keys(head, query, keys); });
    }

    // Over batch and heads, of one branch or of ANNULUS_ALL_BRANCHES together: (query, key) pairs, and bytes of the K
    // and V rows outside the key window that the queries attend to.
    double pairs(std::int32_t branch) const;
    double remote_bytes(std::int32_t branch) const;

  private:
    // What does not depend on windows.
    struct Shape {
        Pattern pattern;
        double scale;
        std::vector<BranchPlan> branches;
    };

    template <class Value> double sum_over_branches(std::int32_t branch, Value value) const {
        if (branch != ANNULUS_ALL_BRANCHES)
            return value(branches()[static_cast<std::size_t>(branch)]);
        double sum = 0;
        for (const BranchPlan &plan : branches())
            sum += value(plan);
        return sum;
    }

    Problem problem_;
    std::shared_ptr<const Shape> shape_;
};

} // namespace annulus
