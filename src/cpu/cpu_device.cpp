// SPDX-License-Identifier: Apache-2.0
#include "cpu/cpu_device.hpp"

#include "core/error.hpp"
#include "core/workspace.hpp"

#include <cstdint>
#include <cstring>
#include <new>

namespace annulus {

// Aligns the memory itself: aligned allocations of glibc do not fit into the gaps that earlier ones of their size left.
// The address of the allocation is stored just before the memory that is returned.
void *CpuDevice::allocate(std::size_t bytes, void *) {
    constexpr std::size_t front = sizeof(void *) + Workspace::alignment - 1;
    void *const block = bytes <= SIZE_MAX - front ? ::operator new(bytes + front, std::nothrow) : nullptr;
    if (!block)
        throw Error(ANNULUS_ERROR_MEMORY, "no memory for a workspace of %zu bytes", bytes);
    std::byte *memory = static_cast<std::byte *>(block) + front;
    memory -= reinterpret_cast<std::uintptr_t>(memory) % Workspace::alignment;
    std::memcpy(memory - sizeof block, &block, sizeof block);
    return memory;
}

void CpuDevice::release(void *memory, void *) noexcept {
    void *block;
    std::memcpy(&block, static_cast<std::byte *>(memory) - sizeof block, sizeof block);
    ::operator delete(block);
}

// Accepts every pointer: all memory of the process belongs to the CPU.
void CpuDevice::check_memory(const char *, const void *) const {}

void CpuDevice::copy(void *to, const void *from, std::size_t bytes, void *) {
    std::memcpy(to, from, bytes);
}

} // namespace annulus
