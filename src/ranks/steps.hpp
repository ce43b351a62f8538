// SPDX-License-Identifier: Apache-2.0
// How much planning a rank's messages may take.
#pragma once

#include <algorithm>
#include <cstdint>

namespace annulus {

// What planning may cost a rank, in steps of some ten nanoseconds: a branch of a key/value head in a message, a class
// of rows that is held against another, a position at the border of a shard in the Hilbert order, a row that is told by
// nothing shorter. An estimate answers at once or not at all. A call's limit is there for what has no end: its steps of
// the last kind are its rows to send and to receive, which take longer themselves.
constexpr std::int64_t estimate_steps = std::int64_t{1} << 21, call_steps = std::int64_t{1} << 36;

// What a message, which is several allocations, takes besides.
constexpr std::int64_t steps_of_message = 16;

// The pairs of a sender's and a receiver's shard that a rank may plan for: its plan takes about a kilobyte for each,
// and each needs a message of its own, however few rows it has.
constexpr std::int64_t most_shard_pairs = std::int64_t{1} << 19;

// What is left of the steps that planning may take.
class Steps {
  public:
    explicit Steps(std::int64_t most) : most_(most), left_(most) {}

    // False, and nothing left, where there are not as many.
    bool take(std::int64_t steps) {
        left_ = steps <= left_ ? left_ - steps : -1;
        return left_ >= 0;
    }
    bool ran_out() const { return left_ < 0; }
    std::int64_t left() const { return std::max<std::int64_t>(0, left_); }
    std::int64_t most() const { return most_; }

  private:
    std::int64_t most_, left_;
};

// a b for numbers of steps, of which 2^61 and more are all the same.
constexpr std::int64_t product(std::int64_t a, std::int64_t b) {
    constexpr std::int64_t most = std::int64_t{1} << 61;
    return a != 0 && b > most / a ? most : a * b;
}

} // namespace annulus
