// SPDX-License-Identifier: Apache-2.0
// The rows of a shard or call whose results are sums over several key scopes or launches. All other rows get their
// results in one launch, of a shard that over its own keys, and need no memory for sums.
//
// Such a row is in a segment that a border of the shard cuts, or in a branch that has a launch of its own. So each
// branch has them in a few intervals of positions. In each segment of an interval, a head has the rows of one class,
// or all of them.
#pragma once

#include "core/plan.hpp"

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace annulus {

struct SummedInterval {
    Window rows;
    std::int64_t segment_length;
    std::int64_t stride; // between the rows of a head; 1: a head has all rows
    std::int32_t first_head, head_count;
    std::int64_t first_phase, heads_of_phase; // as in BranchPlan; not used if the stride is 1
    std::int64_t first_row = 0;               // of the sums

    std::int32_t end_head() const { return first_head + head_count; }
    bool serves(std::int32_t head) const { return head >= first_head && head < end_head(); }
    // Returns the residue of a served head's rows in each segment.
    std::int64_t residue(std::int32_t head) const {
        return stride == 1 ? 0 : first_phase + (head - first_head) / heads_of_phase % stride;
    }
    // Returns the number of a position's step. Each segment is cut into steps of `stride` positions, and steps count
    // from the first segment on. A step has at most one row of a head.
    std::int64_t step(std::int64_t position) const {
        return position / segment_length * divide_up(segment_length, stride) + position % segment_length / stride;
    }
    // Returns the number of a row, which the interval must have.
    std::int64_t row(std::int64_t position) const { return first_row + step(position) - step(rows.start); }
    std::int64_t end_row() const { return row(rows.end() - 1) + 1; }
    bool has(std::int32_t head, std::int64_t position) const {
        return position >= rows.start && position < rows.end() && serves(head) &&
               position % segment_length % stride == residue(head);
    }
};

class SummedRows {
  public:
    // The queries of a shard that may have keys in other shards. `shard` has the shard's rows as queries and keys.
    explicit SummedRows(const Plan &shard);
    // The rows of these intervals, in which first_row does not matter.
    explicit SummedRows(std::vector<SummedInterval> intervals);

    // Returns how many sums a head has room for. It may be more than the head has such rows.
    std::int64_t count() const { return count_; }

    // Returns the intervals, those of the smallest stride first. A row belongs to the first interval that has it.
    std::span<const SummedInterval> intervals() const { return intervals_; }

    // Returns the number of a head's row, or -1 if the head has no such row at the position.
    std::int64_t row(std::int32_t head, std::int64_t position) const {
        const auto interval =
            std::ranges::find_if(intervals_, [&](const SummedInterval &b) { return b.has(head, position); });
        return interval == intervals_.end() ? -1 : interval->row(position);
    }

    // Calls use(position, row) for the rows of a head in a window. `row` is from 0 to count() - 1, and no two rows of a
    // head have the same.
    template <class Use> void for_each(std::int32_t head, const Window &window, Use use) const {
        for (std::size_t i = 0; i < intervals_.size(); ++i) {
            const SummedInterval &interval = intervals_[i];
            const Window part = intersect(window, interval.rows);
            if (!interval.serves(head))
                continue;
            for (std::int64_t start = part.start; start < part.end();) {
                const std::int64_t segment = start - start % interval.segment_length;
                const std::int64_t end = std::min(segment + interval.segment_length, part.end());
                const std::int64_t first = start + remainder(segment + interval.residue(head) - start, interval.stride);
                for (std::int64_t position = first; position < end; position += interval.stride)
                    if (!has(std::span(intervals_).first(i), head, position))
                        use(position, interval.row(position));
                start = end;
            }
        }
    }

  private:
    static bool has(std::span<const SummedInterval> intervals, std::int32_t head, std::int64_t position) {
        return std::ranges::any_of(intervals,
                                   [&](const SummedInterval &interval) { return interval.has(head, position); });
    }
    void drop_contained();

    std::vector<SummedInterval> intervals_;
    std::int64_t count_ = 0;
};

} // namespace annulus
