// SPDX-License-Identifier: Apache-2.0
// Rows of matrices in shared memory, and accesses to them.
#pragma once

#include <bit>
#include <cstdint>

namespace annulus {

// The 32-bit address that instructions on shared memory take.
__device__ __forceinline__ std::uint32_t shared_address(const void *pointer) {
    return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

// Rows of 64 16-bit columns, 128 bytes, lie one after the other, those of further columns behind `rows` of them; the
// 16-byte parts of a row are permuted (the 128-byte swizzle of TMA). Where part `part` of a row of columns begins.
constexpr int swizzled_row_bytes = 128;
__device__ __forceinline__ int swizzled_offset(int rows, int row, int part) {
    return (part >> 3) * rows * swizzled_row_bytes + row * swizzled_row_bytes + (((part & 7) ^ (row & 7)) << 4);
}

// How lanes share out a row of 16-bit columns, that copy it or write it: a part of 16 bytes each, some maybe none.
template <int columns> struct RowLanes {
    static constexpr int parts = columns / 8;
    static constexpr int lanes = static_cast<int>(std::bit_ceil(static_cast<unsigned>(parts)));
};

__device__ __forceinline__ uint4 load_16_bytes(std::uint32_t address) {
    uint4 x;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "r"(address)
                 : "memory");
    return x;
}
__device__ __forceinline__ float2 load_8_bytes(std::uint32_t address) {
    float2 x;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(address) : "memory");
    return x;
}
__device__ __forceinline__ void store_16_bytes(std::uint32_t address, const uint4 &x) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
                 : "memory");
}

// Four 8 x 8 matrices of 16-bit elements; `address` is that of row lane % 8 of matrix lane / 8, and a lane has columns
// 2 (lane % 4) and the next one of row lane / 4 of each.
__device__ __forceinline__ void store_matrices(std::uint32_t address, std::uint32_t a, std::uint32_t b, std::uint32_t c,
                                               std::uint32_t d) {
#if __CUDA_ARCH__ >= 900
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b),
                 "r"(c), "r"(d)
                 : "memory");
#else
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const std::uint32_t pairs[4] = {a, b, c, d};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const std::uint32_t row = __shfl_sync(~0u, address, 8 * i + lane / 4);
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(row + lane % 4 * 4), "r"(pairs[i]) : "memory");
    }
#endif
}

} // namespace annulus
