// SPDX-License-Identifier: Apache-2.0
// Plugins: files of their own that are loaded when they are first needed. So the library runs without CUDA or MPI
// installed. A plugin has copies of the code that it needs from core/, engine/, ranks/ and transport/. These rooms must
// have no state that may exist only once. The library catches errors that a plugin throws as if they were its own.
#pragma once

#include "core/error.hpp"

#include <optional>

namespace annulus {

struct PluginFile {
    const char *name; // libannulus-….so.1
    // Its exported function, `const Table *entry()`. In every version the table begins with annulus's version, a
    // const char *. The other fields may differ between versions.
    const char *entry;
    const char *part; // what messages call it: "CUDA", "MPI"
    bool is_built;    // true if it was built together with this library
};

// A loaded plugin, or the reason why there is none.
struct Plugin {
    PluginFile file;
    void *library = nullptr; // what dlopen() returned
    const void *table = nullptr;
    std::optional<Error> failure = {}; // set if table is null

    // Returns the table. Throws Error(ANNULUS_ERROR_UNSUPPORTED) that says why there is no `wanted`.
    const void *required(const char *wanted) const;
};

// Loads a plugin of this version. Looks in the directory of the file that this function is in, then where the dynamic
// loader looks. Never unloads it.
Plugin load_plugin(const PluginFile &file) noexcept;

} // namespace annulus
