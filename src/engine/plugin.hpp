// SPDX-License-Identifier: Apache-2.0
// Plugins: parts of the library in files of their own, loaded when they are first asked for, so that the library can be
// had without what they need. A plugin has copies of what it needs of core/, engine/, ranks/ and transport/; nothing in
// these may be state that must exist once. Errors that it throws are caught here as if there were one library.
#pragma once

#include "core/error.hpp"

#include <optional>

namespace annulus {

struct PluginFile {
    const char *name; // libannulus-….so.1
    // Its one exported function, `const Table *entry()`. The table is a struct, of which all versions have first the
    // version of annulus as a const char *; the rest is that version's own.
    const char *entry;
    const char *part; // what messages call it: "CUDA", "MPI"
    bool is_built;    // together with this library
};

// A plugin, or why there is none.
struct Plugin {
    PluginFile file;
    void *library = nullptr; // what dlopen() returned
    const void *table = nullptr;
    std::optional<Error> failure = {}; // where table is null

    // The table. Throws Error(ANNULUS_ERROR_UNSUPPORTED) that says why there is no `wanted`.
    const void *required(const char *wanted) const;
};

// Looks beside the file that this function is in, else where the loader does, for a plugin of this version. It is never
// unloaded.
Plugin load_plugin(const PluginFile &file) noexcept;

} // namespace annulus
