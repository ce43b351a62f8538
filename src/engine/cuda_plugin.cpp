// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda_plugin.hpp"

#include "core/error.hpp"
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

constexpr const char *file_name = ANNULUS_CUDA_PLUGIN;

// The plugin, or why there is none.
struct Loaded {
    const CudaPlugin *plugin;
    Error failure;
};

// Beside the file that this function is in, or where the loader looks.
void *load_file() {
    Dl_info own{};
    std::array<char, PATH_MAX> path{};
    if (dladdr(reinterpret_cast<void *>(&find_cuda_plugin), &own) != 0 && own.dli_fname) {
        const char *const slash = std::strrchr(own.dli_fname, '/');
        const int directory = slash ? static_cast<int>(slash - own.dli_fname) + 1 : 0;
        const int length = std::snprintf(path.data(), path.size(), "%.*s%s", directory, own.dli_fname, file_name);
        if (slash && length < static_cast<int>(path.size()) && access(path.data(), F_OK) == 0)
            return load_library(path.data());
    }
    return load_library(file_name);
}

Loaded load() {
    try {
        const auto entry = reinterpret_cast<const CudaPlugin *(*)()>(dlsym(load_file(), "annulus_cuda_plugin"));
        if (!entry)
            return {nullptr, Error(ANNULUS_ERROR_UNSUPPORTED, "%s is not annulus's part for CUDA", file_name)};
        const CudaPlugin *const plugin = entry();
        if (std::strcmp(plugin->version, version_text) != 0)
            return {nullptr, Error(ANNULUS_ERROR_UNSUPPORTED, "%s is of annulus %s, and this is annulus %s", file_name,
                                   plugin->version, version_text)};
        return {plugin, Error(ANNULUS_OK, "none")};
    } catch (const Error &error) {
        return {nullptr, error};
    }
}

const Loaded &loaded() {
    static const Loaded once = load();
    return once;
}

#ifdef ANNULUS_HAVE_CUDA
constexpr const char *built_without = "";
#else
constexpr const char *built_without = "this annulus was built without CUDA, and ";
#endif

} // namespace

const CudaPlugin *find_cuda_plugin() {
    return loaded().plugin;
}

const CudaPlugin &cuda_plugin(const char *wanted) {
    const auto &[plugin, failure] = loaded();
    if (!plugin)
        throw Error(ANNULUS_ERROR_UNSUPPORTED, "there is no %s: %s%s", wanted, built_without, failure.what());
    return *plugin;
}

} // namespace annulus
