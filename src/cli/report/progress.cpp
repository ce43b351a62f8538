// SPDX-License-Identifier: Apache-2.0
#include "cli/report/progress.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <unistd.h>

namespace annulus::cli {

namespace {

// 1:05
std::string text(std::chrono::seconds time) {
    const long seconds = static_cast<long>(time.count());
    const std::string rest = std::to_string(seconds % 60);
    return std::to_string(seconds / 60) + (rest.size() < 2 ? ":0" : ":") + rest;
}

} // namespace

Progress::Progress(double total) : total_(total) {
    if (isatty(STDERR_FILENO) == 1)
        drawer_ = std::thread([this] { keep_drawing(); });
}

Progress::~Progress() {
    if (!drawer_.joinable())
        return;
    {
        const std::lock_guard lock(mutex_);
        is_over_ = true;
    }
    wake_.notify_all();
    drawer_.join();
}

void Progress::advance(double work) {
    {
        const std::lock_guard lock(mutex_);
        done_ += work;
    }
    wake_.notify_all();
}

void Progress::keep_drawing() {
    std::unique_lock lock(mutex_);
    std::chrono::seconds elapsed(0);
    double drawn = 0;
    while (!is_over_) {
        const auto has_news = [&] { return is_over_ || (elapsed.count() > 0 && done_ != drawn); };
        if (!wake_.wait_until(lock, start_ + elapsed + std::chrono::seconds(1), has_news))
            elapsed = std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - start_);
        if (is_over_)
            break;
        draw(elapsed);
        drawn = done_;
    }
    if (elapsed.count() > 0)
        std::fputs(erase_bar, stderr);
}

void Progress::draw(std::chrono::seconds elapsed) const {
    constexpr int cells = 40;
    const double share = std::min(done_ / total_, 1.0);
    const auto filled = static_cast<std::size_t>(share * cells);
    const std::string bar = std::string(filled, '#') + std::string(cells - filled, '.');
    std::string times = text(elapsed);
    if (share > 0) {
        const double left = static_cast<double>(elapsed.count()) / share * (1 - share);
        times += ", " + text(std::chrono::seconds(std::lround(left))) + " left";
    }
    // The line before may have been longer.
    std::fprintf(stderr, "\r[%s] %3d%% %s \x1b[K", bar.c_str(), static_cast<int>(share * 100), times.c_str());
    std::fflush(stderr);
}

} // namespace annulus::cli
