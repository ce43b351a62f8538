// SPDX-License-Identifier: Apache-2.0
// Shared libraries that are loaded when they are first needed.
#pragma once

namespace annulus {

// Loads a library by its path or, if `file` is only a name, as the dynamic loader finds it. It is never closed, since
// it may have threads of its own. Throws Error(ANNULUS_ERROR_UNSUPPORTED) with the loader's reason.
void *load_library(const char *file);

} // namespace annulus
