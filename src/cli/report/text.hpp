// SPDX-License-Identifier: Apache-2.0
// Splits, joins and wraps text, and reads numbers in options and file headers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace annulus::cli {

// Returns the pieces of `text` between the separators; at least one.
std::vector<std::string_view> split(std::string_view text, char separator);

// Returns the words with a separator between them.
std::string joined(const std::vector<std::string> &words, std::string_view separator);

// Returns text such as "1 query" or "2 queries".
std::string counted(std::int64_t count, const std::string &one, const std::string &many);

// Returns the number with at most `digits` significant digits, without trailing zeros.
std::string number_text(double value, int digits);

// Returns the words of `text` in lines of at most `width` characters. A longer word has a line of its own.
std::vector<std::string> lines_of(std::string_view text, std::size_t width);

// Returns the whole number that `text` is, unless there is other text or the number exceeds int64.
std::optional<std::int64_t> parse_integer(std::string_view text);

// Returns the same for a number that may have a unit: k, M, G (or B) or T for powers of 1000, Ki, Mi, Gi or Ti for
// powers of 1024. It may also have a power of 10, such as 1e9.
std::optional<std::int64_t> parse_count(std::string_view text);
inline constexpr const char *count_units = "k, M, G or T (powers of 1000) or Ki, Mi, Gi or Ti (of 1024), or as in 1e9";

// Returns the number that `text` is, unless there is other text or the number exceeds double.
std::optional<double> parse_real(std::string_view text);

// Returns the line of an error message. A newline in the message becomes "; ". Other control characters, such as an
// escape in a file's name, become "?".
std::string error_line(std::string message);

} // namespace annulus::cli
