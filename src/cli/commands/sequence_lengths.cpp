// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/sequence_lengths.hpp"

#include "cli/report/failure.hpp"
#include "cli/report/text.hpp"

#include <random>
#include <string_view>
#include <utility>

namespace annulus::cli {

namespace {

constexpr std::int64_t max_sequences = 1'000'000;
constexpr std::int64_t max_rows = std::int64_t{1} << 40; // of all sequences together

} // namespace

SequenceLengths parse_sequence_lengths(const std::string &text) {
    const std::vector<std::string_view> parts = split(text, ':');
    std::vector<std::int64_t> numbers;
    for (const std::string_view part : parts)
        numbers.push_back(parse_count(part).value_or(0));
    if (numbers.size() != 3 || numbers[0] < 1 || numbers[0] > max_sequences || numbers[1] < 1 ||
        numbers[2] < numbers[1] || numbers[2] > max_rows / numbers[0])
        throw bad_input("--sequences " + text +
                        ": must be COUNT:MIN:MAX, with COUNT from 1 to 1000000, MIN from 1 to MAX, and no more than "
                        "2^40 rows together");
    return {numbers[0], numbers[1], numbers[2]};
}

std::vector<std::int64_t> starts_of(const SequenceLengths &lengths) {
    std::vector<std::int64_t> shuffled;
    std::mt19937_64 generator(1);
    for (std::int64_t i = 0; i < lengths.count; ++i) {
        const std::int64_t steps = lengths.count > 1 ? lengths.count - 1 : 1;
        shuffled.push_back(lengths.min_length + (lengths.max_length - lengths.min_length) * i / steps);
        std::swap(shuffled.back(), shuffled[generator() % shuffled.size()]);
    }
    std::vector<std::int64_t> starts = {0};
    for (const std::int64_t length : shuffled)
        starts.push_back(starts.back() + length);
    return starts;
}

} // namespace annulus::cli
