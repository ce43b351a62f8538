// SPDX-License-Identifier: Apache-2.0
// The border between C++ inside and C outside: no exception passes it.
#pragma once

#include <annulus/status.h>

#include <cstdint>
#include <utility>

namespace annulus {

// The status of the exception being handled; keeps its message for annulus_last_error(), and its bytes.
annulus_status report_exception() noexcept;

// The message of this thread's last failed call, and the workspace that it would have needed.
const char *last_message() noexcept;
std::uint64_t last_bytes() noexcept;

// Runs the body of a public function.
template <class Body> annulus_status guard(Body &&body) noexcept {
    try {
        std::forward<Body>(body)();
        return ANNULUS_OK;
    } catch (...) {
        return report_exception();
    }
}

} // namespace annulus
