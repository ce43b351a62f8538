// SPDX-License-Identifier: Apache-2.0
// Limits for the planning of a rank's messages.
#pragma once

#include <algorithm>
#include <cstdint>

namespace annulus {

// How many steps a rank's planning may take. A step takes about ten nanoseconds. It is one of:
//
// - a branch of a key/value head in a message
// - a comparison of two classes of rows
// - a position at the border of a shard in the Hilbert order
// - a row that has no closed form
//
// An estimate must answer at once, or fail. A call's limit only stops planning that would hardly end: its last kind of
// steps are rows that it sends or receives, and the transfer takes longer than the steps.
constexpr std::int64_t estimate_planning_steps = std::int64_t{1} << 21, call_planning_steps = std::int64_t{1} << 36;

// Further steps of a message, for its allocations.
constexpr std::int64_t steps_per_message = 16;

// The most (sending shard, receiving shard) pairs that a rank may plan for. Each pair takes about a kilobyte of its
// plan, and needs a message of its own even for a single row.
constexpr std::int64_t max_shard_pairs = std::int64_t{1} << 19;

// Counts the steps of planning down from a limit.
class Steps {
  public:
    explicit Steps(std::int64_t limit) : limit_(limit), left_(limit) {}

    // Subtracts `steps` from the steps left. Returns false if there are too few; then no step is left.
    bool take(std::int64_t steps) {
        left_ = steps <= left_ ? left_ - steps : -1;
        return left_ >= 0;
    }
    bool ran_out() const { return left_ < 0; }
    std::int64_t left() const { return std::max<std::int64_t>(0, left_); }
    std::int64_t limit() const { return limit_; }

  private:
    std::int64_t limit_, left_;
};

// Returns a * b for numbers of steps, at most 2^61.
constexpr std::int64_t product(std::int64_t a, std::int64_t b) {
    constexpr std::int64_t limit = std::int64_t{1} << 61;
    return a != 0 && b > limit / a ? limit : a * b;
}

} // namespace annulus
