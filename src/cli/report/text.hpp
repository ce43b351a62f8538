// SPDX-License-Identifier: Apache-2.0
// Pieces of text and numbers, as options and file headers are made of, and the lines that errors are.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace annulus::cli {

// The pieces of `text` between `separator`s; at least one.
std::vector<std::string_view> split(std::string_view text, char separator);

// The words with a separator between them.
std::string joined(const std::vector<std::string> &words, std::string_view separator);

// "1 query", "2 queries".
std::string counted(std::int64_t count, const std::string &one, const std::string &many);

// The words of `text` in lines of at most `width` characters, but for a longer word, which has a line of its own.
std::vector<std::string> lines_of(std::string_view text, std::size_t width);

// The whole number that all of `text` is, if it fits into int64.
std::optional<std::int64_t> parse_integer(std::string_view text);

// The same where the number may have a unit: k, M, G, which is also B, or T, powers of 1000, or Ki, Mi, Gi or Ti,
// powers of 1024. Or it has a power of 10, as in 1e9.
std::optional<std::int64_t> parse_count(std::string_view text);
inline constexpr const char *count_units = "k, M, G or T (powers of 1000) or Ki, Mi, Gi or Ti (of 1024), or as in 1e9";

// The number that all of `text` is, if it fits into double.
std::optional<double> parse_real(std::string_view text);

// Returns the line that an error is. A newline in the message becomes "; ". Any other character that a terminal obeys,
// such as an escape in the name of a file, becomes "?".
std::string error_line(std::string message);

} // namespace annulus::cli
