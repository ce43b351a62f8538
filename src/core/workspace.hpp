// SPDX-License-Identifier: Apache-2.0
// The ledger: one function books what a call needs, whether memory is there yet or not. Without memory it only adds up;
// with memory it hands out the same pieces. So the size that was announced and the size that is used cannot differ.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>

namespace annulus {

class Workspace {
  public:
    static constexpr std::size_t alignment = 256; // what a CUDA allocation has; more than a CPU asks for

    // Only adds up: take() returns null.
    Workspace() = default;
    // Hands out `memory`, which is aligned to `alignment` and as large as a ledger without memory said.
    explicit Workspace(void *memory) : memory_(static_cast<std::byte *>(memory)) {}

    template <class T> T *take(std::int64_t count) {
        const std::size_t offset = used_;
        used_ += (static_cast<std::size_t>(count) * sizeof(T) + alignment - 1) / alignment * alignment;
        if (!memory_)
            return nullptr;
        return ::new (memory_ + offset) T[static_cast<std::size_t>(count)];
    }

    // Passes over `bytes`, a multiple of `alignment`: how workers reach the piece that is theirs.
    void skip(std::size_t bytes) { used_ += bytes; }

    std::size_t used() const { return used_; }

  private:
    std::byte *memory_ = nullptr;
    std::size_t used_ = 0;
};

} // namespace annulus
