// SPDX-License-Identifier: Apache-2.0
// The memory of a call: where its tensors are, and where its workspace comes from.
#pragma once

#include "core/tensor.hpp"
#include "engine/device.hpp"

#include <cstddef>
#include <cstdint>

struct annulus_context;

namespace annulus {

// Throws where the device cannot reach a tensor, which may be null or empty.
void check_memory(const Device &device, const NamedTensor &argument);

// Throws where the caller's workspace, if there is one, overlaps a tensor, which may be null or empty.
void check_workspace(const annulus_context &context, const NamedTensor &argument);

// The workspace of one call, aligned as the ledger asks for: from the caller's workspace, else its allocator, else the
// device. Given back, in the stream's order, when the call ends; lives inside a DeviceScope.
class CallMemory {
  public:
    CallMemory(const annulus_context &context, std::size_t bytes);
    ~CallMemory();
    CallMemory(const CallMemory &) = delete;
    CallMemory &operator=(const CallMemory &) = delete;

    void *data() const { return data_; }

    // Leaves the memory to whoever still uses it: it is not given back.
    void leave() { data_ = nullptr; }

    // The bytes that the caller's workspace, which need not be aligned, must have.
    static std::size_t announced(std::size_t bytes);
    // What an engine may book so that no more than `limit` is announced; 0, no limit, stays 0.
    static std::uint64_t bookable(std::uint64_t limit);

  private:
    const annulus_context &context_;
    std::size_t bytes_;
    void *data_ = nullptr;
};

} // namespace annulus
