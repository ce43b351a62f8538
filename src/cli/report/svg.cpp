// SPDX-License-Identifier: Apache-2.0
#include "cli/report/svg.hpp"

#include <cstdio>

namespace annulus::cli {

Svg::Svg(double width, double height, const std::string &title) {
    const std::string size = number(width) + "\" height=\"" + number(height);
    // Programs without media queries draw it dark on white.
    raw("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" + size + "\" viewBox=\"0 0 " + number(width) + " " +
        number(height) + "\">\n<title>" + escaped(title) + R"(</title>
<style>
text { font: 12px sans-serif }
.ground { fill: #ffffff } .ink { fill: #24292f } .mark { fill: #0b5cad } .second { fill: #c2560c }
.faint { fill: none; stroke: #afb8c1 }
@media (prefers-color-scheme: dark) {
.ground { fill: #0d1117 } .ink { fill: #d5dbe1 } .mark { fill: #6cb6ff } .second { fill: #f0883e }
.faint { stroke: #545d68 }
}
</style>)");
    rectangle(0, 0, width, height, "class=\"ground\"");
}

void Svg::text(double x, double y, const std::string &text, Anchor anchor) {
    const char *name = anchor == Anchor::start ? "start" : anchor == Anchor::middle ? "middle" : "end";
    raw("<text class=\"ink\" x=\"" + number(x) + "\" y=\"" + number(y) + "\" text-anchor=\"" + name + "\">" +
        escaped(text) + "</text>");
}

void Svg::rectangle(double x, double y, double width, double height, const std::string &attributes) {
    raw("<rect x=\"" + number(x) + "\" y=\"" + number(y) + "\" width=\"" + number(width) + "\" height=\"" +
        number(height) + "\" " + attributes + "/>");
}

std::string Svg::escaped(const std::string &text) {
    std::string result;
    for (const char c : text) {
        if (c == '&')
            result += "&amp;";
        else if (c == '<')
            result += "&lt;";
        else if (c == '>')
            result += "&gt;";
        else if (c == '"')
            result += "&quot;";
        else
            result += c;
    }
    return result;
}

std::string Svg::number(double value) {
    char buffer[64];
    std::snprintf(buffer, sizeof buffer, "%.6g", value);
    return buffer;
}

} // namespace annulus::cli
