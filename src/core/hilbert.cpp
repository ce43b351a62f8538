// SPDX-License-Identifier: Apache-2.0
#include "core/hilbert.hpp"

#include "core/divisors.hpp"
#include "core/progression.hpp"

#include <cstdlib>

namespace annulus {

namespace {

// Collects the runs of a window of positions while it descends through the curve's recursion.
class RunFinder {
  public:
    RunFinder(std::int64_t width, std::int64_t from, std::int64_t to) : width_(width), from_(from), to_(to) {}

    std::vector<Interval> take() { return std::move(runs_); }

    // Adds the runs of a part of the grid. Its first cell is the position `corner`. A step along its sides adds
    // `along_major` or `along_minor` to the position. The curve enters the part at step `place`.
    void visit(const CurveRectangle &rectangle, std::int64_t corner, std::int64_t along_major, std::int64_t along_minor,
               std::int64_t place) {
        const std::int64_t major_end = (rectangle.major - 1) * along_major,
                           minor_end = (rectangle.minor - 1) * along_minor;
        const std::int64_t lowest =
            corner + std::min<std::int64_t>(0, major_end) + std::min<std::int64_t>(0, minor_end);
        const std::int64_t highest =
            corner + std::max<std::int64_t>(0, major_end) + std::max<std::int64_t>(0, minor_end);
        if (lowest >= from_ && highest < to_)
            return add({place, place + rectangle.major * rectangle.minor});
        if (!meets_window(lowest, highest))
            return;
        if (rectangle.is_line())
            return add_line(corner, rectangle.minor == 1 ? along_major : along_minor, rectangle.major * rectangle.minor,
                            place);
        if (rectangle.is_long()) {
            const std::int64_t first = rectangle.even_half(rectangle.major);
            visit({first, rectangle.minor, rectangle.reversed}, corner, along_major, along_minor, place);
            visit({rectangle.major - first, rectangle.minor, rectangle.reversed}, corner + first * along_major,
                  along_major, along_minor, place + first * rectangle.minor);
            return;
        }
        const std::int64_t up = rectangle.even_half(rectangle.minor), left = rectangle.half(rectangle.major),
                           right = rectangle.major - left;
        visit({up, left, rectangle.reversed}, corner, along_minor, along_major, place);
        visit({rectangle.major, rectangle.minor - up, rectangle.reversed}, corner + up * along_minor, along_major,
              along_minor, place + up * left);
        visit({up, right, rectangle.reversed ^ 1},
              corner + (rectangle.major - 1) * along_major + (up - 1) * along_minor, -along_minor, -along_major,
              place + up * left + rectangle.major * (rectangle.minor - up));
    }

  private:
    // True if the rectangle with these lowest and highest positions has a position in the window.
    bool meets_window(std::int64_t lowest, std::int64_t highest) const {
        if (lowest >= from_ || highest < from_)
            return lowest < to_ && highest >= from_;
        // The rectangle's lowest position that is not before the window lies in the row where the window begins, or in
        // the next row.
        const std::int64_t row_start = from_ - from_ % width_, column = lowest % width_;
        const bool in_row = row_start + highest % width_ >= from_;
        return (in_row ? std::max(from_, row_start + column) : row_start + width_ + column) < to_;
    }

    // Adds the runs of a line of `cells` cells that begins at `corner`.
    void add_line(std::int64_t corner, std::int64_t step, std::int64_t cells, std::int64_t place) {
        // A line that is walked towards smaller positions is clipped from its other end.
        const std::int64_t stride = std::abs(step), first = step > 0 ? corner : corner + (cells - 1) * step;
        const Progression inside = clip({first, stride, cells}, from_, to_);
        if (inside.count == 0)
            return;
        const std::int64_t skipped = (inside.first - first) / stride;
        const std::int64_t begin = place + (step > 0 ? skipped : cells - skipped - inside.count);
        add({begin, begin + inside.count});
    }

    void add(const Interval &run) {
        if (!runs_.empty() && runs_.back().end == run.begin)
            runs_.back().end = run.end;
        else
            runs_.push_back(run);
    }

    const std::int64_t width_, from_, to_;
    std::vector<Interval> runs_;
};

} // namespace

std::int64_t Curve::automatic_width(std::int64_t length) {
    // The divisors come in pairs: the largest one up to sqrt(length) pairs with the smallest one from there on.
    return length / largest_divisor_to_root(length);
}

std::vector<Interval> Curve::runs(std::int64_t from, std::int64_t to) const {
    if (from >= to)
        return {};
    if (is_linear())
        return {{from, to}};
    const std::int64_t rows = length_ / width_;
    std::int64_t along_major = 1, along_minor = width_;
    if (!starts_along_rows(rows, width_))
        std::swap(along_major, along_minor);
    RunFinder finder(width_, from, to);
    finder.visit({std::max(rows, width_), std::min(rows, width_)}, 0, along_major, along_minor, 0);
    return finder.take();
}

} // namespace annulus
