// SPDX-License-Identifier: Apache-2.0
#include "cli/report/drawing.hpp"

#include "cli/report/failure.hpp"
#include "cli/report/png.hpp"

#include <cstddef>

namespace annulus::cli {

namespace {

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

std::string svg_of(const Drawing &drawing) {
    Svg svg(drawing.width, drawing.height, drawing.title, drawing.pixels);
    for (const Drawing::Words &words : drawing.words)
        svg.text(words.x, words.y, words.text, words.anchor);
    for (const Drawing::Line &line : drawing.lines)
        svg.raw("<path class=\"faint\" d=\"M" + Svg::number(line.x1) + " " + Svg::number(line.y1) + "L" +
                Svg::number(line.x2) + " " + Svg::number(line.y2) + "\"/>");
    for (const Drawing::Picture &picture : drawing.pictures) {
        svg.rectangle(picture.x - 0.5, picture.y - 0.5, picture.width + 1, picture.height + 1, "class=\"faint\"");
        svg.raw("<image x=\"" + Svg::number(picture.x) + "\" y=\"" + Svg::number(picture.y) + "\" width=\"" +
                Svg::number(picture.width) + "\" height=\"" + Svg::number(picture.height) +
                "\" preserveAspectRatio=\"none\" style=\"image-rendering: pixelated\" href=\"data:image/png;base64," +
                base64(png_of(picture.points)) + "\"/>");
    }
    return svg.document();
}

} // namespace

DrawingFormat format_of(const std::string &option, const std::string &path) {
    const bool is_png = path.ends_with(".png");
    if (!is_png && !path.ends_with(".svg"))
        throw bad_input(option + " '" + path + "': the name must end in .png or .svg, which says what is written");
    if (!has_png)
        throw bad_input(option + ": this build was made without cairo, and cannot draw pictures");
    return is_png ? DrawingFormat::png : DrawingFormat::svg;
}

std::string encoded(const Drawing &drawing, DrawingFormat format) {
    return format == DrawingFormat::png ? png_of(drawing) : svg_of(drawing);
}

} // namespace annulus::cli
