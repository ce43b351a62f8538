// SPDX-License-Identifier: Apache-2.0
#include "engine/load_library.hpp"

#include "core/error.hpp"

#include <dlfcn.h>

namespace annulus {

void *load_library(const char *file) {
    if (void *const library = dlopen(file, RTLD_NOW | RTLD_LOCAL))
        return library;
    const char *const reason = dlerror();
    throw Error(ANNULUS_ERROR_UNSUPPORTED, "%s cannot be loaded: %s", file, reason ? reason : "no reason given");
}

void *find_function(void *library, const char *library_name, const char *function, const char *needed) {
    if (void *const address = dlsym(library, function))
        return address;
    throw Error(ANNULUS_ERROR_UNSUPPORTED, "%s has no %s; annulus needs %s", library_name, function, needed);
}

} // namespace annulus
