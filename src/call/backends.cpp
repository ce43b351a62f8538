// SPDX-License-Identifier: Apache-2.0
#include "call/backends.hpp"

#include "core/error.hpp"
#include "cpu/blocked/engine.hpp"
#include "cpu/cpu_device.hpp"
#include "cpu/message_copier.hpp"
#include "cpu/reference/engine.hpp"
#include "cpu/results/results.hpp"
#include "engine/cuda_plugin.hpp"
#include "ranks/message_copier.hpp"

#include <algorithm>

namespace annulus {

namespace {

// `auto` tries them in this order: it uses the reference engine only if no other engine can serve the plan.
const Engine *const cpu_engines[] = {&cpu_engine, &reference_engine};

const Backend cpu_backend{
    ANNULUS_DEVICE_CPU,
    cpu_engines,
    [] { return 1; },
    [](int) -> std::unique_ptr<Device> { return std::make_unique<CpuDevice>(); },
    [](const MergeWork &work, int threads, void *) { merge_on_cpu(work, threads); },
    [](const MassWork &work, int threads, void *) { mark_heads_on_cpu(work, threads); },
    [](const MassWork &work, int threads, void *) { take_mass_on_cpu(work, threads); },
    make_cpu_message_copier,
};

} // namespace

const Backend &find_backend(annulus_device device) {
    return device == ANNULUS_DEVICE_CPU ? cpu_backend : cuda_plugin().backend;
}

int device_count(annulus_device device) {
    if (device == ANNULUS_DEVICE_CPU)
        return cpu_backend.device_count();
    const CudaPlugin *const plugin = find_cuda_plugin();
    return plugin ? plugin->backend.device_count() : 0;
}

void check_has_engine(const Backend &backend, annulus_engine engine) {
    if (std::ranges::none_of(backend.engines, [&](const Engine *candidate) { return candidate->id == engine; }))
        throw Error(ANNULUS_ERROR_UNSUPPORTED, "this build has no engine %s for %s", engine_name(engine),
                    device_name(backend.device));
}

} // namespace annulus
