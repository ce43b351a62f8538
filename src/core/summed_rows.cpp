// SPDX-License-Identifier: Apache-2.0
#include "core/summed_rows.hpp"

#include <tuple>
#include <utility>

namespace annulus {

namespace {

void add_intervals(const BranchPlan &branch, const Window &shard, std::vector<SummedInterval> &intervals) {
    const Segment first = branch.segment_at(shard.start), last = branch.segment_at(shard.end() - 1);
    const bool has_classes =
        branch.queries_are_class() && !branch.has_all_residues() && first.curve.is_linear() && last.curve.is_linear();
    const auto add = [&](const Window &rows) {
        if (rows.length > 0)
            intervals.push_back({rows, branch.segment_length(), has_classes ? branch.dilation() : 1,
                                 branch.first_head(), branch.head_count(), branch.first_phase(),
                                 branch.heads_of_phase()});
    };
    // The queries that may reach back over the start of the shard, and beyond its end. Causality is one of the bounds.
    const KeyBounds &bounds = branch.bounds();
    Window before{}, after{};
    if (first.range.start < shard.start)
        before = intersect(intersect(first.range, shard), {shard.start, bounds.before});
    if (last.range.end() > shard.end())
        after = intersect(intersect(last.range, shard), {shard.end() - bounds.after, bounds.after});
    if (first.range.start == last.range.start && after.length > 0 && before.end() >= after.start)
        return add(shard);
    add(before);
    add(after);
}

std::vector<SummedInterval> intervals_of(const Plan &shard) {
    std::vector<SummedInterval> intervals;
    const Window &queries = shard.problem().queries;
    if (queries.length > 0)
        for (const BranchPlan &branch : shard.branches())
            add_intervals(branch, queries, intervals);
    return intervals;
}

bool share_a_head(const SummedInterval &a, const SummedInterval &b) {
    return a.first_head < b.end_head() && b.first_head < a.end_head();
}

// True if a head's rows of all segments are positions with one remainder modulo the stride.
bool are_one_class(const SummedInterval &interval) {
    return interval.segment_length % interval.stride == 0 || interval.rows.end() <= interval.segment_length;
}

// True if the classes of an interval have every row of the classes of `inner`, in the positions and heads of both.
bool classes_contain(const SummedInterval &interval, const SummedInterval &inner) {
    const auto phases = [](const SummedInterval &of) {
        return std::tuple(of.first_head, of.first_phase, of.heads_of_phase);
    };
    if (interval.stride == 1)
        return true;
    if (phases(interval) != phases(inner))
        return false;
    if (interval.stride == inner.stride && interval.segment_length == inner.segment_length)
        return true;
    return interval.first_phase == 0 && inner.stride % interval.stride == 0 && are_one_class(interval) &&
           are_one_class(inner);
}

// True if an interval has every row of `inner`.
bool contains(const SummedInterval &interval, const SummedInterval &inner) {
    return classes_contain(interval, inner) && interval.first_head <= inner.first_head &&
           inner.end_head() <= interval.end_head() && intersect(interval.rows, inner.rows) == inner.rows;
}

} // namespace

SummedRows::SummedRows(const Plan &shard) : SummedRows(intervals_of(shard)) {}

SummedRows::SummedRows(std::vector<SummedInterval> intervals) : intervals_(std::move(intervals)) {
    std::ranges::stable_sort(intervals_, {}, [](const SummedInterval &interval) {
        return std::pair(interval.stride, -interval.rows.length);
    });
    drop_contained();
    for (std::size_t i = 0; i < intervals_.size(); ++i) {
        SummedInterval &interval = intervals_[i];
        interval.first_row = 0;
        for (const SummedInterval &other : std::span(intervals_).first(i))
            if (share_a_head(interval, other))
                interval.first_row = std::max(interval.first_row, other.end_row());
        count_ = std::max(count_, interval.end_row());
    }
}

void SummedRows::drop_contained() {
    std::vector<SummedInterval> kept;
    for (const SummedInterval &interval : intervals_)
        if (std::ranges::none_of(kept, [&](const SummedInterval &other) { return contains(other, interval); }))
            kept.push_back(interval);
    intervals_ = std::move(kept);
}

} // namespace annulus
