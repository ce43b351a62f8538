// SPDX-License-Identifier: Apache-2.0
// The rows of a shard that have partial results, as kernels read them: SummedRows in 32 bits.
#pragma once

#include "core/summed_rows.hpp"
#include "cuda/device/fast_divmod.hpp"

#include <cstddef>
#include <cstdint>

namespace annulus {

struct DeviceSummedRows {
    static constexpr std::size_t max_bands = 16;

    // As SummedBand.
    struct Band {
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
    Band bands[max_bands];
    int band_count;
    int count;    // room of a head, in rows
    bool are_few; // else all rows have partial results, and the bands do not matter

    DeviceSummedRows() = default;
    // Null: all rows. There must not be more than max_bands bands.
    explicit DeviceSummedRows(const SummedRows *rows) : bands{}, band_count(0), count(0), are_few(rows) {
        if (!rows)
            return;
        const auto number = [](std::int64_t x) { return static_cast<int>(x); };
        count = number(rows->count());
        for (const SummedBand &band : rows->bands()) {
            const bool has_all = band.stride == 1;
            bands[band_count++] = {number(band.rows.start),
                                   number(band.rows.end()),
                                   FastDivmod(number(band.segment_length)),
                                   FastDivmod(number(band.stride)),
                                   FastDivmod(number(divide_up(band.segment_length, band.stride))),
                                   number(band.step(band.rows.start)),
                                   number(band.step(band.rows.end() - 1)) + 1,
                                   band.first_head,
                                   band.end_head(),
                                   has_all ? 0 : number(band.first_phase),
                                   FastDivmod(has_all ? 1 : number(band.heads_of_phase)),
                                   number(band.first_row - band.step(band.rows.start))};
        }
    }

    // Returns the number of a head's row, or -1 if it has no partial results. They must be few.
    constexpr int row(int head, int position) const {
        for (int i = 0; i < band_count; ++i) {
            const Band &band = bands[i];
            if (position < band.start || position >= band.end || !band.serves(head))
                continue;
            const int segment = band.segment_length.quotient(position);
            const int place = position - segment * band.segment_length.value;
            const int step = band.stride.quotient(place);
            if (place - step * band.stride.value == band.residue(head))
                return band.first_row + segment * band.steps_of_segment.value + step;
        }
        return -1;
    }
    // Returns the only position that may have row `number` of a head, or -1 if there is none. row() tells whether the
    // position has that row.
    constexpr int position(int head, int number) const {
        for (int i = 0; i < band_count; ++i) {
            const Band &band = bands[i];
            const int step = number - band.first_row;
            if (step < band.first_step || step >= band.end_step || !band.serves(head))
                continue;
            const int segment = band.steps_of_segment.quotient(step);
            const int place = (step - segment * band.steps_of_segment.value) * band.stride.value + band.residue(head);
            return segment * band.segment_length.value + place;
        }
        return -1;
    }
};

} // namespace annulus
