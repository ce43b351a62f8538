// SPDX-License-Identifier: Apache-2.0
// annulus/status.h.
#include <annulus/status.h>

#include "capi/guard.hpp"
#include "core/dtype_number.hpp"
#include "core/known.hpp"

const char *annulus_status_name(annulus_status status) {
    const annulus::NamedStatus *const found = annulus::find_status(annulus::enum_value(status));
    return found ? found->name : "unknown";
}

const char *annulus_last_error(void) {
    return annulus::last_message();
}

uint64_t annulus_last_error_bytes(void) {
    return annulus::last_bytes();
}

const char *annulus_last_error_library(void) {
    return annulus::last_library();
}

int64_t annulus_last_error_code(void) {
    return annulus::last_code();
}
