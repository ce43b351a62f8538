// SPDX-License-Identifier: Apache-2.0
#include "core/plan.hpp"

#include "core/dtype_number.hpp"
#include "core/error.hpp"

#include <algorithm>
#include <array>
#include <cmath>

namespace annulus {

namespace {

std::int64_t remainder(std::int64_t a, std::int64_t b) {
    return (a % b + b) % b;
}

// Sum of floor(x / r) + 1 over 0 <= x < n: the pairs of n consecutive places, of which each sees the places of its own
// residue up to itself.
double causal_sum(std::int64_t n, std::int64_t r) {
    if (n <= 0)
        return 0;
    const std::int64_t rounds = n / r;
    const auto q = static_cast<double>(rounds);
    return static_cast<double>(r) * q * (q - 1) / 2 + static_cast<double>(n % r) * q + static_cast<double>(n);
}

// How many x in [begin, end) have (x - first) mod r < count, for 0 <= count <= r.
std::int64_t count_residues(std::int64_t begin, std::int64_t end, std::int64_t first, std::int64_t count,
                            std::int64_t r) {
    // Shifted by a multiple of r, so that both ends are not negative.
    const std::int64_t shift = remainder(begin - first, r) - begin;
    const auto below = [&](std::int64_t x) { return x / r * count + std::min(x % r, count); };
    return begin < end ? below(end + shift) - below(begin + shift) : 0;
}

// Adds up value(s) over the segments first … last, where value may differ at a few segments and at the last of all but
// is the same for all segments between two neighbouring ones of them.
template <std::size_t n, class Value>
double sum_over_segments(std::int64_t first, std::int64_t last, std::array<std::int64_t, n> special, Value value) {
    std::sort(special.begin(), special.end());
    double sum = 0;
    std::int64_t next = first;
    const auto advance = [&](std::int64_t end) { // the uniform segments next … end - 1
        if (next < end)
            sum += static_cast<double>(end - next) * value(next);
        next = std::max(next, end);
    };
    for (const std::int64_t s : special) {
        if (s < next || s > last)
            continue;
        advance(s);
        advance(s + 1);
    }
    advance(last + 1);
    return sum;
}

std::int64_t grid_width(const Branch &branch, std::int64_t length) {
    return branch.grid_width && length % branch.grid_width == 0 ? branch.grid_width : Curve::automatic_width(length);
}

Curve make_curve(const Branch &branch, annulus_order order, std::int64_t length) {
    return order == ANNULUS_ORDER_LINEAR ? Curve::linear(length) : Curve::hilbert(length, grid_width(branch, length));
}

} // namespace

BranchPlan::BranchPlan(const Branch &branch, std::int32_t index, const Pattern &pattern, const Problem &problem)
    : length_(problem.sequence_length), sequence_length_(problem.sequence_length), dilation_(branch.dilation),
      first_head_(branch.first_head), head_count_(branch.head_count ? branch.head_count : problem.heads),
      phase_rule_(branch.phase_rule), fixed_residue_(branch.fixed_residue), query_rule_(branch.query_rule),
      // With dilation 1 every position is kept, whatever the order.
      order_(branch.dilation == 1 ? ANNULUS_ORDER_LINEAR : branch.order),
      zero_keys_(pattern.padding_rule == ANNULUS_PADDING_ZERO_KEYS && !pattern.causal), causal_(pattern.causal) {
    if (static_cast<std::int64_t>(first_head_) + head_count_ > problem.heads)
        throw Error(ANNULUS_ERROR_ARGUMENT, "branch %d serves heads %d to %lld, but q has %d heads", index, first_head_,
                    static_cast<long long>(first_head_) + head_count_ - 1, problem.heads);
    const std::int64_t whole = branch.segment_length ? branch.segment_length : sequence_length_;
    if (branch.grid_width && whole % branch.grid_width)
        throw Error(ANNULUS_ERROR_ARGUMENT, "grid_width of branch %d is %lld; it must divide the segment length %lld",
                    index, static_cast<long long>(branch.grid_width), static_cast<long long>(whole));
    length_ = std::min(whole, sequence_length_);
    curve_ = make_curve(branch, order_, length_);
    last_curve_ = make_curve(branch, order_, sequence_length_ - (segment_count() - 1) * length_);
}

std::vector<HeadSet> BranchPlan::head_sets(std::int32_t first, std::int32_t last) const {
    const std::int64_t a = std::max(first, first_head_) - first_head_;
    const std::int64_t b = std::min(last, first_head_ + head_count_) - first_head_;
    if (a >= b)
        return {};
    const auto head = [&](std::int64_t h) { return static_cast<std::int32_t>(first_head_ + h); };
    const auto count = [](std::int64_t n) { return static_cast<std::int32_t>(n); };
    if (query_rule_ == ANNULUS_QUERY_RESIDUE)
        return {{head(a), 0, dilation_, count(b - a), 0, 1}};
    if (phase_rule_ == ANNULUS_PHASE_FIXED)
        return {{head(a), fixed_residue_ % dilation_, 1, count(b - a), 0, 1}};
    // Heads lie in rows of equal length: a row shares a residue (block), or goes through all of them (interleave).
    const bool block = phase_rule_ == ANNULUS_PHASE_BLOCK;
    const std::int64_t length = block ? divide_up(head_count_, dilation_) : dilation_;
    std::vector<HeadSet> sets;
    const auto add = [&](std::int64_t row, std::int64_t rows, std::int64_t from, std::int64_t to) {
        if (rows <= 0 || from >= to)
            return;
        const std::int32_t first_of_set = head(row * length + from);
        sets.push_back(block ? HeadSet{first_of_set, row, rows, count(to - from), length, 1}
                             : HeadSet{first_of_set, from, to - from, count(rows), 1, length});
    };
    const std::int64_t row = a / length, last_row = (b - 1) / length;
    if (row == last_row) {
        add(row, 1, a % length, b - row * length);
        return sets;
    }
    const std::int64_t full = divide_up(a, length), full_end = b / length;
    add(row, full - row, a % length, length);
    add(full, full_end - full, 0, length);
    add(full_end, 1, 0, b - full_end * length);
    return sets;
}

double BranchPlan::pairs(std::int32_t head, const Window &queries) const {
    if (!serves(head) || queries.length == 0)
        return 0;
    const std::int64_t residue = phase(head), r = dilation_;
    const std::int64_t first = segment_of(queries.start), last = segment_of(queries.end() - 1);
    return sum_over_segments(first, last, std::array{first, last, segment_count() - 1}, [&](std::int64_t index) {
        const Segment s = segment(index);
        const Window part = intersect(s.range, queries);
        const std::int64_t begin = part.start - s.range.start, end = begin + part.length;
        const Progression keys = key_class(s, residue);
        switch (query_rule_) {
        case ANNULUS_QUERY_DILATED: {
            const Progression own = clip(keys, begin, end);
            const auto before = static_cast<double>(own.count ? (own.first - residue) / r : 0);
            const auto count = static_cast<double>(own.count);
            return causal_ ? count * (before + (count + 1) / 2) : count * static_cast<double>(keys.count);
        }
        case ANNULUS_QUERY_RESIDUE: {
            if (causal_)
                return causal_sum(end, r) - causal_sum(begin, r);
            // Residues below L mod r have one key more than the others.
            const std::int64_t shorter = s.range.length / r;
            const std::int64_t longer = count_residues(begin, end, 0, s.range.length % r, r);
            return static_cast<double>(part.length) * static_cast<double>(shorter) + static_cast<double>(longer);
        }
        case ANNULUS_QUERY_EVERY:
            break;
        }
        return causal_ ? causal_sum(end - residue, r) - causal_sum(begin - residue, r)
                       : static_cast<double>(part.length) * static_cast<double>(keys.count);
    });
}

double BranchPlan::remote_rows(std::int32_t kv_head, const Problem &problem) const {
    const Window &queries = problem.queries, &keys = problem.keys;
    if (queries.length == 0)
        return 0;
    const std::int32_t group = problem.heads / problem.kv_heads;
    const std::int64_t first = segment_of(queries.start), last = segment_of(queries.end() - 1);
    const std::array special{first, last, segment_count() - 1, segment_of(keys.start), segment_of(keys.end())};
    const std::int64_t r = dilation_;

    double rows = 0;
    for (std::int32_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
        // Heads that share their keys with an earlier head of the group want nothing more.
        bool shared = !serves(head);
        for (std::int32_t earlier = kv_head * group; earlier < head && !shared; ++earlier)
            shared = uses(earlier, phase(head));
        if (shared)
            continue;
        rows += sum_over_segments(first, last, special, [&](std::int64_t index) {
            const Segment s = segment(index);
            const Window part = intersect(s.range, queries);
            const Window local = intersect(s.range, keys);
            const std::int64_t begin = part.start - s.range.start, end = begin + part.length;
            // Keys in [from, to) that are wanted when causality does not matter or cuts at `limit`.
            std::int64_t limit = causal_ ? end : s.range.length;
            const auto wanted = [&](std::int64_t from, std::int64_t to) -> std::int64_t {
                to = std::min(to, limit);
                if (query_rule_ == ANNULUS_QUERY_RESIDUE)
                    return count_residues(from, to, begin, std::min(part.length, r), r);
                return clip(key_class(s, phase(head)), from, to).count;
            };
            if (query_rule_ == ANNULUS_QUERY_DILATED) {
                const Progression own = clip(key_class(s, phase(head)), begin, end);
                if (own.count == 0)
                    return 0.0;
                if (causal_)
                    limit = own[own.count - 1] + 1;
            }
            std::int64_t remote = wanted(0, s.range.length);
            if (local.length)
                remote -= wanted(local.start - s.range.start, local.end() - s.range.start);
            return static_cast<double>(remote);
        });
    }
    return rows;
}

Plan::Plan(const Pattern &pattern, const Problem &problem)
    : pattern_(pattern), problem_(problem),
      scale_(pattern.scale ? *pattern.scale : 1 / std::sqrt(static_cast<double>(problem.head_dim))) {
    branches_.reserve(pattern.branches.size());
    for (const Branch &branch : pattern.branches)
        branches_.emplace_back(branch, static_cast<std::int32_t>(branches_.size()), pattern, problem);
}

double Plan::pairs(std::int32_t branch) const {
    return sum_over_branches(branch, [&](const BranchPlan &plan) {
        double pairs = 0;
        for (std::int32_t head = 0; head < problem_.heads; ++head)
            pairs += plan.pairs(head, problem_.queries);
        return pairs * static_cast<double>(problem_.batch);
    });
}

double Plan::remote_bytes(std::int32_t branch) const {
    return sum_over_branches(branch, [&](const BranchPlan &plan) {
        double rows = 0;
        for (std::int32_t kv_head = 0; kv_head < problem_.kv_heads; ++kv_head)
            rows += plan.remote_rows(kv_head, problem_);
        return 2 * rows * static_cast<double>(problem_.batch) * problem_.head_dim * dtype_bytes(problem_.dtype);
    });
}

} // namespace annulus
