// SPDX-License-Identifier: Apache-2.0
#include "cli/report/svg.hpp"

#include "cli/report/text.hpp"

namespace annulus::cli {

Svg::Svg(double width, double height, const std::string &title, double pixels) {
    const std::string size = number(width * pixels) + "\" height=\"" + number(height * pixels);
    raw("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" + size + "\" viewBox=\"0 0 " + number(width) + " " +
        number(height) + "\">\n<title>" + escaped(title) + R"(</title>
<style>
text { font: 12px sans-serif }
.ink { fill: #767b82 } .mark { fill: #2a7fd6 } .second { fill: #cf6a12 }
.line { fill: none; stroke: #767b82 } .border { fill: none; stroke: #cf6a12 }
.faint { fill: none; stroke: #767b82; stroke-opacity: 0.5 }
</style>)");
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
    return number_text(value, 6);
}

} // namespace annulus::cli
