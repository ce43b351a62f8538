// SPDX-License-Identifier: Apache-2.0
// The only exception of the library: a status with its message. The message is in a fixed buffer, so that throwing
// needs no memory except for the exception object itself.
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

    // For ANNULUS_ERROR_WORKSPACE: returns the same error with the number of bytes that would have sufficed.
    Error needing(std::uint64_t bytes) &&noexcept {
        bytes_ = bytes;
        return *this;
    }
    std::uint64_t bytes() const noexcept { return bytes_; }

    // Returns the same error as the failure of a library's function that returned `code`. `library` is a static string.
    Error from(const char *library, std::int64_t code) &&noexcept {
        library_ = library;
        code_ = code;
        return *this;
    }
    const char *library() const noexcept { return library_; }
    std::int64_t code() const noexcept { return code_; }

    // Returns the same error for a call that may have written a part of its outputs. If the status says that nothing
    // was written, it is replaced by `status`.
    Error in_the_middle(annulus_status status) const noexcept {
        Error copy = *this;
        if (status_ < first_status_of_partly_written)
            copy.status_ = status;
        return copy;
    }

    static constexpr int max_message = 512;

  private:
    static constexpr int first_status_of_partly_written = 100; // annulus/status.h

    annulus_status status_;
    std::uint64_t bytes_ = 0;
    const char *library_ = "";
    std::int64_t code_ = 0;
    char message_[max_message];
};

} // namespace annulus
