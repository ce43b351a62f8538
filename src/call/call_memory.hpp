// SPDX-License-Identifier: Apache-2.0
// The memory of a call: checks of its tensors, and its workspace.
#pragma once

#include "core/tensor.hpp"
#include "engine/device.hpp"

#include <cstddef>
#include <cstdint>

struct annulus_context;

namespace annulus {

// Throws if the device cannot reach the tensor's memory. The tensor may be null or empty.
void check_memory(const Device &device, const NamedTensor &argument);

// Throws if the caller's workspace overlaps the tensor. The workspace may be missing; the tensor may be null or empty.
void check_workspace(const annulus_context &context, const NamedTensor &argument);

// The workspace of one call, aligned to Workspace::alignment. It comes from the caller's workspace, else from the
// caller's allocator, else from the device. The destructor gives it back in the order of the stream. It must live
// inside a DeviceScope.
class CallMemory {
  public:
    CallMemory(const annulus_context &context, std::size_t bytes);
    ~CallMemory();
    CallMemory(const CallMemory &) = delete;
    CallMemory &operator=(const CallMemory &) = delete;

    void *data() const { return data_; }

    // Never gives the memory back, because messages of a failed call may still use it.
    void leave() { data_ = nullptr; }

    // Returns the bytes that the caller's workspace must have, for a call that uses `bytes`: up to 255 more, since it
    // need not be aligned.
    static std::size_t announced(std::size_t bytes);
    // Returns the most bytes that an engine may book if at most `limit` are to be announced. 0 means no limit.
    static std::uint64_t bookable(std::uint64_t limit);

  private:
    const annulus_context &context_;
    std::size_t bytes_;
    void *data_ = nullptr;
};

} // namespace annulus
