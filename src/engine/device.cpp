// SPDX-License-Identifier: Apache-2.0
// The kinds of devices that this build knows.
#include "engine/device.hpp"

#include "core/error.hpp"
#include "cpu/cpu_device.hpp"
#ifdef ANNULUS_HAVE_CUDA
#include "cuda/device/cuda_device.hpp"
#endif

namespace annulus {

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
        return std::make_unique<CpuDevice>();
#ifdef ANNULUS_HAVE_CUDA
    return make_cuda_device(index);
#else
    throw Error(ANNULUS_ERROR_UNSUPPORTED, "there is no CUDA device: this annulus was built without CUDA");
#endif
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
