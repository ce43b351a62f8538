// SPDX-License-Identifier: Apache-2.0
// What the program does with CUDA itself, without the library.
#pragma once

#include "cli/devices/memory.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace annulus::cli {

struct CudaDevice {
    std::string name;
    int major, minor; // compute capability
    std::uint64_t memory_bytes;
};

// Returns the first `count` devices.
std::vector<CudaDevice> cuda_devices(int count);

// Makes the memory of a device. The library must be able to use the device.
std::unique_ptr<Memory> make_cuda_memory(int index);

} // namespace annulus::cli
