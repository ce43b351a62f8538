// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/device/cuda_error.hpp"

#include <cuda_runtime_api.h>

namespace annulus {

// Runs a kernel on a pass, with a block of Traits::threads threads and a Shared for each multiprocessor. Throws
// Error(ANNULUS_ERROR_CUDA), with `what` in it.
template <class Traits, class Shared, class Pass>
void launch_pass(const char *what, void (*kernel)(Pass), const Pass &pass, int multiprocessors, cudaStream_t stream) {
    constexpr int bytes = static_cast<int>(sizeof(Shared));
    static_assert(bytes <= 227 * 1024);
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "cudaFuncSetAttribute");
    cudaLaunchConfig_t config{};
    config.gridDim = static_cast<unsigned>(multiprocessors);
    config.blockDim = Traits::threads;
    config.dynamicSmemBytes = bytes;
    config.stream = stream;
    check(cudaLaunchKernelEx(&config, kernel, pass), what);
}

} // namespace annulus
