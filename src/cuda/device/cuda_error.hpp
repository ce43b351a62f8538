// SPDX-License-Identifier: Apache-2.0
// Turns statuses of CUDA into the library's exception.
#pragma once

#include "core/error.hpp"

#include <cuda_runtime_api.h>

namespace annulus {

// Throws unless the call `what` succeeded. Clears CUDA's own last error, which is reported here.
inline void check(cudaError_t error, const char *what) {
    if (error == cudaSuccess)
        return;
    cudaGetLastError();
    throw Error(ANNULUS_ERROR_DEVICE, "%s failed: %s (%s)", what, cudaGetErrorString(error), cudaGetErrorName(error))
        .from("cuda", error);
}

} // namespace annulus
