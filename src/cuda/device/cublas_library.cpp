// SPDX-License-Identifier: Apache-2.0
#include "cuda/device/cublas_library.hpp"

#include "core/error.hpp"
#include "engine/load_library.hpp"

#include <cuda_runtime_api.h>
#include <dlfcn.h>

namespace annulus {

namespace {

// The one of this build's own CUDA first. A driver that runs CUDA 13 runs CUDA 12, too, but not the other way round.
constexpr const char *names[] = {CUDART_VERSION < 13000 ? "libcublas.so.12" : "libcublas.so.13",
                                 CUDART_VERSION < 13000 ? "libcublas.so.13" : "libcublas.so.12"};

// Returns a cuBLAS that the process has loaded. Otherwise loads one.
void *load() {
    for (const char *const name : names)
        if (void *const library = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD))
            return library;
    try {
        return load_library(names[0]);
    } catch (const Error &error) {
        if (void *const library = dlopen(names[1], RTLD_NOW | RTLD_LOCAL))
            return library;
        throw Error(ANNULUS_ERROR_UNSUPPORTED, "there is no cuBLAS: %s, and there is no %s", error.what(), names[1]);
    }
}

template <class Function> void find(void *library, Function &function, const char *name) {
    function = reinterpret_cast<Function>(find_function(library, "cuBLAS", name, "cuBLAS 12 or 13"));
}

} // namespace

CublasLibrary::CublasLibrary() : handle(load()) {
    find(handle, get_status_string, "cublasGetStatusString");
    find(handle, get_status_name, "cublasGetStatusName");
    find(handle, create, "cublasCreate_v2");
    find(handle, destroy, "cublasDestroy_v2");
    find(handle, set_stream, "cublasSetStream_v2");
    find(handle, set_math_mode, "cublasSetMathMode");
    find(handle, set_workspace, "cublasSetWorkspace_v2");
    find(handle, gemm_batched_ex_64, "cublasGemmBatchedEx_64");
}

const CublasLibrary &cublas() {
    static const CublasLibrary library;
    return library;
}

void check(cublasStatus_t status, const char *what) {
    if (status == CUBLAS_STATUS_SUCCESS)
        return;
    cudaGetLastError();
    throw Error(ANNULUS_ERROR_DEVICE, "%s failed: %s (%s)", what, cublas().get_status_string(status),
                cublas().get_status_name(status))
        .from("cublas", status);
}

} // namespace annulus
