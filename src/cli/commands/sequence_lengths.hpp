// SPDX-License-Identifier: Apache-2.0
// Packed sequences whose lengths are spread evenly over a range, the value of --sequences.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace annulus::cli {

struct SequenceLengths {
    std::int64_t count = 0, min_length = 0, max_length = 0;
};

// Parses COUNT:MIN:MAX. Throws Failure if the text is not of that form.
SequenceLengths parse_sequence_lengths(const std::string &text);

// Returns the first row of each sequence and the end of the last. The lengths are spread evenly from min_length to
// max_length, in an order that is random but always the same.
std::vector<std::int64_t> starts_of(const SequenceLengths &lengths);

} // namespace annulus::cli
