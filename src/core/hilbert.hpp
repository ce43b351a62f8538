// SPDX-License-Identifier: Apache-2.0
// The order in which the positions of a segment are numbered: linear, or along the generalised Hilbert curve of the
// segment's grid. Closed form in both directions: no table, O(log length) a position.
#pragma once

#include <cstdint>

namespace annulus {

class Curve {
  public:
    // 0, 1, 2, …
    static Curve linear(std::int64_t length) { return Curve(length, length); }
    // The curve of the row-major (length / width) x width grid; width divides length.
    static Curve hilbert(std::int64_t length, std::int64_t width) { return Curve(length, width); }
    // The smallest divisor of length that is at least sqrt(length).
    static std::int64_t automatic_width(std::int64_t length);

    Curve() = default;

    std::int64_t length() const { return length_; }
    std::int64_t width() const { return width_; }
    // A single row or column is walked from end to end.
    bool is_linear() const { return width_ == length_ || width_ == 1; }

    // The position that the curve visits at step `index`; 0 <= index < length.
    std::int64_t position(std::int64_t index) const;
    // The step at which the curve visits `position`: the inverse of position().
    std::int64_t index(std::int64_t position) const;

  private:
    Curve(std::int64_t length, std::int64_t width) : length_(length), width_(width) {}

    std::int64_t length_ = 0;
    std::int64_t width_ = 0;
};

} // namespace annulus
