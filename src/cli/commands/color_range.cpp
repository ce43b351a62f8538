// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/color_range.hpp"

#include "cli/report/failure.hpp"
#include "cli/report/text.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <optional>
#include <string_view>

namespace annulus::cli {

namespace {

std::optional<RangeEnd> parse_end(std::string_view text) {
    const bool is_quantile = text.ends_with('%');
    const std::optional<double> number = parse_real(is_quantile ? text.substr(0, text.size() - 1) : text);
    if (!number || !std::isfinite(*number) || (is_quantile && (*number < 0 || *number > 100)))
        return std::nullopt;
    return RangeEnd{is_quantile ? *number / 100 : *number, is_quantile};
}

double quantile(const std::vector<double> &sorted, double share) {
    const double at = share * static_cast<double>(sorted.size() - 1);
    const auto below = static_cast<std::size_t>(at);
    const std::size_t above = std::min(below + 1, sorted.size() - 1);
    return std::lerp(sorted[below], sorted[above], at - static_cast<double>(below));
}

} // namespace

ColorRange parse_color_range(const std::string &text) {
    const std::vector<std::string_view> ends = split(text, ':');
    const std::optional<RangeEnd> low = parse_end(ends[0]);
    const std::optional<RangeEnd> high = ends.size() == 2 ? parse_end(ends[1]) : std::nullopt;
    const bool is_ordered = low && high && (low->is_quantile != high->is_quantile || low->value < high->value);
    if (!is_ordered)
        throw bad_input("--range " + text +
                        ": must be LOW:HIGH, two rising numbers, or quantiles from 0% to 100% as in 1%:99%");
    return {*low, *high};
}

Bounds bounds_of(const ColorRange &range, const std::vector<double> &values) {
    std::vector<double> finite;
    std::ranges::copy_if(values, std::back_inserter(finite), [](double value) { return std::isfinite(value); });
    if (finite.empty())
        throw bad_input("--picture: none of the numbers to draw is finite, so there is nothing to see");
    std::ranges::sort(finite);
    const auto number = [&](const RangeEnd &end) { return end.is_quantile ? quantile(finite, end.value) : end.value; };
    const double low = number(range.low), high = number(range.high);
    if (low > high)
        throw bad_input("--range: the lower end is " + number_text(low, 6) + " and the upper one " +
                        number_text(high, 6) + "; they must rise");
    if (low < high)
        return {low, high};
    const double half = low == 0 ? 1 : std::abs(low) / 2; // all values are equal: their colour is the middle one
    return {low - half, high + half};
}

} // namespace annulus::cli
