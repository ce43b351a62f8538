// SPDX-License-Identifier: Apache-2.0
// Functions for every engine and every device.
#include "engine/engine.hpp"

#include "engine/device.hpp"

#include <stdexcept>

namespace annulus {

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
    case ANNULUS_ENGINE_MMA:
        return "mma";
    }
    return "unknown";
}

const char *device_name(annulus_device device) {
    return device == ANNULUS_DEVICE_CPU ? "the CPU" : "a CUDA device";
}

void Executable::write_unfinished(const CallTensors &, const PartialResults &, void *) {
    throw std::logic_error("an executable over all keys has nothing to finish");
}

bool is_capturing(Device &device, void *stream) {
    const DeviceStreams *const streams = device.streams();
    return streams && streams->is_capturing(stream);
}

} // namespace annulus
