// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda_plugin.hpp"

#include "engine/plugin.hpp"

namespace annulus {

namespace {

constexpr PluginFile file{
    ANNULUS_CUDA_PLUGIN,
    "annulus_cuda_plugin",
    "CUDA",
#ifdef ANNULUS_HAVE_CUDA
    true,
#else
    false,
#endif
};

const Plugin &plugin() {
    static const Plugin once = load_plugin(file);
    return once;
}

} // namespace

const CudaPlugin *find_cuda_plugin() {
    return static_cast<const CudaPlugin *>(plugin().table);
}

const CudaPlugin &cuda_plugin(const char *wanted) {
    return *static_cast<const CudaPlugin *>(plugin().required(wanted));
}

const char *cuda_description() noexcept {
    const CudaPlugin *const found = find_cuda_plugin();
    return found ? found->versions() : "none";
}

} // namespace annulus
