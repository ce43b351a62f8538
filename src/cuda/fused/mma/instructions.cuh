// SPDX-License-Identifier: Apache-2.0
// Instructions of the kernels on mma.sync, beside products of 16-bit elements (math/warp_products.cuh): products of
// TF32, and copies to shared memory.
#pragma once

#include <cstdint>

namespace annulus::mma {

// d += A B with A [16, 8] and B [8, 8] of TF32, whose lowest 13 bits are ignored. a[2 c + r] is in row lane / 4 + 8 r
// and column lane % 4 + 4 c. b[c] is in row lane % 4 + 4 c and column lane / 4. It needs compute capability 8.0.
__device__ __forceinline__ void add_tf32_product(float *d, const std::uint32_t *a, const std::uint32_t *b) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Copies `bytes` bytes to shared memory, or writes zeros if nothing is `present`; `source` is an address in any case.
// Before compute capability 8.0, it copies at once, through registers. Else the copy belongs to the group that
// commit_copies() ends, and is done when wait_for_copies() returns.
template <int bytes>
__device__ __forceinline__ void copy_to_shared(std::uint32_t target, const void *source, bool present) {
#if __CUDA_ARCH__ >= 800
    if constexpr (bytes == 16)
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(target), "l"(source),
                     "r"(present ? 16 : 0)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %3, %2;" ::"r"(target), "l"(source),
                     "r"(present ? bytes : 0), "n"(bytes)
                     : "memory");
#else
    if constexpr (bytes == 16) {
        const uint4 x = present ? *static_cast<const uint4 *>(source) : uint4{};
        asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(target), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
                     : "memory");
    } else {
        static_assert(bytes == 4);
        const std::uint32_t x = present ? *static_cast<const std::uint32_t *>(source) : 0;
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(target), "r"(x) : "memory");
    }
#endif
}
// Brings the 128 bytes around `source` into the L2 cache.
__device__ __forceinline__ void prefetch(const void *source) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(source));
}
// Ends a group: the thread's copies until now.
__device__ __forceinline__ void commit_copies() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
// Waits for the thread's groups, but for the last `pending` ones.
template <int pending> __device__ __forceinline__ void wait_for_copies() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
#endif
}

} // namespace annulus::mma
