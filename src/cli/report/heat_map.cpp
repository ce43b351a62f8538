// SPDX-License-Identifier: Apache-2.0
#include "cli/report/heat_map.hpp"

#include "cli/report/text.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <utility>

namespace annulus::cli {

namespace {

// The colours get lighter from low to high numbers, so that a grey print shows the order, too.
constexpr Color stops[] = {0x0d1440, 0x264691, 0x218898, 0x60be78, 0xf3dc60, 0xfffae0};

// Returns the colour of a share from 0 to 1.
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

// Returns the number of the last colour: the 99th percentile of the finite values. It is finite and above 0.
double top_of(const std::vector<double> &values) {
    std::vector<double> finite;
    std::ranges::copy_if(values, std::back_inserter(finite), [](double value) { return std::isfinite(value); });
    if (finite.empty())
        return 1;
    std::ranges::sort(finite);
    const double scale_max = finite[(finite.size() - 1) * 99 / 100];
    return scale_max > 0 ? scale_max : finite.back() > 0 ? finite.back() : 1;
}

} // namespace

Drawing draw(const HeatMap &map) {
    // Lengths are in the drawing's units. A letter is at most 7.2 wide on average.
    constexpr double side = 800, margin = 24, line = 20, bar = 20, labels = 130, letter = 7.2;
    const auto columns = static_cast<double>(map.columns);
    const double rows = static_cast<double>(map.values.size()) / columns;
    const double cell = side / std::max(columns, rows);
    const double width = std::max(columns * cell, 1.0), height = std::max(rows * cell, 1.0);
    const double x = std::max(width, side / 2) + 2 * margin; // left edge of the bar

    Drawing drawing{};
    drawing.title = map.lines.front();
    drawing.width = x + bar + labels;
    drawing.pixels = std::ceil(cell) / cell; // so that each place has the same whole number of pixels
    double top = margin;
    for (const std::string &text : map.lines)
        for (const std::string &words :
             lines_of(text, static_cast<std::size_t>((drawing.width - 2 * margin) / letter))) {
            drawing.words.push_back({margin, top, words, {}});
            top += line;
        }
    const double bar_height = std::max(height, 200.0);
    drawing.height = top + bar_height + 2 * margin;

    const double scale_max = top_of(map.values),
                 largest =
                     std::ranges::max(map.values, {}, [](double value) { return std::isfinite(value) ? value : 0; });
    Points points{map.columns, {}};
    for (const double value : map.values)
        points.colors.push_back(std::isnan(value) ? faint : color_of(value / scale_max));
    drawing.pictures.push_back({margin, top, width, height, std::move(points)});

    constexpr std::size_t shades = 256;
    Points shade_points{1, {}};
    for (std::size_t i = 0; i < shades; ++i)
        shade_points.colors.push_back(color_of(1 - static_cast<double>(i) / (shades - 1)));
    drawing.pictures.push_back({x, top, bar, bar_height, std::move(shade_points)});
    constexpr int ticks = 5;
    for (int i = 0; i < ticks; ++i) {
        const double share = static_cast<double>(i) / (ticks - 1);
        const bool has_more = i + 1 == ticks && largest > scale_max;
        drawing.words.push_back({x + bar + 6,
                                 top + bar_height * (1 - share) + 4,
                                 number_text(scale_max * share, 3) + (has_more ? " or more" : ""),
                                 {}});
    }
    drawing.words.push_back({x, top + bar_height + line, map.unit, {}});
    if (std::ranges::any_of(map.values, [](double value) { return std::isnan(value); }))
        drawing.words.push_back({margin, top + height + line, "grey: no position", {}});
    return drawing;
}

} // namespace annulus::cli
