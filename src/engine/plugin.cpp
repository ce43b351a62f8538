// SPDX-License-Identifier: Apache-2.0
#include "engine/plugin.hpp"

#include "core/version.hpp"
#include "engine/load_library.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <array>
#include <climits>
#include <cstdio>
#include <cstring>

namespace annulus {

namespace {

void *load_file(const char *name) {
    Dl_info own{};
    std::array<char, PATH_MAX> path{};
    if (dladdr(reinterpret_cast<void *>(&load_plugin), &own) != 0 && own.dli_fname) {
        const char *const slash = std::strrchr(own.dli_fname, '/');
        const int directory = slash ? static_cast<int>(slash - own.dli_fname) + 1 : 0;
        const int length = std::snprintf(path.data(), path.size(), "%.*s%s", directory, own.dli_fname, name);
        if (slash && length < static_cast<int>(path.size()) && access(path.data(), F_OK) == 0)
            return load_library(path.data());
    }
    return load_library(name);
}

} // namespace

Plugin load_plugin(const PluginFile &file) noexcept {
    try {
        void *const library = load_file(file.name);
        const auto entry = reinterpret_cast<const void *(*)()>(dlsym(library, file.entry));
        if (!entry)
            throw Error(ANNULUS_ERROR_UNSUPPORTED, "%s is not annulus's part for %s", file.name, file.part);
        const void *const table = entry();
        const char *const version = *static_cast<const char *const *>(table);
        if (std::strcmp(version, version_text) != 0)
            throw Error(ANNULUS_ERROR_UNSUPPORTED, "%s is of annulus %s, and this is annulus %s", file.name, version,
                        version_text);
        return {file, library, table};
    } catch (const Error &error) {
        return {file, nullptr, nullptr, error};
    }
}

const void *Plugin::required(const char *wanted) const {
    if (table)
        return table;
    if (file.is_built)
        throw Error(ANNULUS_ERROR_UNSUPPORTED, "there is no %s: %s", wanted, failure->what());
    throw Error(ANNULUS_ERROR_UNSUPPORTED, "there is no %s: this annulus was built without %s, and %s", wanted,
                file.part, failure->what());
}

} // namespace annulus
