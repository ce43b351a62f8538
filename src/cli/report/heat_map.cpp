// SPDX-License-Identifier: Apache-2.0
#include "cli/report/heat_map.hpp"

#include "cli/report/png.hpp"
#include "cli/report/svg.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <iterator>

namespace annulus::cli {

namespace {

// From little to much, ever lighter, so that the order is seen in grey as well.
constexpr Color stops[] = {
    {13, 20, 64, 255},   {38, 70, 145, 255},  {33, 136, 152, 255},
    {96, 190, 120, 255}, {243, 220, 96, 255}, {255, 250, 224, 255},
};

// Of a share from 0 to 1.
Color color_of(double share) {
    const double at = std::clamp(share, 0.0, 1.0) * static_cast<double>(std::size(stops) - 1);
    const std::size_t first = std::min(static_cast<std::size_t>(at), std::size(stops) - 2);
    Color color{};
    for (std::size_t i = 0; i < color.size(); ++i)
        color[i] = static_cast<std::uint8_t>(
            std::lround(std::lerp(stops[first][i], stops[first + 1][i], at - static_cast<double>(first))));
    return color;
}

std::string base64(const std::string &bytes) {
    static constexpr char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::string text;
    for (std::size_t at = 0; at < bytes.size(); at += 3) {
        unsigned three = 0;
        for (std::size_t i = at; i < at + 3; ++i)
            three = three << 8 | (i < bytes.size() ? static_cast<unsigned char>(bytes[i]) : 0);
        for (std::size_t i = 0; i < 4; ++i)
            text += at + i > bytes.size() ? '=' : digits[three >> (18 - 6 * i) & 63];
    }
    return text;
}

void add_image(Svg &svg, double x, double y, double width, double height, const std::string &png) {
    svg.raw("<image x=\"" + Svg::number(x) + "\" y=\"" + Svg::number(y) + "\" width=\"" + Svg::number(width) +
            "\" height=\"" + Svg::number(height) +
            "\" preserveAspectRatio=\"none\" style=\"image-rendering: pixelated\" href=\"data:image/png;base64," +
            base64(png) + "\"/>");
    svg.rectangle(x, y, width, height, "class=\"faint\"");
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

std::string draw(const HeatMap &map) {
    constexpr double side = 800, margin = 24, line = 20, bar = 20, labels = 110; // pixels
    const auto columns = static_cast<double>(map.columns);
    const double rows = static_cast<double>(map.values.size()) / columns;
    const double scale = side / std::max(columns, rows);
    const double width = std::max(columns * scale, 1.0), height = std::max(rows * scale, 1.0);
    const double top = margin + line * static_cast<double>(map.lines.size()), bar_height = std::max(height, 200.0);
    const double x = std::max(width, side / 2) + 2 * margin; // of the bar

    Svg svg(x + bar + labels, top + bar_height + 2 * margin, map.lines.front());
    for (std::size_t i = 0; i < map.lines.size(); ++i)
        svg.text(margin, margin + line * static_cast<double>(i), map.lines[i]);

    const double most = top_of(map.values),
                 largest =
                     std::ranges::max(map.values, {}, [](double value) { return std::isfinite(value) ? value : 0; });
    std::vector<Color> points;
    for (const double value : map.values)
        points.push_back(std::isnan(value) ? Color{} : color_of(value / most));
    add_image(svg, margin, top, width, height, png_of(points, map.columns));

    constexpr std::size_t shades = 256;
    std::vector<Color> shade_points;
    for (std::size_t i = 0; i < shades; ++i)
        shade_points.push_back(color_of(1 - static_cast<double>(i) / (shades - 1)));
    add_image(svg, x, top, bar, bar_height, png_of(shade_points, 1));
    constexpr int ticks = 5;
    for (int i = 0; i < ticks; ++i) {
        const double share = static_cast<double>(i) / (ticks - 1);
        const bool has_more = i + 1 == ticks && largest > most;
        svg.text(x + bar + 6, top + bar_height * (1 - share) + 4, number(most * share) + (has_more ? " or more" : ""));
    }
    svg.text(x, top + bar_height + line, map.unit);
    return svg.document();
}

} // namespace annulus::cli
