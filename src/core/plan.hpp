// SPDX-License-Identifier: Apache-2.0
// A plan is a pattern applied to a problem. Everything is closed form. A plan's size, and the time to make and to query
// it, grow with the number of branches. They do not depend on the sequence length or the number of heads.
//
// A branch cuts the sequence into segments. Inside a segment the places p = 0, 1, 2, … (along the segment's curve) fall
// into classes p mod r. The keys of a query are one class of its segment: the arithmetic progression residue,
// residue + r, residue + 2r, … of places. class_pairs.hpp says which queries attend to a class.
//
// A window branch has one segment, the whole sequence, and bounds: a query attends to the keys of its class that are
// near enough to it. A global branch has up to three plans, of one segment and one class each. In such a plan some
// queries meet some keys, two ranges of positions.
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
#include <span>
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

// How far before and after a query its keys may be: key - query is from -before to after, in positions. A side without
// a limit has the sequence length.
struct KeyBounds {
    std::int64_t before = 0, after = 0;
    constexpr bool has(std::int64_t query, std::int64_t key) const {
        return key - query >= -before && key - query <= after;
    }
    // Returns the positions in which queries first … last have their keys.
    constexpr Window keys(std::int64_t first, std::int64_t last) const {
        return {first - before, last - first + before + after + 1};
    }
    // True if some query of first … last may have some key of low … high.
    constexpr bool meets(std::int64_t first, std::int64_t last, std::int64_t low, std::int64_t high) const {
        return high >= first - before && low <= last + after;
    }
    // True if every query of first … last may have every key of low … high.
    constexpr bool covers(std::int64_t first, std::int64_t last, std::int64_t low, std::int64_t high) const {
        return low >= last - before && high <= first + after;
    }
};

// How a gradient is stored in the caller's tensor.
struct GradientTarget {
    bool is_float32 = false; // the problem's dtype is bfloat16 or float16, and the tensor is float32
    bool adds = false;       // is added to what the tensor holds
    bool operator==(const GradientTarget &) const = default;
    constexpr bool is_plain() const { return !is_float32 && !adds; }
    constexpr annulus_dtype dtype(annulus_dtype problem_dtype) const {
        return is_float32 ? ANNULUS_FLOAT32 : problem_dtype;
    }
};

struct GradientTargets {
    GradientTarget q, k, v;
    // Only dV is computed: d_q and d_k have no data. V and O do not matter, but must be readable.
    bool only_v = false;
    bool operator==(const GradientTargets &) const = default;
    constexpr bool query_gradients_are_plain() const { return q.is_plain(); }
    constexpr bool key_gradients_are_plain() const { return k.is_plain() && v.is_plain(); }
    constexpr bool are_plain() const { return query_gradients_are_plain() && key_gradients_are_plain(); }
};

struct Problem {
    annulus_dtype dtype = ANNULUS_FLOAT32;
    std::int64_t batch = 0;
    std::int64_t sequence_length = 0;
    std::int32_t heads = 0;
    std::int32_t kv_heads = 0;
    std::int32_t head_dim = 0;
    Window queries; // the query rows of this call
    Window keys;    // the key rows of this call
    // The key at position m is in row (m - keys.start) / key_stride of a head, rounded down. The stride is above 1 if
    // the rows of this call are only the keys of a dilated branch.
    std::int64_t key_stride = 1;
    GradientTargets gradients{}; // for backward; in a forward problem they are plain
    bool operator==(const Problem &) const = default;
    std::int32_t kv_head(std::int32_t head) const { return head / (heads / kv_heads); }
    std::int64_t key_rows() const { return divide_up(keys.length, key_stride); }
};

// Throws Error(ANNULUS_ERROR_ARGUMENT) if a whole tensor would have more than 2^57 elements. With at most 2^57, the
// bytes of all tensors, gradients and float64 copies together fit into 64 bits. Code that computes sizes of a checked
// problem therefore needs no checks for overflow.
void check_element_count(const Problem &problem);

struct Segment {
    Window range; // global positions
    Curve curve;  // place -> position inside the segment
    // Returns the global position of a place.
    constexpr std::int64_t position(std::int64_t place) const {
        return range.start + (curve.is_linear() ? place : curve.position(place));
    }
    constexpr std::int64_t place(std::int64_t position) const {
        return curve.is_linear() ? position - range.start : curve.place(position - range.start);
    }
};

// Heads and the residues that they use. For 0 <= k < residues and 0 <= j < heads, the head
// first_head + k * head_step_residue + j * head_step uses the residue first_residue + k.
struct HeadSet {
    std::int32_t first_head = 0;
    std::int64_t first_residue = 0, residues = 1;
    std::int32_t heads = 1;
    std::int64_t head_step_residue = 0;
    std::int64_t head_step = 1;
};

