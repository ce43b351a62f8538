// SPDX-License-Identifier: Apache-2.0
// The ledger: one function books what a call needs, whether memory is there yet or not. Without memory it only adds up;
// with memory it hands out the same pieces. So the size that was announced and the size that is used cannot differ.
// Sizes are multiplied and added here, where all of it is checked: what no memory can hold is an error.
#pragma once

#include "core/error.hpp"

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <new>

namespace annulus {

class Workspace {
  public:
    static constexpr std::size_t alignment = 256; // what a CUDA allocation has; more than a CPU asks for

    // Rounds a number of bytes up to a multiple of `alignment`.
    static constexpr std::size_t aligned(std::size_t bytes) { return (bytes + alignment - 1) / alignment * alignment; }

    // Only adds up: take() returns null.
    Workspace() = default;

    // Hands out `memory`, which is aligned to `alignment` and as large as a ledger without memory said.
    explicit Workspace(void *memory) : memory_(static_cast<std::byte *>(memory)) {}

    // As many T as the product of the factors.
    template <class T, class... Factors> T *take(Factors... factors) {
        const std::size_t offset = used_;
        const std::size_t bytes = product(sizeof(T), factors...);
        skip(aligned(bytes));
        if (!memory_)
            return nullptr;
        return ::new (memory_ + offset) T[bytes / sizeof(T)];
    }

    // Passes over `count` pieces of `bytes`, a multiple of `alignment`: how workers reach the piece that is theirs.
    void skip(std::size_t bytes, std::int64_t count = 1) {
        used_ += product(bytes, count); // neither is more than `most`
        if (used_ > most)
            report_too_large();
    }

    std::size_t used() const { return used_; }

  private:
    static constexpr std::size_t most = PTRDIFF_MAX; // bytes that a piece of memory can have

    template <class... Factors> static std::size_t product(std::size_t bytes, Factors... factors) {
        for (const std::int64_t factor : {static_cast<std::int64_t>(factors)...})
            if (__builtin_mul_overflow(bytes, factor, &bytes) || bytes > most)
                report_too_large();
        return bytes;
    }

    [[noreturn]] static void report_too_large() {
        throw Error(ANNULUS_ERROR_MEMORY, "this call needs a workspace of more than %zu bytes", most);
    }

    std::byte *memory_ = nullptr;
    std::size_t used_ = 0;
};

} // namespace annulus
