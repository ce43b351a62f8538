// SPDX-License-Identifier: Apache-2.0
#include "core/plan.hpp"

#include "core/class_pairs.hpp"
#include "core/error.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace annulus {

void check_element_count(const Problem &problem) {
    constexpr std::int64_t max_elements = std::int64_t{1} << 57;
    std::int64_t elements = problem.batch;
    for (const std::int64_t size :
         {problem.sequence_length, std::int64_t{problem.heads}, std::int64_t{problem.head_dim}})
        if (__builtin_mul_overflow(elements, size, &elements) || elements > max_elements)
            throw Error(ANNULUS_ERROR_ARGUMENT,
                        "batch %lld, sequence length %lld, heads %d and head dimension %d together are too large: "
                        "2^57 elements are the limit",
                        static_cast<long long>(problem.batch), static_cast<long long>(problem.sequence_length),
                        problem.heads, problem.head_dim);
}

namespace {

// Returns the sum of floor(x / r) + 1 over 0 <= x < n: how many of the places 0, r, 2 r, … are <= x, summed over x.
double causal_sum(std::int64_t n, std::int64_t r) {
    if (n <= 0)
        return 0;
    const std::int64_t rounds = n / r;
    const auto q = static_cast<double>(rounds);
    return static_cast<double>(r) * q * (q - 1) / 2 + static_cast<double>(n % r) * q + static_cast<double>(n);
}

__extension__ using Wide = __int128; // holds the product of two lengths

// Returns the sum of x over 0 < x <= n.
Wide triangle(std::int64_t n) {
    return n > 0 ? Wide{n} * (n + 1) / 2 : 0;
}

// Returns how many pairs (i, j) with 0 <= i < queries and 0 <= j < keys have j - i <= most. It is exact: a difference
// of two such numbers may be small.
Wide pairs_up_to(std::int64_t queries, std::int64_t keys, std::int64_t most) {
    // Query i has the keys j < i + most + 1: their number is the distance of i + most + 1 above 0 minus that above
    // `keys`.
    const auto sum = [&](std::int64_t from) { return triangle(from + queries - 1) - triangle(from - 1); };
    return sum(most + 1) - sum(most + 1 - keys);
}

// Returns how many (query, key) pairs a class has with its queries at places begin … end - 1. Treats the order as
// linear.
double count_pairs(const BranchPlan &branch, const ClassPair &pair, std::int64_t begin, std::int64_t end) {
    const Progression queries = clip(pair.queries, begin, end), &keys = pair.keys;
    if (queries.count == 0 || keys.count == 0)
        return 0;
    if (queries.stride != keys.stride && branch.causal()) // query rule `every`, which only segments have
        return causal_sum(end - keys.first, keys.stride) - causal_sum(begin - keys.first, keys.stride);
    const std::int64_t last_query = queries[queries.count - 1], last_key = keys[keys.count - 1];
    if (branch.bounds().covers(queries.first, last_query, keys.first, last_key))
        return static_cast<double>(queries.count) * static_cast<double>(keys.count);
    // In steps: a key j - i steps behind a query is at a distance of (j - i) * stride + keys.first - queries.first.
    const std::int64_t r = keys.stride, apart = (keys.first - queries.first) / r;
    return static_cast<double>(pairs_up_to(queries.count, keys.count, branch.bounds().after / r - apart) -
                               pairs_up_to(queries.count, keys.count, -branch.bounds().before / r - apart - 1));
}

// Calls use(from, to) for parts from … to that cover first … last: each special place alone, and each run between them.
template <std::size_t n, class Use>
void for_each_part(std::int64_t first, std::int64_t last, std::array<std::int64_t, n> special, Use use) {
    std::sort(special.begin(), special.end());
    std::int64_t next = first;
    const auto advance = [&](std::int64_t end) { // next … end - 1
        if (next < end)
            use(next, end - 1);
        next = std::max(next, end);
    };
    for (const std::int64_t place : special) {
        if (place < next || place > last)
            continue;
        advance(place);
        advance(place + 1);
    }
    advance(last + 1);
}

// Returns the sum of value(i) over first … last. `value` may be anything at the few special places, and is linear
// between two neighbouring special places.
template <std::size_t n, class Value>
double sum_of_linear(std::int64_t first, std::int64_t last, const std::array<std::int64_t, n> &special, Value value) {
    double sum = 0;
    for_each_part(first, last, special, [&](std::int64_t from, std::int64_t to) {
        sum += from == to ? value(from) : static_cast<double>(to - from + 1) * (value(from) + value(to)) / 2;
    });
    return sum;
}

// The same for a `value` that is constant between special places.
template <std::size_t n, class Value>
double sum_of_constant(std::int64_t first, std::int64_t last, const std::array<std::int64_t, n> &special, Value value) {
    double sum = 0;
    for_each_part(first, last, special,
                  [&](std::int64_t from, std::int64_t to) { sum += static_cast<double>(to - from + 1) * value(from); });
    return sum;
}

// Returns how many of `heads` consecutive heads share a phase.
std::int64_t heads_of_phase(const Branch &branch, std::int32_t heads) {
    switch (branch.phase_rule) {
    case ANNULUS_PHASE_BLOCK:
        return divide_up(heads, branch.dilation);
    case ANNULUS_PHASE_INTERLEAVE:
        return 1;
    case ANNULUS_PHASE_FIXED:
        break;
    }
    return heads;
}

// Returns a side of a window branch in positions, at most the sequence length.
std::int64_t reach(std::int64_t steps, std::int64_t dilation, std::int64_t sequence_length) {
    const std::int64_t most = sequence_length / dilation;
    return steps < 0 || steps > most ? sequence_length : steps * dilation;
}

KeyBounds bounds_of(const Branch &branch, bool causal, std::int64_t sequence_length) {
    KeyBounds bounds{sequence_length, sequence_length};
    if (branch.kind == ANNULUS_BRANCH_WINDOW)
        bounds = {reach(branch.left, branch.dilation, sequence_length),
                  reach(branch.right, branch.dilation, sequence_length)};
    if (causal)
        bounds.after = 0;
    return bounds;
}

std::int32_t total_heads(const Pattern &pattern, const Problem &problem) {
    return pattern.head_shard.total ? pattern.head_shard.total : problem.heads;
}

std::int64_t grid_width(const Branch &branch, std::int64_t length) {
    return branch.grid_width && length % branch.grid_width == 0 ? branch.grid_width : Curve::automatic_width(length);
}

Curve make_curve(const Branch &branch, std::int64_t length) {
    // With dilation 1 the order does not matter: a class is the whole segment.
    return branch.order == ANNULUS_ORDER_LINEAR || branch.dilation == 1
               ? Curve::linear(length)
               : Curve::hilbert(length, grid_width(branch, length));
}

} // namespace

