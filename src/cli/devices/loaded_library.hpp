// SPDX-License-Identifier: Apache-2.0
// A library that is loaded on demand, so that the program starts without it.
#pragma once

#include "cli/report/failure.hpp"

#include <dlfcn.h>

#include <cstring>
#include <string>

namespace annulus::cli {

// The library is never closed, since its threads may run its code.
class LoadedLibrary {
  public:
    // If the library is missing, the message is "<wanted>, and <file> cannot be loaded: ...".
    LoadedLibrary(const char *file, const std::string &wanted) : file_(file), handle_(dlopen(file, RTLD_NOW)) {
        if (!handle_)
            throw Failure(exit_failed, wanted + ", and " + file + " cannot be loaded: " + dlerror());
    }
    // handle: what dlopen() returned for the library `name`, null if there is none.
    LoadedLibrary(const char *name, void *handle, const std::string &wanted) : file_(name), handle_(handle) {
        if (!handle_)
            throw Failure(exit_failed, wanted + ", and there is no " + name);
    }

    // Sets `function` to the function of that name in the library or in a library that it is linked with.
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
