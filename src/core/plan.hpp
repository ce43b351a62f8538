// SPDX-License-Identifier: Apache-2.0
// A pattern meets a problem. Everything is closed form: a plan's size and the time to make it grow with the number of
// branches, never with the sequence length.
//
// A branch cuts the sequence into segments; inside a segment the places p = 0, 1, 2, … (along the segment's curve) fall
// into classes p mod r. The keys of a query are one class of its segment: the arithmetic progression residue,
// residue + r, residue + 2r, … of places.
#pragma once

#include "core/hilbert.hpp"
#include "core/pattern.hpp"

#include <annulus/attention.h>
#include <annulus/tensor.h>

#include <cstdint>
#include <vector>

namespace annulus {

// a / b rounded up, for a >= 0 and b > 0, without overflow.
inline std::int64_t divide_up(std::int64_t a, std::int64_t b) {
    return a / b + (a % b != 0);
}

// The global positions start … start + length - 1.
struct Window {
    std::int64_t start = 0;
    std::int64_t length = 0;
    std::int64_t end() const { return start + length; }
    bool operator==(const Window &) const = default;
};

Window intersect(const Window &a, const Window &b);

struct Problem {
    annulus_dtype dtype = ANNULUS_FLOAT32;
    std::int64_t batch = 0;
    std::int64_t sequence_length = 0;
    std::int32_t heads = 0;
    std::int32_t kv_heads = 0;
    std::int32_t head_dim = 0;
    Window queries; // the query rows at hand
    Window keys;    // the key rows at hand
    bool operator==(const Problem &) const = default;
    std::int32_t kv_head(std::int32_t head) const { return head / (heads / kv_heads); }
};

// The places first, first + stride, … of a segment, `count` of them.
struct Progression {
    std::int64_t first = 0;
    std::int64_t stride = 1;
    std::int64_t count = 0;
    std::int64_t operator[](std::int64_t j) const { return first + j * stride; }
};

// Elements from … to - 1 of a progression, as far as it has them.
Progression slice(const Progression &p, std::int64_t from, std::int64_t to);

// The part of a progression that lies in [begin, end).
Progression clip(const Progression &p, std::int64_t begin, std::int64_t end);

struct Segment {
    Window range; // global positions
    Curve curve;  // place -> position inside the segment
    // Global position of a place.
    std::int64_t position(std::int64_t place) const {
        return range.start + (curve.is_linear() ? place : curve.position(place));
    }
    std::int64_t place(std::int64_t position) const {
        return curve.is_linear() ? position - range.start : curve.index(position - range.start);
    }
};

class BranchPlan {
  public:
    BranchPlan(const Branch &branch, std::int32_t index, const Pattern &pattern, const Problem &problem);

    std::int64_t dilation() const { return dilation_; }
    annulus_query_rule query_rule() const { return query_rule_; }

    bool serves(std::int32_t head) const { return head >= first_head_ && head < first_head_ + head_count_; }
    std::int32_t first_head() const { return first_head_; }
    std::int32_t head_count() const { return head_count_; }
    // The residue phi of a served head under the phase rule.
    std::int64_t phase(std::int32_t head) const;
    // Whether a served head has keys of this residue (query rule `residue`: of every residue).
    bool uses(std::int32_t head, std::int64_t residue) const;

    std::int64_t segment_count() const;
    std::int64_t segment_of(std::int64_t position) const { return position / length_; }
    Segment segment(std::int64_t index) const;
    // Length of every segment but the last.
    std::int64_t segment_length() const { return length_; }

    // The keys of a residue, and the queries that attend to them, as places of a segment.
    Progression key_class(const Segment &segment, std::int64_t residue) const;
    Progression query_class(const Segment &segment, std::int64_t residue) const;
    // Keys of score 0 and value 0 that a query sees besides the real ones (padding rule zero_keys).
    std::int64_t padding_keys(const Segment &segment, std::int64_t residue) const;

    // (query, key) pairs of one head and batch entry, queries inside `queries`.
    double pairs(std::int32_t head, const Window &queries) const;
    // Key rows of one batch entry and key/value head, outside `keys`, that a query in `queries` attends to.
    double remote_rows(std::int32_t kv_head, const Problem &problem) const;

  private:
    std::int64_t class_size(std::int64_t length, std::int64_t residue) const;

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

class Plan {
  public:
    // Throws Error(ANNULUS_ERROR_ARGUMENT) where the pattern does not fit the problem.
    Plan(const Pattern &pattern, const Problem &problem);

    const Pattern &pattern() const { return pattern_; }
    const Problem &problem() const { return problem_; }
    const std::vector<BranchPlan> &branches() const { return branches_; }
    bool causal() const { return pattern_.causal; }
    double scale() const { return scale_; }
    std::uint64_t bytes() const {
        return sizeof *this + pattern_.branches.capacity() * sizeof(Branch) + branches_.capacity() * sizeof(BranchPlan);
    }

    // Over batch and heads, of one branch or of ANNULUS_ALL_BRANCHES together: (query, key) pairs, and bytes of the K
    // and V rows outside the key window that the queries attend to.
    double pairs(std::int32_t branch) const;
    double remote_bytes(std::int32_t branch) const;

  private:
    template <class Value> double sum_over_branches(std::int32_t branch, Value value) const {
        if (branch != ANNULUS_ALL_BRANCHES)
            return value(branches_[static_cast<std::size_t>(branch)]);
        double sum = 0;
        for (const BranchPlan &plan : branches_)
            sum += value(plan);
        return sum;
    }

    Pattern pattern_;
    Problem problem_;
    double scale_;
    std::vector<BranchPlan> branches_;
};

} // namespace annulus
