// SPDX-License-Identifier: Apache-2.0
// The kinds of devices that this build knows.
#include "engine/device.hpp"

#include "core/error.hpp"
#include "cpu/cpu_device.hpp"

namespace annulus {

int device_count(annulus_device device) {
    return device == ANNULUS_DEVICE_CPU ? 1 : 0;
}

std::unique_ptr<Device> make_device(annulus_device device, int) {
    if (device == ANNULUS_DEVICE_CPU)
        return std::make_unique<CpuDevice>();
    throw Error(ANNULUS_ERROR_UNSUPPORTED, "device is CUDA; this build of annulus has no CUDA in it");
}

} // namespace annulus
