// SPDX-License-Identifier: Apache-2.0
#include "cli/report/text.hpp"

#include <charconv>
#include <cstdio>
#include <system_error>

namespace annulus::cli {

std::vector<std::string_view> split(std::string_view text, char separator) {
    std::vector<std::string_view> parts;
    for (;;) {
        const std::size_t end = text.find(separator);
        parts.push_back(text.substr(0, end));
        if (end == std::string_view::npos)
            return parts;
        text.remove_prefix(end + 1);
    }
}

std::string joined(const std::vector<std::string> &words, std::string_view separator) {
    std::string text;
    for (const std::string &word : words) {
        if (!text.empty())
            text += separator;
        text += word;
    }
    return text;
}

std::string counted(std::int64_t count, const std::string &one, const std::string &many) {
    return std::to_string(count) + " " + (count == 1 ? one : many);
}

std::string number_text(double value, int digits) {
    char buffer[64];
    std::snprintf(buffer, sizeof buffer, "%.*g", digits, value);
    return buffer;
}

std::vector<std::string> lines_of(std::string_view text, std::size_t width) {
    std::vector<std::string> lines;
    for (const std::string_view word : split(text, ' ')) {
        if (lines.empty() || lines.back().size() + 1 + word.size() > width)
            lines.emplace_back(word);
        else
            lines.back().append(" ").append(word);
    }
    return lines;
}

namespace {

template <class Number> std::optional<Number> parse(std::string_view text) {
    Number value = 0;
    const char *end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, value);
    if (error != std::errc() || stop != end)
        return std::nullopt;
    return value;
}

} // namespace

std::optional<std::int64_t> parse_integer(std::string_view text) {
    return parse<std::int64_t>(text);
}

namespace {

// Returns base^power times the number in `digits`, if that fits into int64.
std::optional<std::int64_t> parse_scaled(std::string_view digits, std::int64_t base, std::int64_t power) {
    std::optional<std::int64_t> number = parse_integer(digits);
    for (std::int64_t i = 0; number && *number != 0 && i < power; ++i)
        if (__builtin_mul_overflow(*number, base, &*number))
            number.reset();
    return number;
}

} // namespace

std::optional<std::int64_t> parse_count(std::string_view text) {
    if (const std::size_t e = text.find('e'); e != text.npos) {
        const std::optional<std::int64_t> power = parse_integer(text.substr(e + 1));
        return power && *power >= 0 ? parse_scaled(text.substr(0, e), 10, *power) : std::nullopt;
    }
    const bool binary = text.ends_with('i');
    const std::string_view number = text.substr(0, text.size() - binary);
    const char letter = number.empty() ? ' ' : number.back();
    const std::int64_t power = letter == 'k' || letter == 'K'                ? 1
                               : letter == 'M'                               ? 2
                               : letter == 'G' || (letter == 'B' && !binary) ? 3
                               : letter == 'T'                               ? 4
                                                                             : 0;
    return power ? parse_scaled(number.substr(0, number.size() - 1), binary ? 1024 : 1000, power) : parse_integer(text);
}

std::optional<double> parse_real(std::string_view text) {
    return parse<double>(text);
}

std::string error_line(std::string message) {
    while (message.ends_with('\n'))
        message.pop_back();
    std::string line = "annulus: ";
    for (std::size_t i = 0; i < message.size(); ++i) {
        const auto byte = static_cast<unsigned char>(message[i]);
        const auto next = static_cast<unsigned char>(message[i + 1]);   // 0 after the last byte
        const bool is_c1 = byte == 0xC2 && next >= 0x80 && next < 0xA0; // a control character of two bytes in UTF-8
        if (byte == '\n')
            line += "; ";
        else if (byte < 0x20 || byte == 0x7F || is_c1)
            line += '?';
        else
            line += message[i];
        i += is_c1;
    }
    return line + "\n";
}

} // namespace annulus::cli
