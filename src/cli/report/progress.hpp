// SPDX-License-Identifier: Apache-2.0
// Shows how far a job is, on standard error. On a terminal it is a bar, which appears after a second and changes every
// second. Elsewhere, for example in the log of a batch job, it is a line a minute.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <string>
#include <thread>

namespace annulus::cli {

// Clears the current line of a terminal.
inline constexpr const char *erase_bar = "\r\x1b[K";

// Estimates the share of a job that is done, and the time until its end, from the work of its pieces. Within a piece
// the share grows at the rate of the pieces before.
class Pace {
  public:
    using Clock = std::chrono::steady_clock;

    // `total` is the work of all pieces, in any unit, such as FLOPs.
    explicit Pace(double total) : total_(total) {}

    // Ends the piece before and begins one of `work`.
    void begin(double work, Clock::time_point now);

    // Returns the share from 0 to 1. A piece that takes longer than expected stays at 95 % of its work until the next
    // one begins.
    double share(Clock::time_point now) const;
    // Returns text such as "34% 1:05, 2:10 left". `elapsed` counts from the job's begin. Until a piece is done, there
    // is no "left".
    std::string text(Clock::time_point now, std::chrono::seconds elapsed) const;

  private:
    double total_;
    double done_ = 0, piece_ = 0;
    Clock::time_point first_, last_; // begin of the first piece, and of the last one
};

// Shows the pace of a job until it is destroyed.
class Progress {
  public:
    struct Place {
        std::FILE *file;
        bool is_terminal;
        std::chrono::milliseconds period; // time between two bars or lines
    };

    explicit Progress(double total, Place place = standard_error());
    ~Progress(); // removes the bar from the screen
    Progress(const Progress &) = delete;
    Progress &operator=(const Progress &) = delete;

    void begin(double work);

  private:
    using Clock = Pace::Clock;
    static Place standard_error();
    void keep_showing();
    void show(Clock::time_point now) const;

    const Place place_;
    const Clock::time_point start_ = Clock::now();
    std::mutex mutex_;
    std::condition_variable wake_;
    Pace pace_;
    bool is_over_ = false;
    std::thread printer_;
};

} // namespace annulus::cli
