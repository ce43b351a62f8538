// SPDX-License-Identifier: Apache-2.0
// Functions of the CUDA driver. annulus is not linked with the driver and finds them when it runs.
#pragma once

#include "cuda/device/cuda_error.hpp"

#include <cuda.h>

namespace annulus {

// Returns the driver's function of that name. Throws if there is none.
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