// Up to three sets.
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
    // `index` is that of the branch in the pattern. The plan of a global branch needs ranges: with_ranges().
    BranchPlan(const Branch &branch, std::int32_t index, const Pattern &pattern, const Problem &problem);
    // Returns a copy in which these queries meet these keys, and no others do.
    BranchPlan with_ranges(const Window &queries, const Window &keys) const {
        BranchPlan plan = *this;
        plan.query_range_ = queries;
        plan.key_range_ = keys;
        return plan;
    }
    // A copy of `branch`, which has segments in linear order, for a sequence of this shorter length.
    constexpr BranchPlan(const BranchPlan &branch, std::int64_t sequence_length);

    // Returns the index of the pattern's branch. Several plans may have the same.
    constexpr std::int32_t index() const { return index_; }
    constexpr annulus_branch_kind kind() const { return kind_; }
    constexpr std::int64_t dilation() const { return dilation_; }
    // Distance in places between consecutive queries of a class of keys. It is the dilation if the queries are the
    // class itself, and 1 if they are all places of the segment (query rule `every`).
    constexpr std::int64_t query_stride() const { return query_stride_; }
    constexpr bool queries_are_class() const { return query_stride_ == dilation_; }
    // True if a head has all residues (query rule `residue`). Otherwise it has its phase alone.
    constexpr bool has_all_residues() const { return has_all_residues_; }
    // True if a class with fewer keys than the largest class is filled up with padding keys.
    constexpr bool has_zero_keys() const { return has_zero_keys_; }
    constexpr bool causal() const { return causal_; }
    // Limits of causality and of a window branch.
    constexpr const KeyBounds &bounds() const { return bounds_; }
    // Return the queries and the keys that may meet. Only a global branch does not have the whole sequence.
    constexpr const Window &query_range() const { return query_range_; }
    constexpr const Window &key_range() const { return key_range_; }

    // Heads are numbered as in the call. With a head shard, a branch may also serve heads before and after the call's.
    constexpr bool serves(std::int32_t head) const { return head >= first_head_ && head < first_head_ + head_count_; }
    constexpr std::int32_t first_head() const { return first_head_; }
    constexpr std::int32_t head_count() const { return head_count_; }
    // Returns the residue phi of a served head under the phase rule. heads_of_phase() consecutive heads share a
    // residue, and the next heads have the next residue, modulo the dilation.
    constexpr std::int64_t phase(std::int32_t head) const {
        return first_phase_ + (head - first_head_) / heads_of_phase_ % dilation_;
    }
    constexpr std::int64_t first_phase() const { return first_phase_; }
    constexpr std::int64_t heads_of_phase() const { return heads_of_phase_; }
    // Returns which of the heads first … last - 1 the branch serves, as at most three sets.
    HeadSets head_sets(std::int32_t first, std::int32_t last) const;
    // Returns the heads among first … last - 1 that have keys of this residue, in order.
    constexpr Progression users(std::int64_t residue, std::int32_t first, std::int32_t last) const;
    // Returns the residues that the heads first … last - 1 use.
    constexpr ResidueRange residues(std::int32_t first, std::int32_t last) const;

    constexpr std::int64_t segment_count() const;
    constexpr std::int64_t segment_of(std::int64_t position) const { return position / length_; }
    constexpr Segment segment(std::int64_t index) const;
    constexpr Segment segment_at(std::int64_t position) const { return segment(segment_of(position)); }
    // Length of every segment except the last one.
    constexpr std::int64_t segment_length() const { return length_; }

    // Number of places in the largest class.
    constexpr std::int64_t largest_class() const { return divide_up(length_, dilation_); }

    // Returns how many (query, key) pairs the queries of the window have in one batch entry, over all query heads.
    double pairs(const Problem &problem) const;

  private:
    // Returns the served heads among first … last - 1, numbered from the branch's first head.
    constexpr Window served(std::int32_t first, std::int32_t last) const;

    std::int32_t index_;
    annulus_branch_kind kind_;
    std::int64_t length_;
    std::int64_t sequence_length_;
    std::int64_t dilation_;
    std::int64_t query_stride_;
    std::int32_t first_head_;
    std::int32_t head_count_;
    std::int64_t first_phase_ = 0;
    std::int64_t heads_of_phase_ = 1;
    bool has_all_residues_;
    bool has_zero_keys_;
    bool causal_;
    KeyBounds bounds_;
    Window query_range_, key_range_;
    Curve curve_;      // of a full segment
    Curve last_curve_; // of the last segment
};

