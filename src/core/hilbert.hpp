// SPDX-License-Identifier: Apache-2.0
// The order in which the positions of a segment are numbered: linear, or along the generalised Hilbert curve of the
// segment's grid. Both directions are closed form: descents through the curve's recursion, without a table, in
// O(log length) steps a position. All is constexpr, so that GPU kernels can call it as well.
//
// The curve enters a rectangle of `major` x `minor` cells at a corner and leaves it at the other end of the major side.
// The rectangle is cut into parts that are such rectangles themselves:
//
//   long (major > 3/2 minor)        else: up, across, down
//
//   +--------+--------+             +-----------------+      minor
//   |        |        |             |        2        |        ^
//   |   1    |   2    |             +--------+--------+        |
//   |        |        |             |   1    |   3    |        |
//   in-------+------out             in-------+------out        +----> major
//
// Parts 1 and 3 of the second cut have their major side along the minor side of the whole. Part 3 is walked from its
// far corner back, with both directions reversed. Only a rectangle with an odd major and an even minor side needs a
// diagonal step. Therefore the side that becomes the major side of part 1 is cut at an even number where it can be.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace annulus {

// The numbers begin … end - 1, for example steps of a curve or residues.
struct Interval {
    std::int64_t begin, end;
    std::int64_t length() const { return end - begin; }
    bool operator==(const Interval &) const = default;
};

class Curve {
  public:
    // The order 0, 1, 2, …
    static constexpr Curve linear(std::int64_t length) { return Curve(length, length); }
    // The curve of the row-major (length / width) x width grid; width divides length.
    static constexpr Curve hilbert(std::int64_t length, std::int64_t width) { return Curve(length, width); }
    // Returns the smallest divisor of length that is at least sqrt(length).
    static std::int64_t automatic_width(std::int64_t length);

    constexpr Curve() = default;

    constexpr std::int64_t length() const { return length_; }
    constexpr std::int64_t width() const { return width_; }
    // A grid of one row or one column is walked from end to end.
    constexpr bool is_linear() const { return width_ == length_ || width_ == 1; }

    // Returns the position that the curve visits at step `place`; 0 <= place < length.
    constexpr std::int64_t position(std::int64_t place) const;
    // Returns the step at which the curve visits `position`: the inverse of position().
    constexpr std::int64_t place(std::int64_t position) const;

    // Returns the places of the positions from … to - 1, as the fewest possible runs, in order.
    // The border of the window runs along two rows of the grid. Every other part of the curve is inside the window or
    // outside it as a whole. Therefore the number of runs and the time to find them are O(border()).
    std::vector<Interval> runs(std::int64_t from, std::int64_t to) const;
    // Upper bound for the positions of the window from … to - 1 that have neighbours outside it.
    std::int64_t border(std::int64_t from, std::int64_t to) const {
        return is_linear() ? 1 : std::min(to - from, width_ > (to - from) / 2 ? to - from : 2 * width_);
    }

  private:
    constexpr Curve(std::int64_t length, std::int64_t width) : length_(length), width_(width) {}

    std::int64_t length_ = 0;
    std::int64_t width_ = 0;
};

// A rectangle of the grid that the recursion reaches. The two directions are always reversed together.
struct CurveRectangle {
    std::int64_t major;
    std::int64_t minor;
    std::int64_t reversed = 0; // 1: walked towards smaller rows and columns

    constexpr bool is_line() const { return major == 1 || minor == 1; }
    constexpr bool is_long() const { return 2 * major > 3 * minor; }

    // Returns half of a side, rounded towards smaller rows and columns, whichever way it is walked.
    constexpr std::int64_t half(std::int64_t side) const { return (side + reversed) >> 1; }
    // Returns half of a side, made even if the side is longer than 2.
    constexpr std::int64_t even_half(std::int64_t side) const {
        const std::int64_t h = half(side);
        return h + (h & (side > 2));
    }
};

// The longer side of the grid is the major one; if the sides are equal, the direction along rows.
constexpr bool starts_along_rows(std::int64_t rows, std::int64_t columns) {
    return columns >= rows;
}

constexpr std::int64_t Curve::position(std::int64_t place) const {
    if (is_linear())
        return place;
    const std::int64_t rows = length_ / width_;
    CurveRectangle rectangle{std::max(rows, width_), std::min(rows, width_)};
    // The first cell of the part, and how much a step along its sides adds to a position.
    std::int64_t corner = 0, along_major = 1, along_minor = width_;
    if (!starts_along_rows(rows, width_))
        std::swap(along_major, along_minor);

    while (!rectangle.is_line()) {
        if (rectangle.is_long()) {
            // A mask of all bits or none: a branch would be mispredicted half of the time.
            const std::int64_t first = rectangle.even_half(rectangle.major);
            const std::int64_t beyond = -std::int64_t{place >= first * rectangle.minor};
            place -= first * rectangle.minor & beyond;
            corner += first * along_major & beyond;
            rectangle.major = first + ((rectangle.major - 2 * first) & beyond);
            continue;
        }
        const std::int64_t up = rectangle.even_half(rectangle.minor);
        const std::int64_t left = rectangle.half(rectangle.major);
        const std::int64_t before_across = up * left;
        const std::int64_t before_down = before_across + rectangle.major * (rectangle.minor - up);
        if (place < before_across) {
            rectangle.major = up;
            rectangle.minor = left;
            std::swap(along_major, along_minor);
        } else if (place < before_down) {
            place -= before_across;
            corner += up * along_minor;
            rectangle.minor -= up;
        } else {
            place -= before_down;
            corner += (rectangle.major - 1) * along_major + (up - 1) * along_minor;
            rectangle = {up, rectangle.major - left, rectangle.reversed ^ 1};
            along_major = -std::exchange(along_minor, -along_major);
        }
    }
    return corner + place * (rectangle.minor == 1 ? along_major : along_minor);
}

constexpr std::int64_t Curve::place(std::int64_t position) const {
    if (is_linear())
        return position;
    const std::int64_t rows = length_ / width_;
    CurveRectangle rectangle{std::max(rows, width_), std::min(rows, width_)};
    // Coordinates of the position inside the part, relative to its first cell.
    std::int64_t on_major = position % width_, on_minor = position / width_;
    if (!starts_along_rows(rows, width_))
        std::swap(on_major, on_minor);

    std::int64_t place = 0;
    while (!rectangle.is_line()) {
        if (rectangle.is_long()) {
            const std::int64_t first = rectangle.even_half(rectangle.major);
            if (on_major < first) {
                rectangle.major = first;
            } else {
                place += first * rectangle.minor;
                on_major -= first;
                rectangle.major -= first;
            }
            continue;
        }
        const std::int64_t up = rectangle.even_half(rectangle.minor);
        const std::int64_t left = rectangle.half(rectangle.major);
        if (on_minor >= up) {
            place += up * left;
            on_minor -= up;
            rectangle.minor -= up;
        } else if (on_major < left) {
            rectangle.major = up;
            rectangle.minor = left;
            std::swap(on_major, on_minor);
        } else {
            place += up * left + rectangle.major * (rectangle.minor - up);
            on_major = up - 1 - std::exchange(on_minor, rectangle.major - 1 - on_major);
            rectangle = {up, rectangle.major - left, rectangle.reversed ^ 1};
        }
    }
    return place + (rectangle.minor == 1 ? on_major : on_minor);
}

} // namespace annulus
