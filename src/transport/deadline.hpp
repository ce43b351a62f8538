// SPDX-License-Identifier: Apache-2.0
// Until when a call waits for other ranks.
#pragma once

#include "transport/transport.hpp"

#include <algorithm>
#include <chrono>

namespace annulus {

constexpr Transport::Seconds default_timeout{300};

class Deadline {
  public:
    using Clock = std::chrono::steady_clock;

    explicit Deadline(Transport::Seconds timeout)
        : timeout_(timeout),
          time_(Clock::now() + std::chrono::duration_cast<Clock::duration>(std::min(timeout, ages))) {}

    Clock::time_point time() const { return time_; }
    bool passed() const { return Clock::now() >= time_; }
    // For messages.
    double seconds() const { return timeout_.count(); }

  private:
    // What the clock can still count.
    static constexpr Transport::Seconds ages{1e9};

    Transport::Seconds timeout_;
    Clock::time_point time_;
};

} // namespace annulus
