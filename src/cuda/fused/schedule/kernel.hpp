// SPDX-License-Identifier: Apache-2.0
// A kernel of the fused engine as the host sees it: the function and its launch configuration.
#pragma once

#include "cuda/device/cuda_error.hpp"

#include <cuda_runtime_api.h>

#include <cstddef>

namespace annulus {

template <class Params> struct Kernel {
    const char *name = nullptr; // for error messages
    void (*function)(Params) = nullptr;
    int threads = 0, shared_bytes = 0; // per CTA
    int ctas = 1;                      // per multiprocessor
    bool may_begin_early = false;      // supports programmatic dependent launch (early_launch.cuh)

    // Launches the kernel on the current device, with `ctas` CTAs for each of `multiprocessors`. Throws
    // Error(ANNULUS_ERROR_DEVICE) if the launch fails.
    void launch(const Params &params, int multiprocessors, bool begins_early, cudaStream_t stream) const {
        cudaLaunchConfig_t config{};
        config.gridDim = static_cast<unsigned>(multiprocessors * ctas);
        config.blockDim = static_cast<unsigned>(threads);
        config.dynamicSmemBytes = static_cast<std::size_t>(shared_bytes);
        config.stream = stream;
        cudaLaunchAttribute early{};
        early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
        early.val.programmaticStreamSerializationAllowed = 1;
        config.attrs = &early;
        config.numAttrs = begins_early && may_begin_early ? 1 : 0;
        void *arguments[] = {const_cast<Params *>(&params)};
        check(cudaLaunchKernelExC(&config, reinterpret_cast<const void *>(function), arguments), name);
    }
};

// True if launches may use programmatic dependent launch. Drivers for CUDA 12.3 and newer can also capture such
// launches in graphs. Throws Error(ANNULUS_ERROR_DEVICE).
inline bool has_early_launches() {
    int version = 0;
    check(cudaDriverGetVersion(&version), "cudaDriverGetVersion");
    return version >= 12030;
}

// Makes a kernel whose CTA has Traits::threads threads and a Shared in dynamic shared memory. Sets the function's limit
// of shared memory on the current device. A multiprocessor runs the greatest number of CTAs that fits. Throws
// Error(ANNULUS_ERROR_DEVICE).
template <class Traits, class Shared, class Params>
Kernel<Params> make_kernel(const char *name, void (*function)(Params)) {
    constexpr int bytes = static_cast<int>(sizeof(Shared));
    static_assert(bytes <= 227 * 1024);
    check(cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "cudaFuncSetAttribute");
    int ctas = 0;
    check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&ctas, function, Traits::threads, bytes),
          "cudaOccupancyMaxActiveBlocksPerMultiprocessor");
    return {name, function, Traits::threads, bytes, ctas};
}

} // namespace annulus
