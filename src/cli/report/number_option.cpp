// SPDX-License-Identifier: Apache-2.0
#include "cli/report/number_option.hpp"

#include "cli/report/failure.hpp"
#include "cli/report/text.hpp"

#include <optional>

namespace annulus::cli {

namespace {

// Returns what the user wrote, for the beginning of a message.
std::string subject(const std::string &option, const std::string &text) {
    return option + " " + (text.empty() ? "''" : text);
}

} // namespace

std::int64_t whole_number(const std::string &option, const std::string &text, std::int64_t lowest,
                          std::int64_t highest) {
    const std::optional<std::int64_t> number = parse_count(text);
    if (!number || *number < lowest || *number > highest)
        throw bad_input(subject(option, text) + ": must be a whole number from " + std::to_string(lowest) + " to " +
                        std::to_string(highest) + ", also with " + count_units);
    return *number;
}

double real_number(const std::string &option, const std::string &text) {
    const std::optional<double> number = parse_real(text);
    if (!number)
        throw bad_input(subject(option, text) + ": must be a decimal number in the range of double");
    return *number;
}

} // namespace annulus::cli
