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

// Lengths are in the drawing's units. A letter is at most 7.2 wide on average.
constexpr double side = 800, margin = 24, line = 20, bar = 20, labels = 130, letter = 7.2, tick_length = 5, frame = 1;

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

// Returns round numbers from low to high, at most `most` + 1. They are multiples of 1, 2 or 5 times a power of 10,
// which is `least_step` or more.
std::vector<double> ticks(double low, double high, double most, double least_step) {
    const double wanted = std::max((high - low) / most, least_step);
    const double power = std::pow(10, std::floor(std::log10(wanted)));
    double step = 10 * power;
    for (const double factor : {5.0, 2.0, 1.0})
        if (factor * power >= wanted * (1 - 1e-9))
            step = factor * power;
    std::vector<double> numbers;
    for (double i = std::ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; ++i)
        numbers.push_back(i * step + 0.0); // + 0.0 turns -0 into 0
    return numbers;
}

// Returns the significant digits that tell numbers from low to high apart.
int digits_of(double low, double high) {
    const double largest = std::max(std::abs(low), std::abs(high));
    return std::clamp(3 + static_cast<int>(std::ceil(std::log10(largest / (high - low)))), 3, 17);
}

std::string coordinate_text(double value) {
    return number_text(value, 10);
}

struct Box {
    double x, y, width, height;
};

// Adds the map's coordinates below its picture and left of it.
void add_axes(Drawing &drawing, const HeatMap &map, const std::vector<double> &across, const std::vector<double> &down,
              const Box &picture, double unit) {
    const double bottom = picture.y + picture.height;
    for (const double value : across) {
        const double x = picture.x + (value - map.x) * unit;
        drawing.lines.push_back({x, bottom + frame, x, bottom + tick_length});
        drawing.words.push_back({x, bottom + line, coordinate_text(value), Svg::Anchor::middle});
    }
    for (const double value : down) {
        const double y = picture.y + (value - map.y) * unit;
        drawing.lines.push_back({picture.x - tick_length, y, picture.x - frame, y});
        drawing.words.push_back({picture.x - tick_length - 3, y + 4, coordinate_text(value), Svg::Anchor::end});
    }
}

// Adds the bar with the numbers of its ends and round numbers between them.
void add_bar(Drawing &drawing, const HeatMap &map, const Box &box) {
    constexpr std::size_t shades = 256;
    Points points{1, {}};
    for (std::size_t i = 0; i < shades; ++i)
        points.colors.push_back(color_of(1 - static_cast<double>(i) / (shades - 1)));
    drawing.pictures.push_back({box.x, box.y, box.width, box.height, std::move(points)});

    const auto add = [&](double value, const std::string &text) {
        const double share = (value - map.low) / (map.high - map.low);
        drawing.words.push_back({box.x + box.width + 6, box.y + box.height * (1 - share) + 4, text, {}});
    };
    const auto is_beyond = [&](const auto &condition) { return std::ranges::any_of(map.values, condition); };
    const int digits = digits_of(map.low, map.high);
    const bool has_less = is_beyond([&](double value) { return value < map.low; });
    const bool has_more = is_beyond([&](double value) { return value > map.high; });
    add(map.low, number_text(map.low, digits) + (has_less ? " or less" : ""));
    add(map.high, number_text(map.high, digits) + (has_more ? " or more" : ""));
    const double gap = (map.high - map.low) * line / box.height; // between two texts
    for (const double value : ticks(map.low, map.high, 6, 0))
        if (value > map.low + gap && value < map.high - gap)
            add(value, number_text(value, digits));
    drawing.words.push_back({box.x, box.y + box.height + line, map.unit, {}});
}

Points points_of(const HeatMap &map) {
    Points points{map.columns, {}};
    for (const double value : map.values)
        points.colors.push_back(std::isnan(value) ? faint : color_of((value - map.low) / (map.high - map.low)));
    return points;
}

} // namespace

Drawing draw(const HeatMap &map) {
    const auto columns = static_cast<double>(map.columns);
    const double rows = static_cast<double>(map.values.size()) / columns;
    const double cell = side / std::max(columns, rows);
    Box picture{0, margin, std::max(columns * cell, 1.0), std::max(rows * cell, 1.0)};
    constexpr double widest = 90, highest = 60; // of a label with space around it
    const auto ticks_along = [&](double first, double points, double length, double space) {
        return ticks(first, first + points * map.point_side, std::max(length / space, 1.0), map.point_side);
    };
    const std::vector<double> across = ticks_along(map.x, columns, picture.width, widest);
    const std::vector<double> down = ticks_along(map.y, rows, picture.height, highest);
    std::size_t longest = 0;
    for (const double value : down)
        longest = std::max(longest, coordinate_text(value).size());
    picture.x = margin + static_cast<double>(longest) * letter + tick_length;

    Drawing drawing{};
    drawing.title = map.lines.front();
    const double bar_x = picture.x + std::max(picture.width, side / 2) + 2 * margin;
    drawing.width = bar_x + bar + labels;
    drawing.pixels = std::ceil(cell) / cell; // so that each place has the same whole number of pixels
    for (const std::string &text : map.lines)
        for (const std::string &words :
             lines_of(text, static_cast<std::size_t>((drawing.width - 2 * margin) / letter))) {
            drawing.words.push_back({margin, picture.y, words, {}});
            picture.y += line;
        }
    const double bar_height = std::max(picture.height, 200.0);
    const bool has_empty = std::ranges::any_of(map.values, [](double value) { return std::isnan(value); });
    drawing.pictures.push_back({picture.x, picture.y, picture.width, picture.height, points_of(map)});
    add_axes(drawing, map, across, down, picture, cell / map.point_side);
    add_bar(drawing, map, {bar_x, picture.y, bar, bar_height});
    if (has_empty)
        drawing.words.push_back({picture.x, picture.y + picture.height + 2 * line, "grey: no position", {}});
    drawing.height = picture.y + std::max(bar_height + line, picture.height + 2 * line) + margin;
    return drawing;
}

} // namespace annulus::cli
