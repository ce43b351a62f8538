// SPDX-License-Identifier: Apache-2.0
// Rows of matrices in shared memory, and accesses to them.
#pragma once

#include <bit>
#include <cstdint>

namespace annulus {

// Returns the 32-bit address that instructions on shared memory take.
__device__ __forceinline__ std::uint32_t shared_address(const void *pointer) {
    return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

// Returns the number with which the indices of a row's 16-byte parts are XORed. For 16-bit elements it is the 128-byte
// swizzle of TMA. For 32-bit elements, lanes read at once either four parts of each of two neighbouring rows, or two
// neighbouring parts of every second row. Neither has bank conflicts.
template <int element_bytes> __device__ __forceinline__ int swizzle_of_row(int row) {
    return element_bytes == 2 ? row & 7 : (row & 7) ^ (row & 1) << 2;
}

// A matrix lies in chunks of 128 bytes a row: 64 columns of 16 bits, or 32 columns of 32 bits. A chunk has its `rows`
// rows one after the other, and the chunk of the next columns follows. The parts of a row are swizzled. Returns the
// offset of part `part` of a row, counted over all chunks.
constexpr int swizzled_row_bytes = 128;
template <int element_bytes = 2> __device__ __forceinline__ int swizzled_offset(int rows, int row, int part) {
    return (part >> 3) * rows * swizzled_row_bytes + row * swizzled_row_bytes +
           (((part & 7) ^ swizzle_of_row<element_bytes>(row)) << 4);
}

// Returns the address of the same part `rows` rows further. The row's index modulo 8 and `rows` modulo 8 must have no
// bit in common.
template <int element_bytes = 2>
__device__ __forceinline__ std::uint32_t swizzled_rows_further(std::uint32_t address, int rows) {
    return (address ^ swizzle_of_row<element_bytes>(rows) << 4) + rows * swizzled_row_bytes;
}

// How lanes divide a row that they copy or write: each lane has one part of 16 bytes. Lanes from `parts` on have none.
template <int columns, int element_bytes_ = 2> struct RowLanes {
    static constexpr int element_bytes = element_bytes_, columns_of_part = 16 / element_bytes;
    static constexpr int parts = columns / columns_of_part;
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
__device__ __forceinline__ float4 load_4_floats(std::uint32_t address) {
    const uint4 x = load_16_bytes(address);
    return {__uint_as_float(x.x), __uint_as_float(x.y), __uint_as_float(x.z), __uint_as_float(x.w)};
}
__device__ __forceinline__ float2 load_8_bytes(std::uint32_t address) {
    float2 x;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(address) : "memory");
    return x;
}
__device__ __forceinline__ void store_8_bytes(std::uint32_t address, const float2 &x) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(x.x), "f"(x.y) : "memory");
}
__device__ __forceinline__ void store_16_bytes(std::uint32_t address, const uint4 &x) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
                 : "memory");
}

// Loads four 8 x 8 matrices of 16-bit elements. `address` is that of row lane % 8 of matrix lane / 8. A lane gets
// columns 2 (lane % 4) and 2 (lane % 4) + 1 of row lane / 4 of each matrix. If transposed, rows and columns change
// places.
template <bool transposed> __device__ __forceinline__ void load_matrices(std::uint32_t (&x)[4], std::uint32_t address) {
    if constexpr (transposed)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                     : "r"(address)
                     : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                     : "r"(address)
                     : "memory");
}

// Stores four 8 x 8 matrices of 16-bit elements. `address` is that of row lane % 8 of matrix lane / 8. A lane has
// columns 2 (lane % 4) and 2 (lane % 4) + 1 of row lane / 4 of each matrix.
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