constexpr Window BranchPlan::served(std::int32_t first, std::int32_t last) const {
    const Window asked{std::int64_t{first} - first_head_, std::max<std::int64_t>(0, std::int64_t{last} - first)};
    return intersect(Window{0, head_count_}, asked);
}

constexpr Progression BranchPlan::users(std::int64_t residue, std::int32_t first, std::int32_t last) const {
    const Window heads = served(first, last);
    Progression users{0, 1, head_count_};
    if (!has_all_residues_) {
        const std::int64_t row = residue - first_phase_; // row of heads that share a residue
        if (row < 0 || row >= head_count_)
            users.count = 0;
        else if (heads_of_phase_ == 1)
            users = {row, dilation_, (head_count_ - 1 - row) / dilation_ + 1};
        else
            users = slice(users, row * heads_of_phase_, (row + 1) * heads_of_phase_);
    }
    users = clip(users, heads.start, heads.end());
    users.first += first_head_;
    return users;
}

constexpr ResidueRange BranchPlan::residues(std::int32_t first, std::int32_t last) const {
    const Window heads = served(first, last);
    if (heads.length == 0)
        return {};
    if (has_all_residues_)
        return {0, dilation_};
    const std::int64_t row = heads.start / heads_of_phase_, last_row = (heads.end() - 1) / heads_of_phase_;
    return {first_phase_ + row % dilation_, std::min(last_row - row + 1, dilation_)};
}

constexpr BranchPlan::BranchPlan(const BranchPlan &branch, std::int64_t sequence_length) : BranchPlan(branch) {
    length_ = std::min(length_, sequence_length);
    sequence_length_ = sequence_length;
    query_range_ = key_range_ = {0, sequence_length};
    curve_ = Curve::linear(length_);
    last_curve_ = Curve::linear(sequence_length - (segment_count() - 1) * length_);
}

constexpr std::int64_t BranchPlan::segment_count() const {
    return divide_up(sequence_length_, length_);
}

constexpr Segment BranchPlan::segment(std::int64_t index) const {
    const bool last = index == segment_count() - 1;
    const Curve &curve = last ? last_curve_ : curve_;
    return {{index * length_, curve.length()}, curve};
}

class Plan {
  public:
    // Throws Error(ANNULUS_ERROR_ARGUMENT) if the pattern does not fit the problem.
    Plan(const Pattern &pattern, const Problem &problem);
    // The same pattern for other windows: shares everything with `plan` except the problem.
    Plan(const Plan &plan, const Problem &problem) : problem_(problem), shape_(plan.shape_) {}

    const Pattern &pattern() const { return shape_->pattern; }
    const Problem &problem() const { return problem_; }
    // Returns the plans of the branches, in their order. A global branch has up to three.
    const std::vector<BranchPlan> &branches() const { return shape_->branches; }
    bool causal() const { return shape_->pattern.causal; }
    // Return true if some branch is a window, or if some branch has global positions.
    bool has_windows() const { return has_kind(ANNULUS_BRANCH_WINDOW); }
    bool has_global_positions() const { return has_kind(ANNULUS_BRANCH_GLOBAL); }
    // True if a query may not attend to all keys of its class: by causality, or in a window branch.
    bool hides_keys() const { return causal() || has_windows(); }
    double scale() const { return shape_->scale; }
    // True if a query may have the same key in several branches, and the key is to count once.
    bool keys_count_once() const {
        return shape_->pattern.key_rule == ANNULUS_KEY_ONCE && shape_->pattern.branches.size() > 1;
    }
    // Returns the branches before `branch` whose keys do not count again in it. `branch` is one of branches().
    std::span<const BranchPlan> earlier_branches(const BranchPlan &branch) const {
        return {branches().data(), keys_count_once() ? static_cast<std::size_t>(&branch - branches().data()) : 0};
    }
    std::uint64_t bytes() const {
        return sizeof *this + sizeof *shape_ + shape_->pattern.branches.capacity() * sizeof(Branch) +
               shape_->branches.capacity() * sizeof(BranchPlan);
    }

    // Returns the number of (query, key) pairs over batch and heads, of one branch or of ANNULUS_ALL_BRANCHES together.
    double pairs(std::int32_t branch) const;

  private:
    bool has_kind(annulus_branch_kind kind) const;

    // The part that does not depend on windows.
    struct Shape {
        Pattern pattern;
        double scale;
        std::vector<BranchPlan> branches;
    };

    Problem problem_;
    std::shared_ptr<const Shape> shape_;
};

} // namespace annulus