BranchPlan::BranchPlan(const Branch &branch, std::int32_t index, const Pattern &pattern, const Problem &problem)
    : index_(index), kind_(branch.kind), length_(problem.sequence_length), sequence_length_(problem.sequence_length),
      dilation_(branch.dilation), query_stride_(branch.query_rule == ANNULUS_QUERY_EVERY ? 1 : branch.dilation),
      first_head_(branch.first_head - pattern.head_shard.first),
      head_count_(branch.head_count ? branch.head_count : total_heads(pattern, problem) - branch.first_head),
      first_phase_(branch.phase_rule == ANNULUS_PHASE_FIXED ? branch.fixed_residue % branch.dilation : 0),
      heads_of_phase_(annulus::heads_of_phase(branch, head_count_)),
      has_all_residues_(branch.query_rule == ANNULUS_QUERY_RESIDUE),
      has_zero_keys_(branch.kind == ANNULUS_BRANCH_SEGMENTS && pattern.padding_rule == ANNULUS_PADDING_ZERO_KEYS &&
                     !pattern.causal),
      causal_(pattern.causal), bounds_(bounds_of(branch, pattern.causal, problem.sequence_length)),
      query_range_{0, problem.sequence_length}, key_range_{0, problem.sequence_length} {
    const std::int32_t heads = total_heads(pattern, problem);
    if (head_count_ <= 0)
        throw Error(ANNULUS_ERROR_ARGUMENT, "branch %d serves the heads from %d on; there are %d query heads", index,
                    branch.first_head, heads);
    if (static_cast<std::int64_t>(branch.first_head) + head_count_ > heads)
        throw Error(ANNULUS_ERROR_ARGUMENT, "branch %d serves heads %d to %lld; there are %d query heads", index,
                    branch.first_head, static_cast<long long>(branch.first_head) + head_count_ - 1, heads);
    const std::int64_t whole = branch.segment_length ? branch.segment_length : sequence_length_;
    if (branch.grid_width && whole % branch.grid_width)
        throw Error(ANNULUS_ERROR_ARGUMENT, "grid_width of branch %d is %lld; it must divide the segment length %lld",
                    index, static_cast<long long>(branch.grid_width), static_cast<long long>(whole));
    length_ = std::min(whole, sequence_length_);
    curve_ = make_curve(branch, length_);
    last_curve_ = make_curve(branch, sequence_length_ - (segment_count() - 1) * length_);
}

