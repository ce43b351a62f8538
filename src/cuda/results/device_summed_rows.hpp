// SPDX-License-Identifier: Apache-2.0
// The rows of a shard that have partial results, as kernels read them: SummedRows in 32 bits.
#pragma once

#include "core/summed_rows.hpp"
#include "cuda/device/fast_divmod.hpp"

#include <cstddef>
#include <cstdint>

namespace annulus {

struct DeviceSummedRows {
    static constexpr std::size_t max_intervals = 16;

    // As SummedInterval.
    struct Interval {
        int start, end; // positions
        FastDivmod segment_length, stride, steps_of_segment;
        int first_step, end_step;
        int first_head, end_head;
        int first_phase;
        FastDivmod heads_of_phase;
        int first_row; // of step 0

        constexpr bool serves(int head) const { return head >= first_head && head < end_head; }
        constexpr int residue(int head) const {
            return first_phase + stride.remainder(heads_of_phase.quotient(head - first_head));
        }
    };
    Interval intervals[max_intervals];
    int interval_count;
    int count;    // room of a head, in rows
    bool are_few; // else all rows have partial results, and the intervals do not matter

    DeviceSummedRows() = default;
    // Null: all rows. There must not be more than max_intervals intervals.
    explicit DeviceSummedRows(const SummedRows *rows) : intervals{}, interval_count(0), count(0), are_few(rows) {
        if (!rows)
            return;
        const auto number = [](std::int64_t x) { return static_cast<int>(x); };
        count = number(rows->count());
        for (const SummedInterval &interval : rows->intervals()) {
            const bool has_all = interval.stride == 1;
            intervals[interval_count++] = {number(interval.rows.start),
                                           number(interval.rows.end()),
                                           FastDivmod(number(interval.segment_length)),
                                           FastDivmod(number(interval.stride)),
                                           FastDivmod(number(divide_up(interval.segment_length, interval.stride))),
                                           number(interval.step(interval.rows.start)),
                                           number(interval.step(interval.rows.end() - 1)) + 1,
                                           interval.first_head,
                                           interval.end_head(),
                                           has_all ? 0 : number(interval.first_phase),
                                           FastDivmod(has_all ? 1 : number(interval.heads_of_phase)),
                                           number(interval.first_row - interval.step(interval.rows.start))};
        }
    }

    // Returns the number of a head's row, or -1 if it has no partial results. They must be few.
    constexpr int row(int head, int position) const {
        for (int i = 0; i < interval_count; ++i) {
            const Interval &interval = intervals[i];
            if (position < interval.start || position >= interval.end || !interval.serves(head))
                continue;
            const int segment = interval.segment_length.quotient(position);
            const int place = position - segment * interval.segment_length.value;
            const int step = interval.stride.quotient(place);
            if (place - step * interval.stride.value == interval.residue(head))
                return interval.first_row + segment * interval.steps_of_segment.value + step;
        }
        return -1;
    }
    // Returns the only position that may have row `number` of a head, or -1 if there is none. row() tells whether the
    // position has that row.
    constexpr int position(int head, int number) const {
        for (int i = 0; i < interval_count; ++i) {
            const Interval &interval = intervals[i];
            const int step = number - interval.first_row;
            if (step < interval.first_step || step >= interval.end_step || !interval.serves(head))
                continue;
            const int segment = interval.steps_of_segment.quotient(step);
            const int place =
                (step - segment * interval.steps_of_segment.value) * interval.stride.value + interval.residue(head);
            return segment * interval.segment_length.value + place;
        }
        return -1;
    }
};

} // namespace annulus
