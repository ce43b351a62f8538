// SPDX-License-Identifier: Apache-2.0
#include "cli/devices/cuda_driver.hpp"

#include "cli/devices/loaded_library.hpp"

namespace annulus::cli {

// A function that cuda.h declares without the suffix _v2 may have it in the library.
CudaDriver::CudaDriver() {
    const LoadedLibrary library("libcuda.so.1", "--device cuda needs NVIDIA's driver");
    library.find(initialize, "cuInit");
    library.find(error_string, "cuGetErrorString");
    library.find(device, "cuDeviceGet");
    library.find(device_name, "cuDeviceGetName");
    library.find(device_attribute, "cuDeviceGetAttribute");
    library.find(device_bytes, "cuDeviceTotalMem_v2");
    library.find(retain_primary_context, "cuDevicePrimaryCtxRetain");
    library.find(set_current_context, "cuCtxSetCurrent");
    library.find(synchronize_context, "cuCtxSynchronize");
    library.find(create_stream, "cuStreamCreate");
    library.find(destroy_stream, "cuStreamDestroy_v2");
    library.find(synchronize_stream, "cuStreamSynchronize");
    library.find(create_event, "cuEventCreate");
    library.find(destroy_event, "cuEventDestroy_v2");
    library.find(record_event, "cuEventRecord");
    library.find(synchronize_event, "cuEventSynchronize");
    library.find(elapsed_milliseconds, "cuEventElapsedTime");
    library.find(allocate, "cuMemAlloc_v2");
    library.find(release, "cuMemFree_v2");
    library.find(memory_bytes, "cuMemGetInfo_v2");
    library.find(copy_in, "cuMemcpyHtoDAsync_v2");
    library.find(copy_out, "cuMemcpyDtoHAsync_v2");
    library.find(copy_within, "cuMemcpyDtoDAsync_v2");
    check(initialize(0), "start");
}

void CudaDriver::check(Status status, const std::string &action) const {
    if (status == success)
        return;
    const char *text = nullptr;
    if (error_string(status, &text) != success || !text)
        text = "an error that it has no words for";
    throw Failure(exit_failed, "CUDA cannot " + action + ": " + text);
}

const CudaDriver &cuda_driver() {
    static const CudaDriver driver;
    return driver;
}

} // namespace annulus::cli
