// SPDX-License-Identifier: Apache-2.0
// The border between C++ inside and C outside: no exception passes it.
#pragma once

#include "core/error.hpp"

#include <annulus/status.h>

#include <pthread.h>

#include <cstdint>
#include <utility>

namespace annulus {

// Keeps an error's message, bytes, library and code for the functions below. Returns its status.
annulus_status keep_error(const Error &error) noexcept;

// Keeps the exception that is being handled, as keep_error() does. Returns its status.
annulus_status report_exception() noexcept;

// Return what is kept of this thread's last failed call. The library is the one that failed, "" if none did. The bytes
// are of the workspace that the call needed. The code is what the library's function returned.
const char *last_message() noexcept;
std::uint64_t last_bytes() noexcept;
const char *last_library() noexcept;
std::int64_t last_code() noexcept;

// Delays a pthread_cancel() of the calling thread as long as it lives. Cancellation unwinds the stack, which C++ in a
// library does not survive.
class CancellationOff {
  public:
    CancellationOff() { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_); }
    ~CancellationOff() { pthread_setcancelstate(before_, nullptr); }
    CancellationOff(const CancellationOff &) = delete;
    CancellationOff &operator=(const CancellationOff &) = delete;

  private:
    int before_ = PTHREAD_CANCEL_ENABLE;
};

// Runs the body of a public function. Returns ANNULUS_OK, or the status of the exception that the body threw.
template <class Body> annulus_status guard(Body &&body) noexcept {
    const CancellationOff cancellation_off;
    try {
        std::forward<Body>(body)();
        return ANNULUS_OK;
    } catch (...) {
        return report_exception();
    }
}

} // namespace annulus
