// SPDX-License-Identifier: Apache-2.0
// A drawing of words, lines and pictures made of points. It is written as SVG or PNG.
#pragma once

#include "cli/report/svg.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace annulus::cli {

// 0xRRGGBB
using Color = std::uint32_t;

constexpr Color ink = 0x24292f;   // of words
constexpr Color faint = 0xafb8c1; // of frames, and of points without a value

// Rows of points from the top, row after row.
struct Points {
    std::int64_t columns;
    std::vector<Color> colors;

    std::int64_t rows() const { return static_cast<std::int64_t>(colors.size()) / columns; }
};

// Positions and sizes count from the upper left corner. The unit is 1/12 of the font size.
struct Drawing {
    struct Words {
        double x, y; // of the base line's left end, middle or right end, as `anchor` says
        std::string text;
        Svg::Anchor anchor = Svg::Anchor::start;
    };
    struct Line {
        double x1, y1, x2, y2;
    };
    // A picture in a frame.
    struct Picture {
        double x, y, width, height;
        Points points;
    };

    double width, height;
    double pixels; // for each unit
    std::string title;
    std::vector<Words> words;
    std::vector<Line> lines; // faint
    std::vector<Picture> pictures;
};

enum class DrawingFormat { png, svg };

// Returns the format that the file's ending says, .png or .svg. Throws Failure with exit_bad_input for other endings,
// or if this build cannot draw pictures of points. The message names `option`.
DrawingFormat format_of(const std::string &option, const std::string &path);

// Returns the bytes of the file.
std::string encoded(const Drawing &drawing, DrawingFormat format);

} // namespace annulus::cli
