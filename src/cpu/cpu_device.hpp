// SPDX-License-Identifier: Apache-2.0
// The CPU as a device. Its memory is the memory of the process, and it has no streams.
#pragma once

#include "engine/device.hpp"

namespace annulus {

class CpuDevice : public Device {
  public:
    void *allocate(std::size_t bytes, void *stream) override;
    void release(void *memory, void *stream) noexcept override;
    void check_memory(const char *name, const void *pointer) const override;
    void copy(void *to, const void *from, std::size_t bytes, void *stream) override;
};

} // namespace annulus
