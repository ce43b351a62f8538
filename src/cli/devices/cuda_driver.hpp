// SPDX-License-Identifier: Apache-2.0
// What the program uses of NVIDIA's driver, by the CUDA Driver API (cuda.h), whose functions keep their names and types
// from one CUDA to the next. They are declared and loaded here, so that one program serves machines with CUDA and
// without: it is neither compiled nor linked with it.
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

    // Loads libcuda.so.1; throws Failure where there is none or it does not work.
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

    // Of the current context's device.
    Status (*allocate)(Address *address, std::size_t bytes);
    Status (*release)(Address address);
    Status (*memory_bytes)(std::size_t *free, std::size_t *total);
    Status (*copy_in)(Address to, const void *from_host, std::size_t bytes, Stream stream);
    Status (*copy_out)(void *to_host, Address from, std::size_t bytes, Stream stream);
    Status (*copy_within)(Address to, Address from, std::size_t bytes, Stream stream);

    // Throws Failure, "CUDA cannot <action>: out of memory", unless the status is a success.
    void check(Status status, const std::string &action) const;
};

inline CudaDriver::Address address_of(const void *memory) {
    return reinterpret_cast<CudaDriver::Address>(memory);
}

// The process's one, from the first call on.
const CudaDriver &cuda_driver();

} // namespace annulus::cli
