// SPDX-License-Identifier: Apache-2.0
// A library that is loaded when it is asked for, so that the program starts without it.
#pragma once

#include "cli/report/failure.hpp"

#include <dlfcn.h>

#include <cstring>
#include <string>

namespace annulus::cli {

// It is never closed, since its threads may run its code.
class LoadedLibrary {
  public:
    // `wanted` begins the message where there is none: "<wanted>, and <file> cannot be loaded: ...".
    LoadedLibrary(const char *file, const std::string &wanted) : file_(file), handle_(dlopen(file, RTLD_NOW)) {
        if (!handle_)
            throw Failure(exit_failed, wanted + ", and " + file + " cannot be loaded: " + dlerror());
    }

    // Sets `function` to the library's function of that name, or to that of a library which it was linked with.
    template <class Function> void find(Function *&function, const char *name) const {
        void *const symbol = dlsym(handle_, name);
        if (!symbol)
            throw Failure(exit_failed, file_ + " has no " + name);
        std::memcpy(&function, &symbol, sizeof function);
    }

  private:
    std::string file_;
    void *handle_;
};

} // namespace annulus::cli
