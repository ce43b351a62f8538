// SPDX-License-Identifier: Apache-2.0
// Launching a kernel whose shared memory is larger than what a kernel has by default.
#pragma once

#include "cuda/device/cuda_error.hpp"

#include <cuda_runtime_api.h>

namespace annulus {

// Ranges a kernel, with a CTA of Traits::threads threads and a Shared for each multiprocessor. Throws
// Error(ANNULUS_ERROR_CUDA), with `what` in it.
template <class Traits, class Shared, class Params>
void launch_kernel(const char *what, void (*kernel)(Params), const Params &params, int multiprocessors,
                   cudaStream_t stream) {
    constexpr int bytes = static_cast<int>(sizeof(Shared));
    static_assert(bytes <= 227 * 1024);
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "cudaFuncSetAttribute");
    cudaLaunchConfig_t config{};
    config.gridDim = static_cast<unsigned>(multiprocessors);
    config.blockDim = Traits::threads;
    config.dynamicSmemBytes = bytes;
    config.stream = stream;
    check(cudaLaunchKernelEx(&config, kernel, params), what);
}

} // namespace annulus
