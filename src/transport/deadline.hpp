// SPDX-License-Identifier: Apache-2.0
// The time until which a call waits for other ranks.
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
          time_(Clock::now() + std::chrono::duration_cast<Clock::duration>(std::min(timeout, max_timeout))) {}

    Clock::time_point time() const { return time_; }
    bool passed() const { return Clock::now() >= time_; }
    // The timeout, for messages.
    double seconds() const { return timeout_.count(); }

  private:
    // The longest time that the clock can still add.
    static constexpr Transport::Seconds max_timeout{1e9};

    Transport::Seconds timeout_;
    Clock::time_point time_;
};

} // namespace annulus
