// SPDX-License-Identifier: Apache-2.0
// Functions of the CUDA driver that is loaded: annulus is not linked with it.
#pragma once

#include "cuda/device/cuda_error.hpp"

#include <cuda.h>

namespace annulus {

// Throws where the driver has none of that name.
template <class Function> Function *driver_function(const char *name) {
    void *function = nullptr;
    cudaDriverEntryPointQueryResult result;
#if CUDART_VERSION >= 12050
    check(cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &result),
          "cudaGetDriverEntryPointByVersion");
#else
    check(cudaGetDriverEntryPoint(name, &function, cudaEnableDefault, &result), "cudaGetDriverEntryPoint");
#endif
    if (result != cudaDriverEntryPointSuccess)
        throw Error(ANNULUS_ERROR_DEVICE, "this CUDA driver has no %s", name);
    return reinterpret_cast<Function *>(function);
}

inline void check_driver(CUresult result, const char *what) {
    if (result != CUDA_SUCCESS)
        throw Error(ANNULUS_ERROR_DEVICE, "%s failed with CUresult %d", what, static_cast<int>(result))
            .from("cuda", result);
}

} // namespace annulus
