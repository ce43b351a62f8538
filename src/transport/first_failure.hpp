// SPDX-License-Identifier: Apache-2.0
// The error with which a transport broke.
#pragma once

#include "core/error.hpp"

#include <atomic>
#include <mutex>
#include <optional>

namespace annulus {

// Empty until an error is kept; never another one after that. Any thread, and asking waits for nobody.
class FirstFailure {
  public:
    void keep(const Error &error) noexcept {
        const std::lock_guard lock(keeping_);
        if (is_there_)
            return;
        error_ = error;
        is_there_ = true; // from here on others read error_
    }

    explicit operator bool() const { return is_there_; }
    std::optional<Error> get() const { return is_there_ ? error_ : std::nullopt; }
    // Throws the error where there is one.
    void check() const {
        if (is_there_)
            throw *error_;
    }

  private:
    std::mutex keeping_;
    std::optional<Error> error_;
    std::atomic<bool> is_there_ = false;
};

} // namespace annulus
