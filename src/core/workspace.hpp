// SPDX-License-Identifier: Apache-2.0
// The ledger of a workspace. One function books what a call needs, whether there is memory yet or not. Without memory
// the ledger only adds up sizes; with memory it hands out the same pieces. Therefore the announced size and the used
// size cannot differ. Sizes are multiplied and added here, with all overflows checked: too large a size is an error.
#pragma once

#include "core/error.hpp"

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <new>

namespace annulus {

class Workspace {
  public:
    static constexpr std::size_t alignment = 256; // that of a CUDA allocation; a CPU needs less

    // Rounds a number of bytes up to a multiple of `alignment`.
    static constexpr std::size_t aligned(std::size_t bytes) { return (bytes + alignment - 1) / alignment * alignment; }

    // Only adds up: take() returns null.
    Workspace() = default;

    // Hands out `memory`, which is aligned to `alignment` and as large as a ledger without memory said.
    explicit Workspace(void *memory) : memory_(static_cast<std::byte *>(memory)) {}

    // Books an array of T whose length is the product of the factors. Returns null without memory.
    template <class T, class... Factors> T *take(Factors... factors) {
        const std::size_t offset = used_;
        const std::size_t bytes = product(sizeof(T), factors...);
        skip(aligned(bytes));
        if (!memory_)
            return nullptr;
        return ::new (memory_ + offset) T[bytes / sizeof(T)];
    }

    // Passes over `count` pieces of `bytes`, a multiple of `alignment`. So a worker reaches its own piece.
    void skip(std::size_t bytes, std::int64_t count = 1) {
        used_ += product(bytes, count); // neither is more than `max_bytes`
        if (used_ > max_bytes)
            report_too_large();
    }

    std::size_t used() const { return used_; }

  private:
    static constexpr std::size_t max_bytes = PTRDIFF_MAX; // the most bytes that a piece of memory can have

    template <class... Factors> static std::size_t product(std::size_t bytes, Factors... factors) {
        for (const std::int64_t factor : {static_cast<std::int64_t>(factors)...})
            if (__builtin_mul_overflow(bytes, factor, &bytes) || bytes > max_bytes)
                report_too_large();
        return bytes;
    }

    [[noreturn]] static void report_too_large() {
        throw Error(ANNULUS_ERROR_MEMORY, "this call needs a workspace of more than %zu bytes", max_bytes);
    }

    std::byte *memory_ = nullptr;
    std::size_t used_ = 0;
};

} // namespace annulus
