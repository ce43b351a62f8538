// SPDX-License-Identifier: Apache-2.0
// Shared libraries that are loaded when they are first needed.
#pragma once

namespace annulus {

// Loads a library by its path or, if `file` is only a name, as the dynamic loader finds it. It is never closed, since
// it may have threads of its own. Throws Error(ANNULUS_ERROR_UNSUPPORTED) with the loader's reason.
void *load_library(const char *file);

// Returns the address of a function of a library that is loaded. Throws Error(ANNULUS_ERROR_UNSUPPORTED) with the
// library's name and what is `needed`, such as "NCCL 2.14 or newer", if it has no such function.
void *find_function(void *library, const char *library_name, const char *function, const char *needed);

} // namespace annulus
