// SPDX-License-Identifier: Apache-2.0
// The library's part for CUDA, a plugin (engine/plugin.hpp).
#pragma once

#include "engine/device.hpp"
#include "engine/engine.hpp"
#include "engine/mass.hpp"
#include "engine/merge.hpp"

#include <memory>
#include <span>

namespace annulus {

class MessageCopier;   // ranks/message_copier.hpp
struct NcclTransports; // transport/nccl_transport.hpp

// What the plugin offers. Its one exported function, `const CudaPlugin *annulus_cuda_plugin()`, returns it.
struct CudaPlugin {
    const char *version;                    // of annulus; in all versions the first
    std::span<const Engine *const> engines; // fastest first
    decltype(&cuda_device_count) device_count;
    decltype(&make_cuda_device) make_device;
    decltype(&cuda_versions) versions;
    decltype(&merge_on_cuda) merge;
    decltype(&mark_heads_on_cuda) mark_heads;
    decltype(&take_mass_on_cuda) take_mass;
    std::unique_ptr<MessageCopier> (*make_message_copier)();
    const NcclTransports *nccl; // null where it was built without NCCL
};

// Null where it cannot be loaded or is of another version. Any thread.
const CudaPlugin *find_cuda_plugin();

// Throws Error(ANNULUS_ERROR_UNSUPPORTED) that says why there is no `wanted`.
const CudaPlugin &cuda_plugin(const char *wanted = "CUDA device");

} // namespace annulus