HeadSets BranchPlan::head_sets(std::int32_t first, std::int32_t last) const {
    const std::int64_t a = std::max(first, first_head_) - first_head_;
    const std::int64_t b = std::min(last, first_head_ + head_count_) - first_head_;
    if (a >= b)
        return {};
    const auto head = [&](std::int64_t h) { return static_cast<std::int32_t>(first_head_ + h); };
    const auto count = [](std::int64_t n) { return static_cast<std::int32_t>(n); };
    HeadSets sets;
    if (has_all_residues_) {
        sets.add({head(a), 0, dilation_, count(b - a), 0, 1});
        return sets;
    }
    // Heads form rows of equal length. The heads of a row share one residue, or use all residues in turn.
    const bool shares = heads_of_phase_ > 1;
    const std::int64_t length = shares ? heads_of_phase_ : dilation_;
    const auto add = [&](std::int64_t row, std::int64_t rows, std::int64_t from, std::int64_t to) {
        if (rows <= 0 || from >= to)
            return;
        const std::int32_t first_of_set = head(row * length + from);
        sets.add(shares ? HeadSet{first_of_set, first_phase_ + row, rows, count(to - from), length, 1}
                        : HeadSet{first_of_set, first_phase_ + from, to - from, count(rows), 1, length});
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

double BranchPlan::pairs(const Problem &problem) const {
    const Window &queries = problem.queries;
    if (queries.length == 0)
        return 0;
    const std::int64_t r = dilation_;
    const std::int64_t first = segment_of(queries.start), last = segment_of(queries.end() - 1);
    const HeadSets sets = head_sets(0, problem.heads);
    return sum_of_constant(first, last, std::array{first, last, segment_count() - 1}, [&](std::int64_t index) {
        const Segment s = segment(index);
        const Window part = intersect(s.range, queries);
        const std::int64_t begin = part.start - s.range.start, end = begin + part.length;
        const auto residue_pairs = [&](std::int64_t residue) {
            return count_pairs(*this, class_pair(*this, s, residue), begin, end);
        };
        // As the residue grows, the size of a class and the places of the bounds in it change at these residues alone.
        const std::array special{begin % r, end % r, s.range.length % r};
        double pairs = 0;
        for (const HeadSet &set : sets)
            pairs += set.heads *
                     sum_of_linear(set.first_residue, set.first_residue + set.residues - 1, special, residue_pairs);
        return pairs;
    });
}

namespace {

// Adds the plans of a global branch: every query with the global keys, and global queries with all keys before and
// after these. Positions beyond the end of the sequence do not exist.
void add_global(std::vector<BranchPlan> &plans, const Branch &branch, const BranchPlan &plan) {
    const Window whole = plan.key_range();
    const std::int64_t first = std::min(branch.first_global, whole.length);
    const Window global{first, std::min(branch.global_count, whole.length - first)};
    plans.push_back(plan.with_ranges(whole, global));
    if (!branch.has_global_queries)
        return;
    for (const Window &rest : {Window{0, global.start}, Window{global.end(), whole.length - global.end()}})
        if (global.length > 0 && rest.length > 0)
            plans.push_back(plan.with_ranges(global, rest));
}

} // namespace

Plan::Plan(const Pattern &pattern, const Problem &problem) : problem_(problem) {
    const HeadShard &shard = pattern.head_shard;
    if (shard.total && std::int64_t{shard.first} + problem.heads > shard.total)
        throw Error(
            ANNULUS_ERROR_ARGUMENT,
            "the call has %d query heads, from head %d on by the config's head shard; it must end within the %d "
            "heads that there are",
            problem.heads, shard.first, shard.total);
    auto shape = std::make_shared<Shape>();
    shape->pattern = pattern;
    shape->scale = pattern.scale ? *pattern.scale : 1 / std::sqrt(static_cast<double>(problem.head_dim));
    shape->branches.reserve(pattern.branches.size());
    std::int32_t index = 0;
    for (const Branch &branch : pattern.branches) {
        const BranchPlan plan(branch, index++, pattern, problem);
        if (branch.kind == ANNULUS_BRANCH_GLOBAL)
            add_global(shape->branches, branch, plan);
        else
            shape->branches.push_back(plan);
    }
    shape_ = std::move(shape);
}

bool Plan::has_kind(annulus_branch_kind kind) const {
    return std::ranges::any_of(pattern().branches, [&](const Branch &branch) { return branch.kind == kind; });
}

double Plan::pairs(std::int32_t branch) const {
    double sum = 0;
    for (const BranchPlan &plan : branches())
        if (branch == ANNULUS_ALL_BRANCHES || branch == plan.index())
            sum += plan.pairs(problem_) * static_cast<double>(problem_.batch);
    return sum;
}

} // namespace annulus
