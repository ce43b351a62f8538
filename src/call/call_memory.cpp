// SPDX-License-Identifier: Apache-2.0
#include "call/call_memory.hpp"

#include "call/context.hpp"
#include "core/error.hpp"
#include "core/workspace.hpp"

#include <algorithm>
#include <cstdio>
#include <memory>

namespace annulus {

namespace {

constexpr std::size_t alignment = Workspace::alignment;

} // namespace

void check_memory(const Device &device, const NamedTensor &argument) {
    if (!argument.tensor || is_empty(*argument.tensor))
        return;
    char name[32];
    std::snprintf(name, sizeof name, "data of %s", argument.name);
    device.check_memory(name, argument.tensor->data);
}

void check_workspace(const annulus_context &context, const NamedTensor &argument) {
    if (context.workspace && argument.tensor && !is_empty(*argument.tensor) &&
        meets(*argument.tensor, context.workspace, context.workspace_bytes))
        throw Error(
            ANNULUS_ERROR_ARGUMENT,
            "workspace is %zu bytes at %p, which overlap %s; it needs memory that no tensor of the call reaches",
            context.workspace_bytes, context.workspace, argument.name);
}

CallMemory::CallMemory(const annulus_context &context, std::size_t bytes) : context_(context), bytes_(bytes) {
    if (bytes == 0)
        return;
    if (context.workspace) {
        data_ = context.workspace;
        std::size_t space = context.workspace_bytes;
        if (!std::align(alignment, bytes, data_, space))
            throw Error(ANNULUS_ERROR_WORKSPACE, "the workspace has %zu bytes; this call needs %zu",
                        context.workspace_bytes, announced(bytes))
                .needing(announced(bytes));
        return;
    }
    if (!context.allocator) {
        data_ = context.device->allocate(bytes, context.stream);
        return;
    }
    const annulus_allocator &allocator = *context.allocator;
    data_ = allocator.allocate(allocator.user, bytes, alignment, context.stream);
    if (!data_)
        throw Error(ANNULUS_ERROR_MEMORY, "the allocator returned NULL for %zu bytes", bytes);
    try {
        if (reinterpret_cast<std::uintptr_t>(data_) % alignment != 0)
            throw Error(ANNULUS_ERROR_ARGUMENT, "the allocator returned %p; it must be aligned to %zu bytes", data_,
                        alignment);
        context.device->check_memory("what the allocator returned", data_);
    } catch (...) {
        allocator.release(allocator.user, data_, bytes, alignment, context.stream);
        throw;
    }
}

CallMemory::~CallMemory() {
    if (!data_ || context_.workspace)
        return;
    if (context_.allocator)
        context_.allocator->release(context_.allocator->user, data_, bytes_, alignment, context_.stream);
    else
        context_.device->release(data_, context_.stream);
}

std::size_t CallMemory::announced(std::size_t bytes) {
    return bytes == 0 ? 0 : bytes + alignment - 1;
}

std::uint64_t CallMemory::bookable(std::uint64_t limit) {
    return limit == 0 ? 0 : std::max<std::uint64_t>(limit, alignment) - (alignment - 1);
}

} // namespace annulus
