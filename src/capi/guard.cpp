// SPDX-License-Identifier: Apache-2.0
// From an exception to a status and this thread's message.
#include "capi/guard.hpp"

#include <cstdio>
#include <new>

namespace annulus {

namespace {

thread_local char message_buffer[Error::max_message];
thread_local std::uint64_t bytes_needed = 0;

annulus_status keep(annulus_status status, const char *prefix, const char *message, std::uint64_t bytes = 0) noexcept {
    std::snprintf(message_buffer, sizeof message_buffer, "%s%s", prefix, message);
    bytes_needed = bytes;
    return status;
}

} // namespace

annulus_status keep_error(const Error &error) noexcept {
    return keep(error.status(), "", error.what(), error.bytes());
}

annulus_status report_exception() noexcept {
    try {
        throw;
    } catch (const Error &error) {
        return keep_error(error);
    } catch (const std::bad_alloc &) {
        return keep(ANNULUS_ERROR_MEMORY, "", "out of memory");
    } catch (const std::exception &error) {
        return keep(ANNULUS_ERROR_INTERNAL, "a defect in annulus: ", error.what());
    } catch (...) {
        return keep(ANNULUS_ERROR_INTERNAL, "a defect in annulus: ", "unknown exception");
    }
}

const char *last_message() noexcept {
    return message_buffer;
}

std::uint64_t last_bytes() noexcept {
    return bytes_needed;
}

} // namespace annulus
