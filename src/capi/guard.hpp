// SPDX-License-Identifier: Apache-2.0
// The border between C++ inside and C outside: no exception passes it.
#pragma once

#include "core/error.hpp"

#include <annulus/status.h>

#include <pthread.h>

#include <cstdint>
#include <utility>

namespace annulus {

// Keeps an error's message for annulus_last_error(), and what else the caller may ask for. Returns its status.
annulus_status keep_error(const Error &error) noexcept;

// The status of the exception being handled; keeps it as keep_error() does.
annulus_status report_exception() noexcept;

// What this thread's last failed call left: its message, the bytes of workspace that it lacked, the name of the library
// that failed ("" where none did), and the number that the library's function returned.
const char *last_message() noexcept;
std::uint64_t last_bytes() noexcept;
const char *last_library() noexcept;
std::int64_t last_code() noexcept;

// Lets pthread_cancel() of the calling thread wait: it unwinds the stack, which C++ inside a library does not survive.
class CancellationOff {
  public:
    CancellationOff() { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_); }
    ~CancellationOff() { pthread_setcancelstate(before_, nullptr); }
    CancellationOff(const CancellationOff &) = delete;
    CancellationOff &operator=(const CancellationOff &) = delete;

  private:
    int before_ = PTHREAD_CANCEL_ENABLE;
};

// Runs the body of a public function.
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
