// SPDX-License-Identifier: Apache-2.0
// A drawing in SVG on a transparent ground. Its colours are readable on white and on the dark pages of GitHub and of
// the site alike: a page may be dark where the browser's preference is light.
#pragma once

#include <string>

namespace annulus::cli {

// The classes of what is drawn: `ink` for text, `mark` and `second` for what is shown, `line` and `border` for lines in
// it, `faint` for frames.
class Svg {
  public:
    // Sizes and places are in pixels, from the upper left corner.
    Svg(double width, double height, const std::string &title);

    enum class Anchor { start, middle, end };
    void text(double x, double y, const std::string &text, Anchor anchor = Anchor::start);
    void rectangle(double x, double y, double width, double height, const std::string &attributes);
    // SVG as it is.
    void raw(const std::string &element) { body_ += element + "\n"; }

    std::string document() const { return body_ + "</svg>\n"; }

    // As text and as an attribute may have it.
    static std::string escaped(const std::string &text);
    static std::string number(double value); // without trailing zeros

  private:
    std::string body_;
};

} // namespace annulus::cli
