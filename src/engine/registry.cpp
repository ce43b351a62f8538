// SPDX-License-Identifier: Apache-2.0
// The engines and the kinds of devices that this build has.
#include "core/error.hpp"
#include "engine/device.hpp"
#include "engine/engine.hpp"
#include "engine/merge.hpp"

#include <stdexcept>

namespace annulus {

namespace {

// Fastest first; the reference serves `auto` only where nothing else can.
const Engine *const engines[] = {
#ifdef ANNULUS_HAVE_FUSED
    &fused_engine,
#endif
#ifdef ANNULUS_HAVE_CUDA
    &gemm_engine,
#endif
    &cpu_engine,
    &reference_engine,
};

} // namespace

std::span<const Engine *const> all_engines() {
    return engines;
}

const Engine &find_engine(annulus_device device, annulus_engine id) {
    for (const Engine *engine : engines)
        if (engine->id == id && engine->device == device)
            return *engine;
    throw Error(ANNULUS_ERROR_UNSUPPORTED, "this build has no engine %s for %s", engine_name(id), device_name(device));
}

const char *engine_name(annulus_engine engine) {
    switch (engine) {
    case ANNULUS_ENGINE_AUTO:
        return "auto";
    case ANNULUS_ENGINE_REFERENCE:
        return "reference";
    case ANNULUS_ENGINE_CPU:
        return "cpu";
    case ANNULUS_ENGINE_GEMM:
        return "gemm";
    case ANNULUS_ENGINE_FUSED:
        return "fused";
    }
    return "unknown";
}

void PreparedCall::finish(const CallTensors &, const PartialResults &, void *) {
    throw std::logic_error("a whole call has nothing to finish");
}

bool is_capturing(Device &device, void *stream) {
    const DeviceStreams *const streams = device.streams();
    return streams && streams->is_capturing(stream);
}

int device_count(annulus_device device) {
    if (device == ANNULUS_DEVICE_CPU)
        return 1;
#ifdef ANNULUS_HAVE_CUDA
    return cuda_device_count();
#else
    return 0;
#endif
}

std::unique_ptr<Device> make_device(annulus_device device, [[maybe_unused]] int index) {
    if (device == ANNULUS_DEVICE_CPU)
        return make_cpu_device();
#ifdef ANNULUS_HAVE_CUDA
    return make_cuda_device(index);
#else
    throw Error(ANNULUS_ERROR_UNSUPPORTED, "there is no CUDA device: this annulus was built without CUDA");
#endif
}

void merge([[maybe_unused]] annulus_device device, const MergeWork &work, int threads, [[maybe_unused]] void *stream) {
#ifdef ANNULUS_HAVE_CUDA
    if (device == ANNULUS_DEVICE_CUDA)
        return merge_on_cuda(work, stream);
#endif
    merge_on_cpu(work, threads);
}

const char *cuda_description() noexcept {
#ifdef ANNULUS_HAVE_CUDA
    return cuda_versions();
#else
    return "none";
#endif
}

const char *device_name(annulus_device device) {
    return device == ANNULUS_DEVICE_CPU ? "the CPU" : "a CUDA device";
}

} // namespace annulus
