// SPDX-License-Identifier: Apache-2.0
#include "cli/report/progress.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <system_error>
#include <unistd.h>

namespace annulus::cli {

namespace {

double seconds_of(Pace::Clock::duration time) {
    return std::chrono::duration<double>(time).count();
}

// Returns text such as "1:05".
std::string time_text(std::chrono::seconds time) {
    const long seconds = static_cast<long>(time.count());
    const std::string rest = std::to_string(seconds % 60);
    return std::to_string(seconds / 60) + (rest.size() < 2 ? ":0" : ":") + rest;
}

} // namespace

void Pace::begin(double work, Clock::time_point now) {
    if (first_ == Clock::time_point())
        first_ = now;
    done_ += piece_;
    piece_ = work;
    last_ = now;
}

double Pace::share(Clock::time_point now) const {
    const double seconds_before = seconds_of(last_ - first_);
    if (done_ <= 0 || seconds_before <= 0)
        return 0;
    const double expected = done_ / seconds_before * seconds_of(now - last_);
    return std::clamp((done_ + std::min(expected, 0.95 * piece_)) / total_, 0.0, 1.0);
}

std::string Pace::text(Clock::time_point now, std::chrono::seconds elapsed) const {
    const double done = share(now);
    std::string text = std::to_string(static_cast<int>(done * 100)) + "% " + time_text(elapsed);
    if (done > 0) {
        const double left = seconds_of(now - first_) / done * (1 - done);
        text += ", " + time_text(std::chrono::seconds(std::lround(left))) + " left";
    }
    return text;
}

Progress::Progress(double total, Place place) : place_(place), pace_(total) {
    try {
        printer_ = std::thread([this] { keep_showing(); });
    } catch (const std::system_error &) { // without a thread the job runs and shows nothing
    }
}

Progress::~Progress() {
    if (!printer_.joinable())
        return;
    {
        const std::lock_guard lock(mutex_);
        is_over_ = true;
    }
    wake_.notify_all();
    printer_.join();
}

void Progress::begin(double work) {
    const std::lock_guard lock(mutex_);
    pace_.begin(work, Clock::now());
}

Progress::Place Progress::standard_error() {
    const bool is_terminal = isatty(STDERR_FILENO) == 1;
    return {stderr, is_terminal, is_terminal ? std::chrono::seconds(1) : std::chrono::minutes(1)};
}

void Progress::keep_showing() {
    std::unique_lock lock(mutex_);
    bool has_shown = false;
    for (Clock::time_point next = start_ + place_.period; !wake_.wait_until(lock, next, [this] { return is_over_; });
         next += place_.period) {
        show(Clock::now());
        has_shown = true;
    }
    if (has_shown && place_.is_terminal)
        std::fputs(erase_bar, place_.file);
}

void Progress::show(Clock::time_point now) const {
    const std::string text = pace_.text(now, std::chrono::duration_cast<std::chrono::seconds>(now - start_));
    if (place_.is_terminal) {
        constexpr int cells = 40;
        const auto filled = static_cast<std::size_t>(pace_.share(now) * cells);
        const std::string bar = std::string(filled, '#') + std::string(cells - filled, '.');
        // The line before may have been longer.
        std::fprintf(place_.file, "\r[%s] %s \x1b[K", bar.c_str(), text.c_str());
    } else {
        std::fprintf(place_.file, "annulus: %s\n", text.c_str());
    }
    std::fflush(place_.file);
}

} // namespace annulus::cli
