// SPDX-License-Identifier: Apache-2.0
// A drawing in SVG on a transparent ground. Its colours are readable on light and dark pages, for example on GitHub. A
// page may be dark although the browser's preference is light.
#pragma once

#include <string>

namespace annulus::cli {

// Elements have these CSS classes: `ink` for text, `mark` and `second` for data, `line` and `border` for lines in data,
// `faint` for frames.
class Svg {
  public:
    // Sizes and positions count from the upper left corner. Their unit is `pixels` pixels.
    Svg(double width, double height, const std::string &title, double pixels = 1);

    enum class Anchor { start, middle, end };
    void text(double x, double y, const std::string &text, Anchor anchor = Anchor::start);
    void rectangle(double x, double y, double width, double height, const std::string &attributes);
    // Adds an element as it is.
    void raw(const std::string &element) { body_ += element + "\n"; }

    std::string document() const { return body_ + "</svg>\n"; }

    // Returns the text with the characters escaped that text and attributes must not have.
    static std::string escaped(const std::string &text);
    static std::string number(double value); // without trailing zeros

  private:
    std::string body_;
};

} // namespace annulus::cli
