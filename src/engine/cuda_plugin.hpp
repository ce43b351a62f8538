// SPDX-License-Identifier: Apache-2.0
// The plugin for CUDA (engine/plugin.hpp).
#pragma once

#include "engine/backend.hpp"

namespace annulus {

struct NcclTransports; // transport/nccl_transports.hpp

// The plugin's function `const CudaPlugin *annulus_cuda_plugin()` returns it.
struct CudaPlugin {
    const char *version; // annulus's; the first field in every version
    Backend backend;
    const char *(*versions)() noexcept; // the versions of CUDA's libraries, as text
    const NcclTransports *nccl;         // null in a plugin that was built without NCCL
};

// Returns null if the plugin cannot be loaded or has another version. Any thread may call it.
const CudaPlugin *find_cuda_plugin();

// Throws Error(ANNULUS_ERROR_UNSUPPORTED) that says why there is no `wanted`.
const CudaPlugin &cuda_plugin(const char *wanted = "CUDA device");

// Returns the versions of CUDA's libraries in use, or "none".
const char *cuda_description() noexcept;

} // namespace annulus
