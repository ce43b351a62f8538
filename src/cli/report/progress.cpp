// SPDX-License-Identifier: Apache-2.0
#include "cli/report/progress.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <unistd.h>

namespace annulus::cli {

Progress::Progress(double total) : terminal_(isatty(STDERR_FILENO) == 1), total_(total) {}

Progress::~Progress() {
    if (drawn_)
        std::fputs(erase_bar, stderr);
}

void Progress::advance(double work) {
    done_ += work;
    const double seconds = std::chrono::duration<double>(Clock::now() - start_).count();
    if (terminal_ && seconds > 1)
        draw(seconds);
}

void Progress::draw(double seconds) {
    constexpr int cells = 40;
    const double share = std::min(done_ / total_, 1.0);
    const auto filled = static_cast<std::size_t>(share * cells);
    const auto left = std::lround(seconds / share * (1 - share));
    const std::string bar = std::string(filled, '#') + std::string(cells - filled, '.');
    std::fprintf(stderr, "\r[%s] %3d%% %ld:%02ld left ", bar.c_str(), static_cast<int>(share * 100), left / 60,
                 left % 60);
    std::fflush(stderr);
    drawn_ = true;
}

} // namespace annulus::cli
