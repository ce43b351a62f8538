// SPDX-License-Identifier: Apache-2.0
// The error with which a transport broke.
#pragma once

#include "core/error.hpp"

#include <atomic>
#include <mutex>
#include <optional>

namespace annulus {

// Holds the first error that is kept and ignores all later ones. Any thread may use it; no reader waits.
class FirstFailure {
  public:
    void keep(const Error &error) noexcept {
        const std::lock_guard lock(keeping_);
        if (has_error_)
            return;
        error_ = error;
        has_error_ = true; // from here on other threads read error_
    }

    explicit operator bool() const { return has_error_; }
    std::optional<Error> get() const { return has_error_ ? error_ : std::nullopt; }
    // Throws the error if there is one.
    void check() const {
        if (has_error_)
            throw *error_;
    }

  private:
    std::mutex keeping_;
    std::optional<Error> error_;
    std::atomic<bool> has_error_ = false;
};

} // namespace annulus
