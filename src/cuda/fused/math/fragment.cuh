// SPDX-License-Identifier: Apache-2.0
// The elements that a thread holds of a product of 64 rows. The product has four strips of 16 rows; each warp computes
// one or more of them. In a strip, a thread holds rows lane / 4 and lane / 4 + 8. In every eight columns, it holds
// columns 2 (lane % 4) and 2 (lane % 4) + 1. Element d[4 i + 2 r + e] is in the r-th of these rows and in column 8 i +
// 2 (lane % 4) + e. wgmma and mma.sync.m16n8k16 have this layout in common.
#pragma once

#include "cuda/device/warp.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace annulus {

// Tells where the thread's elements are, in strip `strip_of_warp` of the warp's `strips` strips. Construct it at each
// use: the compiler would keep addresses that depend on a thread's number in registers.
template <int strips = 1, int strip_of_warp = 0> struct FragmentThread {
    int thread = thread_of_warpgroup();

    __device__ __forceinline__ int lane() const { return thread % warp_threads; }
    __device__ __forceinline__ int strip() const {
        if constexpr (strips == 1)
            return thread / warp_threads;
        else
            return thread / warp_threads % (4 / strips) * strips + strip_of_warp;
    }
    // Return the index of row r of the thread's two rows: in the product, and in the strip.
    __device__ __forceinline__ int row(int r) const { return strip() * 16 + row_of_strip(r); }
    __device__ __forceinline__ int row_of_strip(int r) const { return lane() / 4 + 8 * r; }
    // Returns the first of the thread's two columns of every eight.
    __device__ __forceinline__ int column() const { return 2 * (thread % 4); }
};

template <int count> __device__ __forceinline__ void clear(float (&x)[count]) {
#pragma unroll
    for (int i = 0; i < count; ++i)
        x[i] = 0;
}

// Returns 2^x. Results below the normal numbers become 0.
__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Returns log2(x) for normal numbers.
__device__ __forceinline__ float log2_fast(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Returns 1 / x for normal numbers, with an error of at most one unit in the last place.
__device__ __forceinline__ float reciprocal_fast(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Packs two neighbours, rounded to nearest, with `first` in the lower half.
template <class Element> __device__ __forceinline__ std::uint32_t pack_two(float first, float second);
template <> __device__ __forceinline__ std::uint32_t pack_two<__nv_bfloat16>(float first, float second) {
    std::uint32_t two;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(second), "f"(first));
    return two;
}
template <> __device__ __forceinline__ std::uint32_t pack_two<__half>(float first, float second) {
    std::uint32_t two;
#if __CUDA_ARCH__ >= 800
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(second), "f"(first));
#else
    asm("{\n.reg .b16 low, high;\ncvt.rn.f16.f32 low, %1;\ncvt.rn.f16.f32 high, %2;\nmov.b32 %0, {low, high};\n}\n"
        : "=r"(two)
        : "f"(first), "f"(second));
#endif
    return two;
}

template <class Element> __device__ __forceinline__ float2 unpack_two(std::uint32_t two);
template <> __device__ __forceinline__ float2 unpack_two<__nv_bfloat16>(std::uint32_t two) {
    return {__uint_as_float(two << 16), __uint_as_float(two & 0xffff0000)};
}
template <> __device__ __forceinline__ float2 unpack_two<__half>(std::uint32_t two) {
    float2 x; // volatile: it runs where it is written. Done early for many pairs at once, it would take registers
    asm volatile("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %2;\ncvt.f32.f16 %0, low;\ncvt.f32.f16 %1, high;\n}\n"
                 : "=f"(x.x), "=f"(x.y)
                 : "r"(two));
    return x;
}

// Packs pairs of columns of `x` into an operand of the next product.
template <class Element, int count>
__device__ __forceinline__ void pack(std::uint32_t (&packed)[count / 2], const float (&x)[count]) {
#pragma unroll
    for (int i = 0; i < count / 2; ++i)
        packed[i] = pack_two<Element>(x[2 * i], x[2 * i + 1]);
}

// Return the maximum and the sum over the four lanes that hold a row.
__device__ __forceinline__ float max_of_row(float x) {
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
__device__ __forceinline__ float sum_of_row(float x) {
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

} // namespace annulus
