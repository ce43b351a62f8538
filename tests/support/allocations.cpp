// SPDX-License-Identifier: Apache-2.0
#include "support/allocations.hpp"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <limits>
#include <new>

namespace annulus::test {
namespace {

constexpr long never = std::numeric_limits<long>::max();

thread_local long served_before_failure = never, made = 0;
std::atomic<long> live{0};

void *allocate(std::size_t bytes, std::size_t alignment) noexcept {
    if (served_before_failure != never && served_before_failure-- == 0) {
        served_before_failure = never;
        return nullptr;
    }
    ++made;
    alignment = std::max(alignment, alignof(std::max_align_t));
    void *const memory = std::aligned_alloc(alignment, (bytes / alignment + 1) * alignment);
    live += memory != nullptr;
    return memory;
}

void *allocate_or_throw(std::size_t bytes, std::size_t alignment) {
    if (void *const memory = allocate(bytes, alignment))
        return memory;
    throw std::bad_alloc();
}

void release(void *memory) noexcept {
    live -= memory != nullptr;
    std::free(memory);
}

} // namespace

void fail_allocation_after(long served) {
    served_before_failure = served;
}

void fail_no_allocation() {
    served_before_failure = never;
}

long allocations_made() {
    return made;
}

long live_allocations() {
    return live;
}

} // namespace annulus::test

// Replaces all forms of the operators. A sanitizer would use its own for a form that is missing.
// clang-format off
using std::align_val_t, std::nothrow_t, std::size_t;
using annulus::test::allocate, annulus::test::allocate_or_throw, annulus::test::release;

void *operator new(size_t bytes) { return allocate_or_throw(bytes, 1); }
void *operator new[](size_t bytes) { return allocate_or_throw(bytes, 1); }
void *operator new(size_t bytes, align_val_t a) { return allocate_or_throw(bytes, static_cast<size_t>(a)); }
void *operator new[](size_t bytes, align_val_t a) { return allocate_or_throw(bytes, static_cast<size_t>(a)); }
void *operator new(size_t bytes, const nothrow_t &) noexcept { return allocate(bytes, 1); }
void *operator new[](size_t bytes, const nothrow_t &) noexcept { return allocate(bytes, 1); }
void *operator new(size_t bytes, align_val_t a, const nothrow_t &) noexcept {
    return allocate(bytes, static_cast<size_t>(a));
}
void *operator new[](size_t bytes, align_val_t a, const nothrow_t &) noexcept {
    return allocate(bytes, static_cast<size_t>(a));
}
void operator delete(void *memory) noexcept { release(memory); }
void operator delete[](void *memory) noexcept { release(memory); }
void operator delete(void *memory, size_t) noexcept { release(memory); }
void operator delete[](void *memory, size_t) noexcept { release(memory); }
void operator delete(void *memory, const nothrow_t &) noexcept { release(memory); }
void operator delete[](void *memory, const nothrow_t &) noexcept { release(memory); }
void operator delete(void *memory, align_val_t) noexcept { release(memory); }
void operator delete[](void *memory, align_val_t) noexcept { release(memory); }
void operator delete(void *memory, size_t, align_val_t) noexcept { release(memory); }
void operator delete[](void *memory, size_t, align_val_t) noexcept { release(memory); }
void operator delete(void *memory, align_val_t, const nothrow_t &) noexcept { release(memory); }
void operator delete[](void *memory, align_val_t, const nothrow_t &) noexcept { release(memory); }
// clang-format on
