// SPDX-License-Identifier: Apache-2.0
// The engines and the kinds of devices that there are: the CPU's here, CUDA's in the plugin.
#include "core/error.hpp"
#include "engine/cuda_plugin.hpp"
#include "engine/device.hpp"
#include "engine/engine.hpp"
#include "engine/mass.hpp"
#include "engine/merge.hpp"

namespace annulus {

namespace {

// Fastest first; the reference serves `auto` only where nothing else can.
const Engine *const cpu_engines[] = {&cpu_engine, &reference_engine};

} // namespace

std::span<const Engine *const> engines_of(annulus_device device) {
    if (device == ANNULUS_DEVICE_CPU)
        return cpu_engines;
    return cuda_plugin().engines;
}

const Engine &find_engine(annulus_device device, annulus_engine id) {
    for (const Engine *engine : engines_of(device))
        if (engine->id == id)
            return *engine;
    throw Error(ANNULUS_ERROR_UNSUPPORTED, "this build has no engine %s for %s", engine_name(id), device_name(device));
}

int device_count(annulus_device device) {
    if (device == ANNULUS_DEVICE_CPU)
        return 1;
    const CudaPlugin *const plugin = find_cuda_plugin();
    return plugin ? plugin->device_count() : 0;
}

std::unique_ptr<Device> make_device(annulus_device device, int index) {
    if (device == ANNULUS_DEVICE_CPU)
        return make_cpu_device();
    return cuda_plugin().make_device(index);
}

void merge(annulus_device device, const MergeWork &work, int threads, void *stream) {
    if (device == ANNULUS_DEVICE_CPU)
        merge_on_cpu(work, threads);
    else
        cuda_plugin().merge(work, stream);
}

void mark_heads(annulus_device device, const MassWork &work, int threads, void *stream) {
    if (device == ANNULUS_DEVICE_CPU)
        mark_heads_on_cpu(work, threads);
    else
        cuda_plugin().mark_heads(work, stream);
}

void take_mass(annulus_device device, const MassWork &work, int threads, void *stream) {
    if (device == ANNULUS_DEVICE_CPU)
        take_mass_on_cpu(work, threads);
    else
        cuda_plugin().take_mass(work, stream);
}

const char *cuda_description() noexcept {
    const CudaPlugin *const plugin = find_cuda_plugin();
    return plugin ? plugin->versions() : "none";
}

} // namespace annulus
