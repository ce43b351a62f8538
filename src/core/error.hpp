// SPDX-License-Identifier: Apache-2.0
// The one exception of the library: a status with its message, in a fixed buffer so that throwing it needs no memory
// beyond the exception object itself.
#pragma once

#include <annulus/status.h>

#include <cstdint>
#include <exception>

namespace annulus {

class Error : public std::exception {
  public:
    // printf-style. The message names the argument, the value it had and what it may be.
    Error(annulus_status status, const char *format, ...) noexcept __attribute__((format(printf, 3, 4)));

    annulus_status status() const noexcept { return status_; }
    const char *what() const noexcept override { return message_; }

    // For ANNULUS_ERROR_WORKSPACE: the same error with the bytes that would have been enough.
    Error needing(std::uint64_t bytes) &&noexcept {
        bytes_ = bytes;
        return *this;
    }
    std::uint64_t bytes() const noexcept { return bytes_; }

    static constexpr int max_message = 512;

  private:
    annulus_status status_;
    std::uint64_t bytes_ = 0;
    char message_[max_message];
};

} // namespace annulus
