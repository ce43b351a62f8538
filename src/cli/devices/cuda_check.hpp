// SPDX-License-Identifier: Apache-2.0
// Statuses of CUDA and cuBLAS as the program's exceptions.
#pragma once

#include "cli/report/failure.hpp"

#include <cublas_v2.h>
#include <cuda_runtime_api.h>

#include <string>

namespace annulus::cli {

// `action` is what was to be done, for the message: "cannot <action>: out of memory".
inline void check_cuda(cudaError_t error, const std::string &action) {
    if (error != cudaSuccess)
        throw Failure(exit_failed, "CUDA cannot " + action + ": " + cudaGetErrorString(error));
}

inline void check_cublas(cublasStatus_t status, const std::string &action) {
    if (status != CUBLAS_STATUS_SUCCESS)
        throw Failure(exit_failed, "cuBLAS cannot " + action + ": " + cublasGetStatusString(status));
}

} // namespace annulus::cli
