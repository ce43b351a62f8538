// SPDX-License-Identifier: Apache-2.0
// A drawing of words and of pictures made of points, as SVG and as PNG.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace annulus::cli {

// 0xRRGGBB
using Color = std::uint32_t;

constexpr Color ink = 0x24292f;   // of words
constexpr Color faint = 0xafb8c1; // of frames, and of points where nothing is

// Rows of points from the top, one behind the other.
struct Points {
    std::int64_t columns;
    std::vector<Color> colors;

    std::int64_t rows() const { return static_cast<std::int64_t>(colors.size()) / columns; }
};

// Places and sizes are in units of which the letters are 12 high, from the upper left corner.
struct Drawing {
    struct Words {
        double x, y; // where they begin, on the line that they stand on
        std::string text;
    };
    // In a frame.
    struct Picture {
        double x, y, width, height;
        Points points;
    };

    double width, height;
    double pixels; // of PNG, for each unit; SVG begins with one
    std::string title;
    std::vector<Words> words;
    std::vector<Picture> pictures;
};

enum class DrawingFormat { png, svg };

// What a file's ending says, .png or .svg. Throws Failure with exit_bad_input, which names `option`, for other endings
// and where this build cannot draw pictures of points.
DrawingFormat format_of(const std::string &option, const std::string &path);

// The bytes of a file.
std::string encoded(const Drawing &drawing, DrawingFormat format);

} // namespace annulus::cli
