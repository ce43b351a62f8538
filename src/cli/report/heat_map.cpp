// SPDX-License-Identifier: Apache-2.0
#include "cli/report/heat_map.hpp"

#include "cli/report/text.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <iterator>
#include <utility>

namespace annulus::cli {

namespace {

// From little to much, ever lighter, so that the order is seen in grey as well.
constexpr Color stops[] = {0x0d1440, 0x264691, 0x218898, 0x60be78, 0xf3dc60, 0xfffae0};

// Of a share from 0 to 1.
Color color_of(double share) {
    const double at = std::clamp(share, 0.0, 1.0) * static_cast<double>(std::size(stops) - 1);
    const std::size_t first = std::min(static_cast<std::size_t>(at), std::size(stops) - 2);
    Color color = 0;
    for (int bits = 0; bits < 24; bits += 8) {
        const auto part = [bits](Color stop) { return static_cast<double>(stop >> bits & 255); };
        const double mixed = std::lerp(part(stops[first]), part(stops[first + 1]), at - static_cast<double>(first));
        color |= static_cast<Color>(std::lround(mixed)) << bits;
    }
    return color;
}

std::string number(double value) {
    char buffer[32];
    std::snprintf(buffer, sizeof buffer, "%.3g", value);
    return buffer;
}

// What the colours reach up to: above 0, and finite.
double top_of(const std::vector<double> &values) {
    std::vector<double> finite;
    std::ranges::copy_if(values, std::back_inserter(finite), [](double value) { return std::isfinite(value); });
    if (finite.empty())
        return 1;
    std::ranges::sort(finite);
    const double most = finite[(finite.size() - 1) * 99 / 100];
    return most > 0 ? most : finite.back() > 0 ? finite.back() : 1;
}

} // namespace

Drawing draw(const HeatMap &map) {
    // Of the drawing's units a letter has 7.2 at most on average.
    constexpr double side = 800, margin = 24, line = 20, bar = 20, labels = 130, letter = 7.2;
    const auto columns = static_cast<double>(map.columns);
    const double rows = static_cast<double>(map.values.size()) / columns;
    const double cell = side / std::max(columns, rows);
    const double width = std::max(columns * cell, 1.0), height = std::max(rows * cell, 1.0);
    const double x = std::max(width, side / 2) + 2 * margin; // of the bar

    Drawing drawing{};
    drawing.title = map.lines.front();
    drawing.width = x + bar + labels;
    drawing.pixels = std::ceil(cell) / cell; // so that each place has the same whole number of them
    double top = margin;
    for (const std::string &text : map.lines)
        for (const std::string &words :
             lines_of(text, static_cast<std::size_t>((drawing.width - 2 * margin) / letter))) {
            drawing.words.push_back({margin, top, words});
            top += line;
        }
    const double bar_height = std::max(height, 200.0);
    drawing.height = top + bar_height + 2 * margin;

    const double most = top_of(map.values),
                 largest =
                     std::ranges::max(map.values, {}, [](double value) { return std::isfinite(value) ? value : 0; });
    Points points{map.columns, {}};
    for (const double value : map.values)
        points.colors.push_back(std::isnan(value) ? faint : color_of(value / most));
    drawing.pictures.push_back({margin, top, width, height, std::move(points)});

    constexpr std::size_t shades = 256;
    Points shade_points{1, {}};
    for (std::size_t i = 0; i < shades; ++i)
        shade_points.colors.push_back(color_of(1 - static_cast<double>(i) / (shades - 1)));
    drawing.pictures.push_back({x, top, bar, bar_height, std::move(shade_points)});
    constexpr int ticks = 5;
    for (int i = 0; i < ticks; ++i) {
        const double share = static_cast<double>(i) / (ticks - 1);
        const bool has_more = i + 1 == ticks && largest > most;
        drawing.words.push_back(
            {x + bar + 6, top + bar_height * (1 - share) + 4, number(most * share) + (has_more ? " or more" : "")});
    }
    drawing.words.push_back({x, top + bar_height + line, map.unit});
    if (std::ranges::any_of(map.values, [](double value) { return std::isnan(value); }))
        drawing.words.push_back({margin, top + height + line, "grey: no position"});
    return drawing;
}

} // namespace annulus::cli
