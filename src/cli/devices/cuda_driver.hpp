// SPDX-License-Identifier: Apache-2.0
// The functions of the CUDA Driver API (cuda.h) that the program uses. Their names and types stay the same in new
// versions of CUDA. They are declared and loaded here, so that one program runs on machines with CUDA and without. The
// program is neither compiled nor linked with CUDA.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace annulus::cli {

struct CudaDriver {
    using Status = int;             // CUresult
    using Device = int;             // CUdevice
    using Address = std::uintptr_t; // CUdeviceptr
    using Context = struct CudaContext *;
    using Stream = struct CudaStream *;
    using Event = struct CudaEvent *;

    static constexpr Status success = 0;
    static constexpr int capability_major = 75, capability_minor = 76; // attributes of devices
    static constexpr unsigned non_blocking = 1;                        // flag of streams

    // Loads libcuda.so.1. Throws Failure if it is missing or does not work.
    CudaDriver();

    Status (*initialize)(unsigned flags);
    Status (*error_string)(Status status, const char **text);

    Status (*device)(Device *device, int index);
    Status (*device_name)(char *name, int bytes, Device device);
    Status (*device_attribute)(int *value, int attribute, Device device);
    Status (*device_bytes)(std::size_t *bytes, Device device);

    Status (*retain_primary_context)(Context *context, Device device);
    Status (*set_current_context)(Context context); // of this thread
    Status (*synchronize_context)();                // the current one

    Status (*create_stream)(Stream *stream, unsigned flags);
    Status (*destroy_stream)(Stream stream);
    Status (*synchronize_stream)(Stream stream);

    Status (*create_event)(Event *event, unsigned flags);
    Status (*destroy_event)(Event event);
    Status (*record_event)(Event event, Stream stream);
    Status (*synchronize_event)(Event event);
    Status (*elapsed_milliseconds)(float *milliseconds, Event start, Event stop);

    // The following functions use the device of the current context.
    Status (*allocate)(Address *address, std::size_t bytes);
    Status (*release)(Address address);
    Status (*memory_bytes)(std::size_t *free, std::size_t *total);
    Status (*copy_in)(Address to, const void *from_host, std::size_t bytes, Stream stream);
    Status (*copy_out)(void *to_host, Address from, std::size_t bytes, Stream stream);
    Status (*copy_within)(Address to, Address from, std::size_t bytes, Stream stream);

    // Throws Failure, "CUDA cannot <action>: out of memory", unless the status is success.
    void check(Status status, const std::string &action) const;
};

inline CudaDriver::Address address_of(const void *memory) {
    return reinterpret_cast<CudaDriver::Address>(memory);
}

// Returns the process's only driver object, made by the first call.
const CudaDriver &cuda_driver();

} // namespace annulus::cli
