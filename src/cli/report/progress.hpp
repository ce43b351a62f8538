// SPDX-License-Identifier: Apache-2.0
// A progress bar on standard error: only when that is a terminal, and only once a job has run for a second. From then
// on it shows how long the job has run, and changes every second, however long a piece of the job takes.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

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
    void keep_drawing();
    void draw(std::chrono::seconds elapsed) const;

    const double total_;
    const Clock::time_point start_ = Clock::now();
    std::mutex mutex_;
    std::condition_variable wake_;
    double done_ = 0;
    bool is_over_ = false;
    std::thread drawer_; // none where nobody sees it
};

} // namespace annulus::cli
