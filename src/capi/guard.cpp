// SPDX-License-Identifier: Apache-2.0
// Turns an exception into a status and this thread's message.
#include "capi/guard.hpp"

#include <cstdio>
#include <new>

namespace annulus {

namespace {

thread_local char message_buffer[Error::max_message];
thread_local std::uint64_t bytes_needed = 0;
thread_local const char *failed_library = "";
thread_local std::int64_t library_code = 0;

} // namespace

annulus_status keep_error(const Error &error) noexcept {
    std::snprintf(message_buffer, sizeof message_buffer, "%s", error.what());
    bytes_needed = error.bytes();
    failed_library = error.library();
    library_code = error.code();
    return error.status();
}

annulus_status report_exception() noexcept {
    try {
        throw;
    } catch (const Error &error) {
        return keep_error(error);
    } catch (const std::bad_alloc &) {
        return keep_error(Error(ANNULUS_ERROR_MEMORY, "out of memory"));
    } catch (const std::exception &error) {
        return keep_error(Error(ANNULUS_ERROR_INTERNAL, "a defect in annulus: %s", error.what()));
    } catch (...) {
        return keep_error(Error(ANNULUS_ERROR_INTERNAL, "a defect in annulus: unknown exception"));
    }
}

const char *last_message() noexcept {
    return message_buffer;
}

std::uint64_t last_bytes() noexcept {
    return bytes_needed;
}

const char *last_library() noexcept {
    return failed_library;
}

std::int64_t last_code() noexcept {
    return library_code;
}

} // namespace annulus
