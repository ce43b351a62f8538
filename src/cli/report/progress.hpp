// SPDX-License-Identifier: Apache-2.0
// A progress bar on standard error: only when that is a terminal, and only once a job has run for a second.
#pragma once

#include <chrono>
#include <cstddef>

namespace annulus::cli {

// To the first column of a terminal, and off with what is in the line.
inline constexpr const char *erase_bar = "\r\x1b[K";

class Progress {
  public:
    // `total` is the work in any unit.
    explicit Progress(double total);
    ~Progress(); // takes the bar off the screen
    Progress(const Progress &) = delete;
    Progress &operator=(const Progress &) = delete;

    void advance(double work);

  private:
    using Clock = std::chrono::steady_clock;
    void draw(double seconds);

    bool terminal_;
    bool drawn_ = false;
    double total_;
    double done_ = 0;
    Clock::time_point start_ = Clock::now();
};

} // namespace annulus::cli
