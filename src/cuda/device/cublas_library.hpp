// SPDX-License-Identifier: Apache-2.0
// cuBLAS's functions, loaded with the first context on a GPU. A program that has already loaded cuBLAS shares it, be it
// of CUDA 12 or 13: these functions have the same interface in both.
#pragma once

#include <cublas_v2.h>

namespace annulus {

struct CublasLibrary {
    void *handle; // what dlopen() returned
    decltype(&cublasGetStatusString) get_status_string;
    decltype(&cublasGetStatusName) get_status_name;
    decltype(&cublasCreate) create;
    decltype(&cublasDestroy) destroy;
    decltype(&cublasSetStream) set_stream;
    decltype(&cublasSetMathMode) set_math_mode;
    decltype(&cublasSetWorkspace) set_workspace;
    decltype(&cublasGemmBatchedEx_64) gemm_batched_ex_64;

    CublasLibrary();
};

// Any thread may call it. Throws Error(ANNULUS_ERROR_UNSUPPORTED) if there is no cuBLAS, or only one that is too old.
const CublasLibrary &cublas();

// Throws unless the call `what` succeeded. Clears CUDA's own last error.
void check(cublasStatus_t status, const char *what);

} // namespace annulus
