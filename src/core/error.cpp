// SPDX-License-Identifier: Apache-2.0
#include "core/error.hpp"

#include <cstdarg>
#include <cstdio>

namespace annulus {

Error::Error(annulus_status status, const char *format, ...) noexcept : status_(status) {
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(message_, sizeof message_, format, arguments);
    va_end(arguments);
}

} // namespace annulus
