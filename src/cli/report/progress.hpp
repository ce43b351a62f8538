// SPDX-License-Identifier: Apache-2.0
// How far a job is, on standard error. On a terminal it is a bar, which comes once the job has run for a second and
// then changes every second. Elsewhere, as in the log of a batch job, it is a line a minute.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <string>
#include <thread>

namespace annulus::cli {

// To the first column of a terminal, and off with what is in the line.
inline constexpr const char *erase_bar = "\r\x1b[K";

// The share of a job that is done, and the time that is left, by the work of its pieces. Within a piece the share grows
// at the rate of the pieces before.
class Pace {
  public:
    using Clock = std::chrono::steady_clock;

    // `total` is the work of all pieces in any unit, such as FLOPs.
    explicit Pace(double total) : total_(total) {}

    // The piece that was begun before is done, and one of `work` begins.
    void begin(double work, Clock::time_point now);

    // From 0 to 1. A piece that takes longer than expected stays at 95 % of its work until the next one begins.
    double share(Clock::time_point now) const;
    // Such as "34% 1:05, 2:10 left"; `elapsed` since the job began. Without "left" while no piece is done.
    std::string text(Clock::time_point now, std::chrono::seconds elapsed) const;

  private:
    double total_;
    double done_ = 0, piece_ = 0;
    Clock::time_point first_, last_; // when the first piece began, and when the last one
};

// Shows the pace of a job until it is destroyed.
class Progress {
  public:
    struct Place {
        std::FILE *file;
        bool is_terminal;
        std::chrono::milliseconds period; // a bar or a line each
    };

    explicit Progress(double total, Place place = standard_error());
    ~Progress(); // takes the bar off the screen
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
    std::thread shower_;
};

} // namespace annulus::cli
